// Swatches: a method's shape in its colour, the same in filters, tables, cards and figures. Also
// samples of the dashes of lines.
{
  const SVG = "http://www.w3.org/2000/svg";
  // Paths in a square of 12 × 12, by the names of Plotly's symbols.
  const SHAPES = {
    circle: "M6 1.4a4.6 4.6 0 1 0 .01 0z",
    "triangle-up": "M6 .9 11.2 10H.8z",
    diamond: "M6 .4 11.6 6 6 11.6.4 6z",
    cross: "M4.1 1h3.8v3.1H11v3.8H7.9V11H4.1V7.9H1V4.1h3.1z",
    "triangle-down": "M6 11.1.8 2h10.4z",
    x: "M3.1.7 6 3.6 8.9.7l2.4 2.4L8.4 6l2.9 2.9-2.4 2.4L6 8.4l-2.9 2.9L.7 8.9 3.6 6 .7 3.1z",
    hourglass: "M1.2.8h9.6L6.6 6l4.2 5.2H1.2L5.4 6z",
    bowtie: "M.8 1.2 6 5.4l5.2-4.2v9.6L6 6.6.8 10.8z",
    pentagon: "M6 .8 11.4 4.7 9.3 11H2.7L.6 4.7z",
    hexagram: "M6 .2 7.7 3.1H11L9.4 6 11 8.9H7.7L6 11.8 4.3 8.9H1L2.6 6 1 3.1h3.3z",
  };
  // Lengths of strokes and gaps, by the names of Plotly's dashes.
  const DASHES = {
    solid: "",
    dash: "6 4",
    dot: "1.5 3",
    dashdot: "6 3 1.5 3",
    longdash: "10 4",
    longdashdot: "10 3 1.5 3",
  };

  const svgElement = (tag, attributes, ...children) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  /** Draw a short line with one of Plotly's dashes, such as "dot". */
  page.dashSample = (dash) => {
    const line = svgElement("line", {
      x1: 0,
      x2: 26,
      y1: 4,
      y2: 4,
      stroke: "currentColor",
      "stroke-width": 1.6,
      "stroke-dasharray": DASHES[dash],
    });
    return svgElement("svg", { width: 26, height: 8, "aria-hidden": "true" }, line);
  };

  const drawShape = (family) => {
    const path = svgElement("path", { d: SHAPES[page.data.shapes[family]], fill: "currentColor" });
    return svgElement("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, path);
  };

  // The method that an element belongs to, which an ancestor or the element itself names.
  const familyOf = (node) => node.closest("[data-family]").dataset.family;

  const setColour = (node, slot) => node.style.setProperty("--swatch", page.slotColour(slot));

  /**
   * Colour every `.swatch` and score bar of a method, and draw the shape into new swatches.
   *
   * Call it after elements were added, and after the colours of the page changed.
   */
  page.paintSwatches = () => {
    const slots = page.data.families;
    for (const node of document.querySelectorAll("[data-family] .score-bar, .result[data-family]")) {
      const slot = slots[familyOf(node)];
      if (slot !== undefined) setColour(node, slot);
    }
    for (const swatch of document.querySelectorAll("[data-family] .swatch")) {
      const family = familyOf(swatch);
      const slot = slots[family];
      if (slot === undefined) continue; // start and retain model have no colour
      setColour(swatch, slot);
      if (!swatch.firstChild) swatch.append(drawShape(family));
    }
  };
}
