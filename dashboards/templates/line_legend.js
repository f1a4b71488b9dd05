// The legend of small plots with many lines. Best settings are strong and others pale. A line under
// the pointer, or all lines of a method whose name is under it, are shown alone; a click keeps them.
{
  const { element } = page;
  const FAINT = 0.08;
  const LEAVE = 80; // milliseconds: between neighbouring points the pointer leaves one and enters another

  const settingOf = ({ family, method, rate }) => JSON.stringify([family, method, rate]);
  const ofSetting = (meta) => ({ key: settingOf(meta), has: (other) => settingOf(other) === settingOf(meta) });
  const ofFamily = (family) => ({ key: family, has: (other) => other.family === family });

  // Fills the element before `holder` with the legend of `figures`; returns options for its plots.
  page.lineLegend = (holder, legend, figures) => {
    const metas = figures.flatMap(([, { data }]) => data.map(({ meta }) => meta));
    let kept = null; // what stays alone after a click
    let leaving = 0;

    // Shows some lines alone; null shows all.
    const isolate = (lines) => {
      clearTimeout(leaving);
      for (const plot of page.plots.filter((one) => one.drawn && one.near && holder.contains(one.node))) {
        if (lines === null) { page.refresh(plot); continue; }
        const alone = plot.node.data.map(({ meta }) => lines.has(meta));
        const own = ({ meta }) => page.slotColour(meta.slot);
        Plotly.restyle(plot.node, {
          opacity: alone.map((one) => (one ? 1 : FAINT)),
          "line.color": plot.node.data.map((trace, i) => (alone[i] ? own(trace) : trace.line.color)),
          "marker.opacity": plot.node.data.map((trace, i) => (alone[i] ? 1 : trace.marker?.opacity ?? 1)),
        });
      }
    };
    const enter = (lines) => { if (kept === null) isolate(lines); };
    const leave = () => {
      clearTimeout(leaving);
      if (kept === null) leaving = setTimeout(() => isolate(null), LEAVE);
    };
    const keep = (lines) => {
      kept = kept?.key === lines.key ? null : lines;
      buttons.forEach((button) => button.setAttribute("aria-pressed", String(kept?.key === button.dataset.family)));
      isolate(kept ?? lines);
    };

    const families = [...new Set(metas.map(({ family }) => family))]
      .filter((family) => !page.filters.families.size || page.filters.families.has(family))
      .sort((a, b) => page.data.families[a] - page.data.families[b]);
    const buttons = families.map((family) => {
      const rates = [...new Set(metas.filter((meta) => meta.family === family && meta.best).map(({ rate }) => rate))];
      const best = rates.length ? element("small", {}, `best at ${rates.join(", ")}`) : null;
      const lines = ofFamily(family);
      return element("button", {
        type: "button", "data-family": family, "aria-pressed": "false",
        onmouseenter: () => enter(lines), onmouseleave: leave, onfocus: () => enter(lines), onblur: leave, onclick: () => keep(lines),
      }, element("span", { class: "swatch" }), family, best);
    });
    const dashes = Object.entries(page.data.rates).filter(([rate]) => metas.some((meta) => meta.rate === rate));
    const areTold = new Set(dashes.map(([, dash]) => dash)).size > 1;
    const samples = areTold ? dashes.map(([rate, dash]) => element("span", { class: "dash" }, page.dashSample(dash), rate)) : [];
    const hasPale = metas.some(({ best }) => best === false);
    legend.replaceChildren(...buttons, ...samples,
      element("span", { class: "note" }, hasPale ? "Strong: the best setting of each method. Pale: the others. " : "", "Point at a line or a name to see it alone; click to keep it."));
    page.paintSwatches();

    const drawn = ({ node }) => {
      node.on("plotly_hover", ({ points }) => enter(ofSetting(points[0].data.meta)));
      node.on("plotly_unhover", leave);
      node.on("plotly_click", ({ points }) => keep(ofSetting(points[0].data.meta)));
    };
    return { drawn };
  };
}
