// Strips of all settings, whose marks open the card of a point, and curves by hyperparameter.
{
  const openCardOnClick = ({ node }) => {
    node.on("plotly_click", ({ points }) => {
      const [epoch, run] = points[0].customdata ?? [];
      if (run) page.select(run, epoch);
    });
  };

  page.drawSection("sensitivity", ({ strips, lines }) => {
    const panel = page.panelShown();
    const stripHolder = page.byId("strip-plots");
    const lineHolder = page.byId("sensitivity-lines");
    page.showSmallPlots("strip", stripHolder, page.titled(strips[panel]), { drawn: openCardOnClick });
    page.showSmallPlots("sensitivity", lineHolder, page.titled(lines[panel]));
  });
}
