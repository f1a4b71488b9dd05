// Strips of all settings, whose marks open the card of a point, and lines by hyperparameter.
{
  const titled = (figures) => (figures ?? []).map((figure) => [figure.layout.title.text, figure]);
  const drawn = ({ node }) => node.on("plotly_click", ({ points }) => {
    const [epoch, run] = points[0].customdata ?? [];
    if (run) page.select(run, epoch);
  });
  page.drawSection("sensitivity", ({ strips, lines }) => {
    const panel = page.panelShown();
    page.showSmallPlots("strip", page.byId("strip-plots"), titled(strips[panel]), { drawn });
    page.showSmallPlots("sensitivity", page.byId("sensitivity-lines"), titled(lines[panel]));
  });
}
