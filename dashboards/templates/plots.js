// Figures: drawn when they come into view, redrawn when filters or the colour scheme change, saved as
// files, and printed.
{
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

  const themed = (plot) => {
    const { figure, options } = plot;
    const traces = [...figure.data, ...(options.extra?.() ?? [])];
    return [traces.map((trace) => page.themedTrace(trace, options)), page.themedLayout(figure.layout, options)];
  };

  const paint = (plot) => {
    if (!globalThis.Plotly) return page.plotly.then(() => paint(plot));
    if (!plot.node.isConnected) return null;
    plot.stale = false;
    plot.options.narrow = plot.node.clientWidth < 440 && !page.onPaper();
    const [traces, layout] = themed(plot);
    if (page.onPaper()) Object.assign(layout, { autosize: false, width: layout.height > 300 ? 660 : 320 });
    const drawn = Plotly.react(plot.node, traces, layout, CONFIG);
    if (!plot.drawn) {
      plot.drawn = true;
      plot.options.drawn?.(plot);
    }
    return drawn;
  };

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const plot = page.plots.find((one) => one.node === entry.target);
      if (!plot) continue;
      plot.near = entry.isIntersecting;
      if (plot.near && plot.stale) paint(plot);
    }
  }, { rootMargin: "120px" });

  // Options: `name` of its files; `drawn`, called once; `extra`, which returns further traces.
  page.draw = (node, figure, options) => {
    const plot = { node, figure, options, near: false, stale: true, drawn: false };
    page.plots.push(plot);
    observer.observe(node);
    return plot;
  };
  page.refresh = (plot) => {
    plot.stale = true;
    return plot.near ? paint(plot) : null;
  };
  page.refreshAll = () => {
    page.plots = page.plots.filter((plot) => plot.node.isConnected);
    page.plots.forEach(page.refresh);
  };
  page.dark.addEventListener("change", () => { page.paintSwatches(); page.changed(); });

  // A saved figure is for a paper: light, on white, with its title.
  page.figureOf = (plot) => page.asOnPaper(() => {
    const [data, layout] = themed({ ...plot, options: { ...plot.options, narrow: false } });
    const title = layout.meta?.title ?? layout.title?.text;
    if (title) {
      layout.title = { text: title, x: 0.02, font: { size: 15, color: page.colour("--ink") } };
      layout.margin = { ...layout.margin, t: Math.max(52, layout.margin.t) };
    }
    // The page's filter buttons are its legend; a file has one of its own.
    const named = new Set();
    for (const trace of data) {
      const { role, family } = trace.meta;
      trace.showlegend = ["trajectory", "curve"].includes(role) && trace.visible !== false && !named.has(family);
      if (trace.showlegend) { named.add(family); trace.name = family; }
    }
    layout.showlegend = true;
    layout.legend = { orientation: "h", x: 0, y: -0.14, yanchor: "top" };
    const range = plot.node.layout?.yaxis?.range;
    if (range) [layout.yaxis, layout.xaxis] = [{ ...layout.yaxis, range }, { ...layout.xaxis, range: plot.node.layout.xaxis.range }];
    return { data, layout: { ...layout, paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" } };
  });
  page.save = async (plot, format) => {
    await page.plotly;
    return Plotly.downloadImage(page.figureOf(plot), { format, filename: plot.options.name, width: 900, height: 620, scale: format === "png" ? 3 : 1 });
  };

  const setPaper = (paper) => {
    document.documentElement.classList.toggle("paper", paper);
    page.paintSwatches();
    // Closed parts are opened for printing, and closed again.
    for (const part of document.querySelectorAll(".legend, .warnings, .beyond, .card details")) {
      if (paper && !part.open) part.dataset.closed = part.open = true;
      else if (!paper && part.dataset.closed) { part.open = false; delete part.dataset.closed; }
    }
    if (!globalThis.Plotly) return;
    // On paper everything is visible; on the screen only plots near the view are drawn at once.
    page.plots = page.plots.filter((plot) => plot.node.isConnected);
    page.plots.forEach((plot) => (paper ? paint(plot) : page.refresh(plot)));
  };
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && !page.onPaper()) { width = innerWidth; page.refreshAll(); }
  });
}
