// The expected best of n trials, with a legend of the entries that were tuned.
{
  const holder = page.byId("tuning-plots");
  const legend = page.byId("tuning-lines");

  page.drawSection("tuning", (panels) => {
    const shown = page.titled(panels[page.panelShown()]);
    page.showSmallPlots("tuning", holder, shown, page.lineLegend(holder, legend, shown));
  });
}
