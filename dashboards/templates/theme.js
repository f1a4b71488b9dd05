// The style of figures: colours of the screen or of paper, and what the filters hide.
page.dark = matchMedia("(prefers-color-scheme: dark)");
page.theme = null; // "light" or "dark" once the reader has chosen
page.isDark = () => (page.theme === null ? page.dark.matches : page.theme === "dark");
page.setTheme = (theme) => {
  page.theme = theme;
  for (const name of ["light", "dark"]) document.documentElement.classList.toggle(name, theme === name);
};
page.onPaper = () => document.documentElement.classList.contains("paper");
page.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
page.slotColour = (slot) => page.data.palette[slot % page.data.palette.length][page.isDark() && !page.onPaper() ? 1 : 0];
page.faded = (colour, alpha) => {
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
};
// Runs `action` while the page has the colours of paper.
page.asOnPaper = (action) => {
  document.documentElement.classList.add("paper");
  try { return action(); } finally { document.documentElement.classList.remove("paper"); }
};

page.themedTrace = (trace, options) => {
  const meta = trace.meta;
  const themed = page.filteredTrace(trace);
  const ink = page.colour("--ink");
  const muted = page.colour("--muted");
  const own = meta.slot === undefined ? null : page.slotColour(meta.slot);
  if (own) {
    if (trace.line) themed.line = { ...trace.line, color: page.faded(own, meta.alpha) };
    if (trace.marker) themed.marker = { ...themed.marker, color: own };
    for (const bar of ["error_x", "error_y"]) {
      if (themed[bar]) themed[bar] = { ...themed[bar], color: page.faded(own, meta.best === false ? 0.15 : 0.45) };
    }
    if (trace.textfont) themed.textfont = { ...trace.textfont, color: own };
    // Filters do not apply to the card of a point.
    themed.visible = themed.visible !== false && (meta.role === "own" || page.shows(meta.family, meta.rate));
    // Only the leading settings are lines; the others are dots.
    if (meta.leading === false) themed.mode = page.filters.leading ? "markers" : "lines+markers";
  } else if (meta.role === "front") {
    themed.line = { ...trace.line, color: page.faded(muted, 0.6) };
    // The front is of means and of all settings: without one of them it would be another.
    themed.visible = page.filters.seed === null
      && meta.members.every(([family, rate, epoch]) => page.shows(family, rate) && page.showsEpoch(epoch));
  } else {
    if (trace.marker) themed.marker = { ...trace.marker, color: ink };
    if (trace.line) themed.line = { ...trace.line, color: page.faded(ink, 0.75) };
    if (trace.textfont) themed.textfont = { ...trace.textfont, color: ink };
  }
  return themed;
};

page.themedLayout = (layout, options) => {
  const muted = page.colour("--muted");
  const axis = (options) => ({
    ...options,
    gridcolor: page.colour("--grid"),
    title: { ...options.title, font: { size: 12, color: muted } },
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
    uirevision: "kept",
  };
  if (options.narrow) themed.height = Math.min(layout.height, 430);
  if (layout.title?.text) themed.title = { ...layout.title, font: { size: 13, color: page.colour("--ink") } };
  return themed;
};
