// The trade-off panels.
{
  const { data } = page;

  // A ring around the point whose card is open.
  const selectedPoint = (i) => () => {
    const row = page.card && page.row(page.card.run, page.card.epoch);
    if (!row || page.panelOf(row) !== i) return [];
    const [x, y] = page.headline.map(({ column }) => [page.mean(row, column, page.card.alone)]);
    if (x[0] === null || y[0] === null) return [];
    return [{
      type: "scatter", mode: "markers", x, y, hoverinfo: "skip",
      marker: { symbol: "circle-open", size: 26, line: { width: 3 } }, cliponaxis: false, showlegend: false, meta: { role: "selected" },
    }];
  };
  page.panels = data.panels.map((panel, i) => {
    const node = document.querySelector(`.plot[data-panel="${i}"]`);
    return page.draw(node, panel.figure, {
      name: `pareto-${i + 1}`,
      extra: selectedPoint(i),
      drawn: (plot) => {
        plot.node.on("plotly_click", (event) => {
          const [epoch, run] = event.points[0].customdata ?? [];
          if (run) page.select(run, epoch, page.filters.seed !== null);
        });
        page.addKeyboard(plot);
      },
    });
  });
  // Redraws the panels that get or lose the ring.
  page.markSelected = () => page.panels
    .filter(({ node, options }) => options.extra().length || node.data?.some((trace) => trace.meta.role === "selected"))
    .forEach(page.refresh);
}
