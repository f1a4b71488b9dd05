// The legend of small plots with many lines.
//
// Best settings are drawn strong and others pale. While the reader points at a line, only the lines
// of its setting are shown in full. While the reader points at a method's name, only the method's
// lines are. A click keeps them so until the next click.
//
// A group says which lines are shown: { key, has }, a name that no other group has, and a function
// that says whether a line with some `meta` belongs to it.
{
  const { element } = page;

  const FAINT = 0.08; // opacity of lines outside the group
  // Between neighbouring points, the pointer leaves one and enters the other. Without a pause, all
  // lines would flash.
  const PAUSE = 80; // milliseconds

  const keyOfSetting = ({ family, method, rate }) => JSON.stringify([family, method, rate]);

  const groupOfSetting = (meta) => {
    const key = keyOfSetting(meta);
    return { key, has: (other) => keyOfSetting(other) === key };
  };

  const groupOfFamily = (family) => ({ key: family, has: (meta) => meta.family === family });

  // ---- Showing a group ----

  // Draws the lines of a group strong, and all others faint.
  const isolate = (plot, group) => {
    const traces = plot.node.data;
    const isShown = traces.map(({ meta }) => group.has(meta));
    Plotly.restyle(plot.node, {
      opacity: isShown.map((shown) => (shown ? 1 : FAINT)),
      "line.color": traces.map((trace, i) =>
        isShown[i] ? page.slotColour(trace.meta.slot) : trace.line.color),
      "marker.opacity": traces.map((trace, i) => (isShown[i] ? 1 : trace.marker?.opacity ?? 1)),
    });
  };

  // ---- Making the legend ----

  // The methods that the filters show, in the order of their colours.
  const shownFamilies = (metas) => {
    const { families } = page.filters;
    return [...new Set(metas.map(({ family }) => family))]
      .filter((family) => families.size === 0 || families.has(family))
      .sort((a, b) => page.data.families[a] - page.data.families[b]);
  };

  // "best at 1e-4", the learning rates of a method's strong lines; null if it has none.
  const bestRates = (metas, family) => {
    const best = metas.filter((meta) => meta.family === family && meta.best);
    const rates = [...new Set(best.map(({ rate }) => rate))];
    return rates.length ? element("small", {}, `best at ${rates.join(", ")}`) : null;
  };

  // The dash of each learning rate, unless all lines are drawn alike.
  const dashSamples = (metas) => {
    const isUsed = (rate) => metas.some((meta) => meta.rate === rate);
    const used = Object.entries(page.data.rates).filter(([rate]) => isUsed(rate));
    const differs = new Set(used.map(([, dash]) => dash)).size > 1;
    if (!differs) return [];
    return used.map(([rate, dash]) => element("span", { class: "dash" }, page.dashSample(dash), rate));
  };

  const legendNote = (metas) => {
    const hasPaleLines = metas.some(({ best }) => best === false);
    return element("span", { class: "note" },
      hasPaleLines ? "Strong: the best setting of each method. Pale: the others. " : "",
      "Point at a line or a name to see it alone; click to keep it.");
  };

  /**
   * Make the legend of small plots.
   *
   * @param {HTMLElement} holder The element that the plots are in.
   * @param {HTMLElement} legend The element to fill.
   * @param {Array<[string, object]>} figures Pairs of title and figure, as for `page.showSmallPlots`.
   * @returns {object} Options for the plots, by which their lines follow the legend.
   */
  page.lineLegend = (holder, legend, figures) => {
    let kept = null; // the group that a click keeps, or null
    let pause = 0; // timer that shows all lines again

    // Null shows all lines.
    const show = (group) => {
      clearTimeout(pause);
      const plots = page.plots.filter((plot) => plot.drawn && plot.near && holder.contains(plot.node));
      for (const plot of plots) {
        if (group === null) page.refresh(plot);
        else isolate(plot, group);
      }
    };

    const enter = (group) => {
      if (kept === null) show(group);
    };

    const leave = () => {
      clearTimeout(pause);
      if (kept === null) pause = setTimeout(() => show(null), PAUSE);
    };

    // Keeps a group, or lets go of it if it is kept already. Then it is shown until the pointer leaves.
    const toggle = (group) => {
      kept = kept?.key === group.key ? null : group;
      for (const button of buttons) {
        button.setAttribute("aria-pressed", String(kept?.key === button.dataset.family));
      }
      show(kept ?? group);
    };

    const metas = figures.flatMap(([, figure]) => figure.data.map(({ meta }) => meta));
    const buttons = shownFamilies(metas).map((family) => {
      const group = groupOfFamily(family);
      return element("button", {
        type: "button",
        "data-family": family,
        "aria-pressed": "false",
        onmouseenter: () => enter(group),
        onmouseleave: leave,
        onfocus: () => enter(group),
        onblur: leave,
        onclick: () => toggle(group),
      }, element("span", { class: "swatch" }), family, bestRates(metas, family));
    });
    legend.replaceChildren(...buttons, ...dashSamples(metas), legendNote(metas));
    page.paintSwatches();

    const drawn = ({ node }) => {
      const groupOfPoint = ({ points }) => groupOfSetting(points[0].data.meta);
      node.on("plotly_hover", (event) => enter(groupOfPoint(event)));
      node.on("plotly_unhover", leave);
      node.on("plotly_click", (event) => toggle(groupOfPoint(event)));
    };
    return { drawn };
  };
}
