// What all sections share: the data, the reader's filters, and figures that follow both the
// filters and the screen's theme. Text from data reaches the page only as text, never as markup.
const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  filters: { families: new Set(), rates: new Set() }, // empty: everything
  listeners: [],
  plots: [],
};

page.element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};
page.byId = (id) => document.getElementById(id);
page.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
page.dark = matchMedia("(prefers-color-scheme: dark)");
page.slotColour = (slot) => page.data.palette[slot][page.dark.matches ? 1 : 0];
page.shows = (family, rate) =>
  (!page.filters.families.size || page.filters.families.has(family)) &&
  (!page.filters.rates.size || page.filters.rates.has(rate));

page.faded = (colour, alpha) => {
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
};

// Numbers are shown with a true minus sign, and only as many digits as they carry.
page.number = (value, digits = 3) =>
  value === null || value === undefined ? "" : value.toFixed(digits).replace("-", "−");

page.more = (() => {
  let promise = null;
  const inflate = async () => {
    const packed = Uint8Array.from(atob(page.byId("more").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return JSON.parse(await new Response(stream).text());
  };
  return () => (promise ??= inflate());
})();

page.whenSeen = (id, action) => {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    action();
  }, { rootMargin: "600px" });
  observer.observe(page.byId(id));
};

page.themedTrace = (trace, options) => {
  const meta = trace.meta;
  if (meta.role === "ratios") return trace; // it comes in the screen's colours
  const themed = { ...trace };
  const ink = page.colour("--ink");
  const muted = page.colour("--muted");
  const own = meta.slot === undefined ? null : page.slotColour(meta.slot);
  if (own) {
    if (trace.line) themed.line = { ...trace.line, color: page.faded(own, meta.alpha) };
    if (trace.marker) {
      themed.marker = { ...trace.marker, color: own };
    }
    for (const bar of ["error_x", "error_y"]) {
      if (trace[bar]) themed[bar] = { ...trace[bar], color: page.faded(own, 0.45) };
    }
    if (trace.textfont) themed.textfont = { ...trace.textfont, color: own };
    themed.visible = page.shows(meta.family, meta.rate);
  } else if (meta.role === "front") {
    themed.line = { ...trace.line, color: page.faded(muted, 0.6) };
    themed.visible = !page.filters.families.size && !page.filters.rates.size;
  } else if (meta.role === "published") {
    themed.marker = { ...trace.marker, color: muted };
    themed.line = { ...trace.line, color: page.faded(muted, 0.5) };
    themed.visible = Boolean(options.published);
  } else {
    if (trace.marker) themed.marker = { ...trace.marker, color: ink };
    if (trace.textfont) themed.textfont = { ...trace.textfont, color: ink };
  }
  if (options.narrow && meta.role === "best") themed.mode = "markers"; // no room for names
  return themed;
};

page.themedLayout = (layout, options) => {
  const muted = page.colour("--muted");
  const axis = (given) => ({
    ...given,
    gridcolor: page.colour("--grid"),
    title: { ...given.title, font: { size: 12, color: muted } },
    tickfont: { size: 11, color: muted },
  });
  const shapes = (layout.shapes ?? []).map((shape) => shape.type === "rect"
    ? { ...shape, fillcolor: page.faded(muted, 0.1) }
    : { ...shape, line: { ...shape.line, color: page.faded(muted, 0.75) } });
  const themed = {
    ...layout,
    xaxis: axis(layout.xaxis),
    yaxis: axis(layout.yaxis),
    shapes,
    annotations: (layout.annotations ?? []).map((note) => ({ ...note, font: { ...note.font, color: muted } })),
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: page.colour("--ink") },
    hoverlabel: { bgcolor: page.colour("--card"), bordercolor: muted, align: "left", font: { color: page.colour("--ink"), size: 12 } },
    autosize: true,
    dragmode: options.narrow ? false : "zoom", // a finger scrolls the page
    uirevision: options.whole ? "whole" : "kept",
  };
  if (layout.title?.text) themed.title = { ...layout.title, font: { size: 13, color: page.colour("--ink") } };
  if (options.whole) themed.yaxis = { ...themed.yaxis, range: [options.whole, layout.yaxis.range[1]] };
  return themed;
};

page.config = { displayModeBar: false, responsive: true, doubleClick: "reset" };
page.save = (plot, format) =>
  Plotly.downloadImage(plot.node, { format, filename: plot.options.name, width: 900, height: 620, scale: format === "png" ? 3 : 1 });

page.refresh = (plot) => {
  const { node, figure, options } = plot;
  options.narrow = node.clientWidth < 440;
  const traces = figure.data.map((trace) => page.themedTrace(trace, options));
  return Plotly.react(node, traces, page.themedLayout(figure.layout, options), page.config);
};

page.draw = (node, figure, options) => {
  const plot = { node, figure, options };
  page.plots.push(plot);
  page.refresh(plot);
  return plot;
};

page.changed = () => {
  page.plots = page.plots.filter((plot) => plot.node.isConnected);
  page.plots.forEach(page.refresh);
  page.listeners.forEach((listener) => listener());
};
page.dark.addEventListener("change", () => { page.paintSwatches(); page.changed(); });

page.paintSwatches = () => {
  for (const node of document.querySelectorAll("[data-family] .swatch")) {
    const slot = page.data.families[node.closest("[data-family]").dataset.family];
    if (slot !== undefined) node.style.setProperty("--swatch", page.slotColour(slot));
  }
};
