// Figures: drawn when they come into view, redrawn when filters or the colour scheme change, saved as
// files, and printed.
{
  const CONFIG = { displayModeBar: false, responsive: true };
  const themed = (plot) => {
    const { figure, options } = plot;
    const traces = [...figure.data, ...(options.extra?.() ?? [])];
    return [traces.map((trace) => page.themedTrace(trace, options)), page.themedLayout(figure.layout, options)];
  };
  // A saved figure is for a paper: light, on white, with its title and a legend.
  const save = (plot, format) => {
    const [data, layout] = page.asOnPaper(() => themed({ ...plot, options: { ...plot.options, narrow: false } }));
    const named = new Set();
    for (const trace of data) {
      const { role, family } = trace.meta;
      trace.showlegend = ["trajectory", "curve"].includes(role) && trace.visible !== false && !named.has(family);
      if (trace.showlegend) trace.name = family;
      named.add(family);
    }
    const { xaxis, yaxis } = plot.node.layout; // as the reader has zoomed
    Object.assign(layout, {
      title: { text: layout.meta?.title ?? layout.title?.text, x: 0.02 }, margin: { ...layout.margin, t: 52 },
      xaxis: { ...layout.xaxis, range: xaxis.range }, yaxis: { ...layout.yaxis, range: yaxis.range },
      showlegend: true, legend: { orientation: "h", x: 0, y: -0.14, yanchor: "top" },
      paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff",
    });
    return Plotly.downloadImage({ data, layout }, { format, filename: plot.options.name, width: 900, height: 620, scale: format === "png" ? 3 : 1 });
  };
  const saveButton = (plot, format) =>
    page.element("button", { type: "button", class: "link", onclick: () => save(plot, format) }, format.toUpperCase());

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
      if (plot.node.parentNode.matches("figure")) plot.node.after(page.element("p", { class: "notes save" }, "Save as ", saveButton(plot, "svg"), " or ", saveButton(plot, "png")));
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

  const setPaper = (paper) => {
    document.documentElement.classList.toggle("paper", paper);
    page.paintSwatches();
    // Closed parts are opened for printing, and closed again.
    for (const part of document.querySelectorAll("details")) {
      if (paper && !part.open) part.dataset.closed = part.open = true;
      else if (!paper && part.dataset.closed) { part.open = false; delete part.dataset.closed; }
    }
    // On paper everything is visible; on the screen only plots near the view are drawn at once.
    page.plots = page.plots.filter((plot) => plot.node.isConnected);
    if (globalThis.Plotly) page.plots.forEach((plot) => (paper ? paint(plot) : page.refresh(plot)));
  };
  addEventListener("beforeprint", () => setPaper(true));
  addEventListener("afterprint", () => setPaper(false));

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && !page.onPaper()) { width = innerWidth; page.refreshAll(); }
  });
}
