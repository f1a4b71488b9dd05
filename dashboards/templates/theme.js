// How figures look: in the colours of the screen or of paper, and without what the filters hide.
//
// Each trace of a figure has a `meta` that says what it shows: its `role` ("trajectory", "front",
// "curve" …) and, if it belongs to a method, the method's `slot` in the palette. Python has drawn the
// figure in the colours of a light page, and the page replaces them.

// ---- Light, dark and paper ----

page.dark = matchMedia("(prefers-color-scheme: dark)");
page.theme = null; // "light" or "dark" if the reader has chosen, and null to follow the system

page.isDark = () => (page.theme === null ? page.dark.matches : page.theme === "dark");

page.setTheme = (theme) => {
  page.theme = theme;
  for (const name of ["light", "dark"]) {
    document.documentElement.classList.toggle(name, theme === name);
  }
};

page.onPaper = () => document.documentElement.classList.contains("paper");

/** Run `action` while the page has the colours of paper, and return its value. */
page.asOnPaper = (action) => {
  document.documentElement.classList.add("paper");
  try {
    return action();
  } finally {
    document.documentElement.classList.remove("paper");
  }
};

// ---- Colours ----

/** Return the value of a custom property of the styles, such as "--ink". */
page.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Return the colour of a method's slot in the palette, whose entries are a light and a dark colour. */
page.slotColour = (slot) => {
  const [light, dark] = page.data.palette[slot % page.data.palette.length];
  return page.isDark() && !page.onPaper() ? dark : light;
};

/** Make a colour such as "#0b5fa5" transparent. `alpha` is its opacity from 0 to 1. */
page.faded = (colour, alpha) => {
  const channelAt = (start) => parseInt(colour.slice(start, start + 2), 16);
  const red = channelAt(1);
  const green = channelAt(3);
  const blue = channelAt(5);
  return `rgba(${red},${green},${blue},${alpha})`;
};

// ---- Traces ----

{
  // A trace of a method has the method's colour, and is hidden by filters of methods and rates.
  const themeMethod = (themed, trace) => {
    const { meta } = trace;
    const colour = page.slotColour(meta.slot);
    if (trace.line) themed.line = { ...trace.line, color: page.faded(colour, meta.alpha) };
    if (trace.marker) themed.marker = { ...themed.marker, color: colour };
    const barColour = page.faded(colour, meta.best === false ? 0.15 : 0.45);
    if (themed.error_x) themed.error_x = { ...themed.error_x, color: barColour };
    if (themed.error_y) themed.error_y = { ...themed.error_y, color: barColour };
    if (trace.textfont) themed.textfont = { ...trace.textfont, color: colour };

    // The curves in a point's card belong to the card's setting, which filters do not change.
    const isInCard = meta.role === "own";
    themed.visible = themed.visible !== false && (isInCard || page.shows(meta.family, meta.rate));
    if (meta.leading === false) themed.mode = page.filters.leading ? "markers" : "lines+markers";
  };

  // The Pareto front was computed from the means of all settings. Without one of its members, or
  // for one seed, there would be another front, so it is hidden.
  const themeFront = (themed, trace) => {
    const showsMember = ([family, rate, epoch]) => page.shows(family, rate) && page.showsEpoch(epoch);
    themed.line = { ...trace.line, color: page.faded(page.colour("--muted"), 0.6) };
    themed.visible = page.filters.seed === null && trace.meta.members.every(showsMember);
  };

  // Start and retain model, thresholds and the ring around a point have the colour of text.
  const themeInk = (themed, trace) => {
    const ink = page.colour("--ink");
    if (trace.marker) themed.marker = { ...trace.marker, color: ink };
    if (trace.line) themed.line = { ...trace.line, color: page.faded(ink, 0.75) };
    if (trace.textfont) themed.textfont = { ...trace.textfont, color: ink };
  };

  /** Return a copy of a trace with its present colours, and without what the filters hide. */
  page.themedTrace = (trace) => {
    const themed = page.filteredTrace(trace);
    if (trace.meta.slot !== undefined) themeMethod(themed, trace);
    else if (trace.meta.role === "front") themeFront(themed, trace);
    else themeInk(themed, trace);
    return themed;
  };
}

// ---- Layouts ----

{
  const NARROW_HEIGHT = 430; // pixels

  const themedAxis = (axis, muted) => ({
    ...axis,
    gridcolor: page.colour("--grid"),
    title: { ...axis.title, font: { size: 12, color: muted } },
    tickfont: { size: 11, color: muted },
  });

  // Rectangles are shaded areas. All other shapes are lines.
  const themedShape = (shape, muted) => {
    if (shape.type === "rect") return { ...shape, fillcolor: page.faded(muted, 0.1) };
    return { ...shape, line: { ...shape.line, color: page.faded(muted, 0.75) } };
  };

  const themedNote = (note, muted) => ({ ...note, font: { ...note.font, color: muted } });

  /**
   * Return a copy of a figure's layout with its present colours.
   *
   * @param {object} layout
   * @param {{ narrow: boolean }} options Whether the figure is as narrow as on a phone.
   */
  page.themedLayout = (layout, { narrow }) => {
    const ink = page.colour("--ink");
    const muted = page.colour("--muted");
    const themed = {
      ...layout,
      xaxis: themedAxis(layout.xaxis, muted),
      yaxis: themedAxis(layout.yaxis, muted),
      shapes: (layout.shapes ?? []).map((shape) => themedShape(shape, muted)),
      annotations: (layout.annotations ?? []).map((note) => themedNote(note, muted)),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: ink },
      hoverlabel: {
        bgcolor: page.colour("--card"),
        bordercolor: muted,
        align: "left",
        font: { color: ink, size: 12 },
      },
      autosize: true,
      dragmode: narrow ? false : "zoom", // on a phone, a finger that is dragged scrolls the page
      uirevision: "kept", // a constant: Plotly keeps the reader's zoom when a figure is redrawn
    };
    if (narrow) themed.height = Math.min(layout.height, NARROW_HEIGHT);
    if (layout.title?.text) themed.title = { ...layout.title, font: { size: 13, color: ink } };
    return themed;
  };
}
