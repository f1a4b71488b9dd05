// The trade-off panels and their switches.
{
  const { data } = page;

  // A ring around the point whose card is open.
  const selectedPoint = (panel) => () => {
    const row = page.card && page.row(page.card.run, page.card.epoch);
    if (!row || page.cell(row, "model") !== panel.model || page.cell(row, "forget_fraction") !== panel.fraction) return [];
    const [x, y] = page.headline.map(({ column }) => [page.mean(row, column, page.card.alone)]);
    if (x[0] === null || y[0] === null) return [];
    return [{
      type: "scatter", mode: "markers", x, y, hoverinfo: "skip",
      marker: { symbol: "circle-open", size: 26, line: { width: 3 } }, cliponaxis: false, showlegend: false, meta: { role: "selected" },
    }];
  };

  page.panels = data.panels.map((panel, i) => {
    const node = document.querySelector(`.plot[data-panel="${i}"]`);
    const options = {
      name: `pareto-${i + 1}`,
      extra: selectedPoint(panel),
      published: page.switched.published.has(i),
      whole: page.switched.whole.has(i) ? panel.low * 1.04 : null,
      drawn: (plot) => {
        plot.node.on("plotly_click", (event) => {
          const [epoch, run] = event.points[0].customdata ?? [];
          if (run) page.select(run, epoch, page.filters.seed !== null);
        });
        page.addKeyboard(plot);
      },
    };
    return page.draw(node, panel.figure, options);
  });

  // Redraws the panels that get or lose the ring.
  page.markSelected = () => page.panels
    .filter(({ node, options }) => options.extra().length || node.data?.some((trace) => trace.meta.role === "selected"))
    .forEach(page.refresh);

  // A switch of a panel; the text of its button is what the next click does.
  const switches = (name, on, other) => {
    for (const button of document.querySelectorAll(`[data-${name}]`)) {
      const i = Number(button.dataset[name]);
      const first = button.textContent;
      const show = () => {
        const now = page.switched[name].has(i);
        page.panels[i].options[name] = now ? on(i) : null;
        button.textContent = now ? other : first;
        const note = document.querySelector(`[data-${name}-note="${i}"]`);
        if (note) note.hidden = !now;
      };
      button.addEventListener("click", () => {
        if (!page.switched[name].delete(i)) page.switched[name].add(i);
        show();
        page.refresh(page.panels[i]);
        page.storeView();
      });
      page.listeners.push(show);
      show();
    }
  };
  switches("whole", (i) => data.panels[i].low * 1.04, "Back to the working models");
  switches("published", () => true, "Hide the CE-U paper's points");

  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => page.save(page.panels[Number(button.dataset.save)], button.dataset.format));
  }
}
