// Losses and gradient norms by step.
{
  const holder = page.byId("training-plots");
  page.drawSection("training", (panels) => {
    const shown = (panels[page.panelShown()] ?? []).map((figure) => [figure.layout.title.text, figure]);
    page.showSmallPlots("training", holder, shown, page.lineLegend(holder, page.byId("training-lines"), shown));
  });
}
