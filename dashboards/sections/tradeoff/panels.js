// The trade-off panels.
{
  const { data } = page;

  // A ring around the point whose card is open, as a list of traces: empty if there is no such point
  // on this panel.
  const ringTraces = (panelIndex) => {
    if (page.card === null) return [];
    const { run, epoch, alone } = page.card;
    const row = page.row(run, epoch);
    if (!row || page.panelOf(row) !== panelIndex) return [];
    const [x, y] = page.headline.map(({ column }) => page.mean(row, column, alone));
    if (x === null || y === null) return [];
    return [{
      type: "scatter",
      mode: "markers",
      x: [x],
      y: [y],
      hoverinfo: "skip", // the point itself has the text
      marker: { symbol: "circle-open", size: 26, line: { width: 3 } },
      cliponaxis: false,
      showlegend: false,
      meta: { role: "selected" },
    }];
  };

  const openCardOnClick = ({ node }) => {
    node.on("plotly_click", (event) => {
      const [epoch, run] = event.points[0].customdata ?? [];
      if (run) page.select(run, epoch, page.filters.seed !== null);
    });
  };

  page.panels = data.panels.map((panel, index) => {
    const node = document.querySelector(`.plot[data-panel="${index}"]`);
    return page.draw(node, panel.figure, {
      name: `pareto-${index + 1}`,
      extra: () => ringTraces(index),
      drawn: (plot) => {
        openCardOnClick(plot);
        page.addKeyboard(plot);
      },
    });
  });

  /** Draw the panels again that get or lose the ring. */
  page.markSelected = () => {
    const getsRing = ({ options }) => options.extra().length > 0;
    const hasRing = ({ node }) => node.data?.some((trace) => trace.meta.role === "selected");
    page.panels.filter((plot) => getsRing(plot) || hasRing(plot)).forEach(page.refresh);
  };
}
