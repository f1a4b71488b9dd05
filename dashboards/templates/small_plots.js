// Small plots beside each other, drawn when their section comes into view.
{
  const { data, element } = page;

  // Fills `holder` with figures: pairs of title and figure; options as of `page.draw`.
  page.showSmallPlots = (name, holder, figures, options = {}) => {
    const { families } = page.filters;
    const shown = figures.filter(([, { family }]) => !family || !families.size || families.has(family));
    const key = `${page.filters.panel} ${shown.map(([text]) => text)}`;
    if (holder.dataset.key === key) return;
    holder.dataset.key = key;
    const { model, fraction } = data.panels[page.panelShown()] ?? {};
    holder.replaceChildren(
      ...(data.panels.length > 1 ? [element("p", { class: "note of" }, `${page.panelName(model, fraction)}: choose another panel in the bar above.`)] : []),
      ...(shown.length ? [] : [element("p", { class: "note" }, "Nothing recorded.")]),
      ...shown.map(([text, { data: traces, layout }], i) => {
        const node = element("div", { class: "plot" });
        page.draw(node, { data: traces, layout: { ...layout, title: { ...layout.title, text } } }, { ...options, name: `${name}-${i + 1}` });
        return element("figure", { class: "curve" }, node);
      }));
  };
  // Small plots are of one panel: the chosen one, or the first.
  page.panelShown = () => page.filters.panel ?? 0;
  // Calls `show` with the section's data, once it is seen and whenever filters change.
  page.drawSection = (id, show) => {
    let seen = false;
    const draw = async () => { if (seen) show(await page.lazyData(id)); };
    page.whenSeen(id, () => { seen = true; draw(); });
    page.listeners.push(draw);
    return draw;
  };
  page.whenLoaded(() => {
    for (const holder of document.querySelectorAll("[data-figures]")) {
      const { id } = holder.closest("section");
      page.drawSection(id, (panels) =>
        page.showSmallPlots(id, holder, (panels[page.panelShown()] ?? []).map((figure) => [figure.layout.title.text, figure])));
    }
  });
}
