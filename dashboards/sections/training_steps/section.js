// Losses, their terms and gradient norms by step.
{
  const { byId } = page;
  const show = async () => {
    const figures = (await page.lazyData("training"))[byId("step-panel").value] ?? [];
    page.showSmallPlots("step", figures.map((figure) => [figure.layout.title.text, figure]));
  };
  byId("step-panel").append(...page.panelOptions());
  byId("step-panel").addEventListener("change", show);
  page.followPanel(byId("step-panel"), "step", show);
  page.whenSeen("training", show);
}
