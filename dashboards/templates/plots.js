// Figures: they are drawn when they come into view, drawn again when filters or colours change,
// saved as files, and printed.
//
// A plot is what this file knows of a figure on the page:
//   node     the element that it is drawn in
//   figure   { data, layout } as Python made it, without colours
//   options  see `page.draw`, and `narrow`: whether it is as narrow as on a phone
//   near     whether the element is near the visible part of the page
//   stale    whether it has to be drawn before it is seen
//   drawn    whether it was drawn at least once
{
  const CONFIG = { displayModeBar: false, responsive: true };
  const NARROW = 440; // pixels
  // On paper, a trade-off panel takes the width of the page, and two small plots share it.
  const PAPER_WIDTH = 660;
  const PAPER_WIDTH_OF_SMALL = 320;
  const SMALL_HEIGHT = 300;

  const themedFigure = ({ figure, options }) => {
    const traces = [...figure.data, ...(options.extra?.() ?? [])];
    return {
      data: traces.map(page.themedTrace),
      layout: page.themedLayout(figure.layout, options),
    };
  };

  // ---- Saving ----

  // Shows each method once in the legend of a saved figure, although it has several lines.
  const nameMethods = (traces) => {
    const named = new Set();
    for (const trace of traces) {
      const { role, family } = trace.meta;
      const isLine = role === "trajectory" || role === "curve";
      trace.showlegend = isLine && trace.visible !== false && !named.has(family);
      if (trace.showlegend) trace.name = family;
      named.add(family);
    }
  };

  // A saved figure is for a paper: light, on white, with its title and a legend, and with the axes
  // as the reader has zoomed them.
  const save = (plot, format) => {
    const wide = { ...plot, options: { ...plot.options, narrow: false } };
    const { data, layout } = page.asOnPaper(() => themedFigure(wide));
    nameMethods(data);
    const zoomed = plot.node.layout;
    Object.assign(layout, {
      title: { text: layout.meta?.title ?? layout.title?.text, x: 0.02 },
      margin: { ...layout.margin, t: 52 },
      xaxis: { ...layout.xaxis, range: zoomed.xaxis.range },
      yaxis: { ...layout.yaxis, range: zoomed.yaxis.range },
      showlegend: true,
      legend: { orientation: "h", x: 0, y: -0.14, yanchor: "top" },
      paper_bgcolor: "#ffffff",
      plot_bgcolor: "#ffffff",
    });
    return Plotly.downloadImage({ data, layout }, {
      format,
      filename: plot.options.name,
      width: 900,
      height: 620,
      scale: format === "png" ? 3 : 1, // three pixels for one are sharp in print
    });
  };

  const saveButton = (plot, format) => page.element("button", {
    type: "button",
    class: "link",
    onclick: () => save(plot, format),
  }, format.toUpperCase());

  const addSaveButtons = (plot) => {
    const buttons = ["Save as ", saveButton(plot, "svg"), " or ", saveButton(plot, "png")];
    plot.node.after(page.element("p", { class: "notes save" }, ...buttons));
  };

  // ---- Drawing ----

  // Draws a plot now. Returns Plotly's promise, or null if the plot is no longer on the page.
  const paint = (plot) => {
    if (!globalThis.Plotly) return page.plotly.then(() => paint(plot));
    if (!plot.node.isConnected) return null;
    plot.stale = false;
    plot.options.narrow = plot.node.clientWidth < NARROW && !page.onPaper();
    const { data, layout } = themedFigure(plot);
    if (page.onPaper()) {
      // Plotly cannot measure an element for print, so the size is fixed.
      layout.autosize = false;
      layout.width = layout.height > SMALL_HEIGHT ? PAPER_WIDTH : PAPER_WIDTH_OF_SMALL;
    }
    const painted = Plotly.react(plot.node, data, layout, CONFIG);
    if (!plot.drawn) {
      plot.drawn = true;
      if (plot.node.parentNode.matches("figure")) addSaveButtons(plot);
      plot.options.drawn?.(plot);
    }
    return painted;
  };

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const plot = page.plots.find(({ node }) => node === entry.target);
      if (!plot) continue;
      plot.near = entry.isIntersecting;
      if (plot.near && plot.stale) paint(plot);
    }
  }, { rootMargin: "120px" });

  const forgetRemovedPlots = () => {
    page.plots = page.plots.filter(({ node }) => node.isConnected);
  };

  /**
   * Draw a figure in an element, as soon as the element is near the visible part of the page.
   *
   * @param {HTMLElement} node
   * @param {{ data: object[], layout: object }} figure
   * @param {object} options
   * @param {string} options.name Name of saved files, without their ending.
   * @param {function} [options.drawn] Called with the plot after it was drawn for the first time.
   * @param {function} [options.extra] Returns traces to add to the figure, each time it is drawn.
   */
  page.draw = (node, figure, options) => {
    const plot = { node, figure, options, near: false, stale: true, drawn: false };
    page.plots.push(plot);
    observer.observe(node);
    return plot;
  };

  /** Draw a plot again: now if it is near the view, and otherwise when it comes into view. */
  page.refresh = (plot) => {
    plot.stale = true;
    return plot.near ? paint(plot) : null;
  };

  page.refreshAll = () => {
    forgetRemovedPlots();
    page.plots.forEach(page.refresh);
  };

  page.dark.addEventListener("change", () => {
    page.paintSwatches();
    page.changed();
  });

  let drawnWidth = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === drawnWidth || page.onPaper()) return;
    drawnWidth = innerWidth;
    page.refreshAll();
  });

  // ---- Printing ----

  // Opens closed parts for print. The mark says which parts to close again.
  const openDetails = () => {
    for (const details of document.querySelectorAll("details:not([open])")) {
      details.dataset.closed = true;
      details.open = true;
    }
  };

  const closeOpenedDetails = () => {
    for (const details of document.querySelectorAll("details[data-closed]")) {
      details.open = false;
      delete details.dataset.closed;
    }
  };

  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    page.paintSwatches();
    openDetails();
    forgetRemovedPlots();
    // On paper everything is visible, so plots that were never in view are drawn too.
    if (globalThis.Plotly) page.plots.forEach(paint);
  });

  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    page.paintSwatches();
    closeOpenedDetails();
    forgetRemovedPlots();
    if (globalThis.Plotly) page.plots.forEach(page.refresh);
  });
}
