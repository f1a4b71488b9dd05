// Small plots beside each other, drawn when their section comes into view.
{
  const { data, element, byId } = page;
  const shownPlots = {}; // by name

  // Outliers are outside the axis range only while all runs are shown; with filters, all is in range.
  const filterable = (figure, text) => ({
    data: figure.data,
    get layout() {
      const outliers = figure.layout.meta?.outside?.length;
      const { range, ...axis } = figure.layout.yaxis;
      return { ...figure.layout, title: { ...figure.layout.title, text }, yaxis: outliers && page.filtered() ? axis : figure.layout.yaxis };
    },
  });
  const outliersText = (figure) => {
    const outliers = figure.layout.meta?.outside ?? [];
    if (!outliers.length || page.filtered()) return "";
    const more = outliers.length > 3 ? `, and ${outliers.length - 3} more` : "";
    return `Beyond the frame: ${outliers.slice(0, 3).join("; ")}${more}.`;
  };
  const saveButtons = (plot) => element("span", { class: "save" }, ...["svg", "png"].flatMap((format) =>
    [" ", element("button", { type: "button", class: "link", onclick: () => page.save(plot, format) }, format.toUpperCase())]));

  // Fills `holder` with figures: pairs of title and figure; options as of `page.draw`.
  page.showSmallPlots = (name, holder, figures, options = {}) => {
    const { families } = page.filters;
    const shown = figures.filter(([, { family }]) => !family || !families.size || families.has(family));
    const key = `${page.filters.panel} ${shown.map(([text]) => text)}`;
    if (holder.dataset.key === key) return;
    holder.dataset.key = key;
    shownPlots[name] = shown.map(([text, figure], i) => {
      const node = element("div", { class: "plot" });
      const note = element("span", { class: "far" }, outliersText(figure));
      const plot = page.draw(node, filterable(figure, text), { ...options, name: `${name}-${i + 1}` });
      return { note, figure, block: element("figure", { class: "curve" }, node, element("figcaption", { class: "notes" }, note, saveButtons(plot))) };
    });
    const several = data.panels.length > 1;
    const { model, fraction } = data.panels[page.panelShown()] ?? {};
    holder.replaceChildren(
      ...(several ? [element("p", { class: "note of" }, `${page.panelName(model, fraction)}: choose another panel in the bar above.`)] : []),
      ...shownPlots[name].map((one) => one.block),
      ...(shown.length ? [] : [element("p", { class: "note" }, "Nothing recorded.")]));
  };
  page.listeners.push(() => {
    for (const { note, figure } of Object.values(shownPlots).flat()) note.textContent = outliersText(figure);
  });
  // Small plots are of one panel: the chosen one, or the first.
  page.panelShown = () => page.filters.panel ?? 0;
  // Calls `show` with the figures of the panel, once the section is seen and whenever filters change.
  page.drawSection = (id, show) => {
    let seen = false;
    const draw = async () => { if (seen) show((await page.lazyData(id))[page.panelShown()]); };
    page.whenSeen(id, () => { seen = true; draw(); });
    page.listeners.push(draw);
    return draw;
  };
  for (const holder of document.querySelectorAll("[data-figures]")) {
    const { id } = holder.closest("section");
    page.drawSection(id, (figures) =>
      page.showSmallPlots(id, holder, (figures ?? []).map((figure) => [figure.layout.title.text, figure])));
  }
}
