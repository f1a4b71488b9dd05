// Losses and gradient norms by step, with a legend of the runs' methods.
{
  const holder = page.byId("training-plots");
  const legend = page.byId("training-lines");

  page.drawSection("training", (panels) => {
    const shown = page.titled(panels[page.panelShown()]);
    page.showSmallPlots("training", holder, shown, page.lineLegend(holder, legend, shown));
  });
}
