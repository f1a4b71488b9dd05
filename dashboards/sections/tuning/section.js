// The expected best of n trials, with a legend of the entries.
{
  const holder = page.byId("tuning-plots");
  page.drawSection("tuning", (panels) => {
    const shown = (panels[page.panelShown()] ?? []).map((figure) => [figure.layout.title.text, figure]);
    page.showSmallPlots("tuning", holder, shown, page.lineLegend(holder, page.byId("tuning-lines"), shown));
  });
}
