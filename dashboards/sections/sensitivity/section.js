// What is kept and forgotten by learning rate and hyper-parameters, of the methods that the filters show.
{
  const { byId } = page;
  let drawn = null; // what the figures on the page are of
  const show = async () => {
    const figures = (await page.lazyData("sensitivity"))[byId("sensitivity-panel").value] ?? [];
    const { families } = page.filters;
    const shown = figures.filter(({ family }) => !families.size || families.has(family));
    const key = `${byId("sensitivity-panel").value} ${[...families].join()}`;
    if (key === drawn) return;
    drawn = key;
    page.showSmallPlots("sensitivity", shown.map((figure) => [figure.layout.title.text, figure]));
  };
  byId("sensitivity-panel").append(...page.panelOptions());
  byId("sensitivity-panel").addEventListener("change", show);
  page.followPanel(byId("sensitivity-panel"), "sensitivity", show);
  page.listeners.push(() => { if (drawn !== null) show(); });
  page.whenSeen("sensitivity", show);
}
