// Small plots beside each other, drawn when their section comes into view: curves and training steps.
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

  // Options of a select, one per panel.
  page.panelOptions = () => data.panels.map((panel, i) =>
    element("option", { value: i, "data-of": i }, page.panelName(panel.model, panel.fraction)));
  // A select of panels follows the choice of one for the whole page; `show` draws `#<name>-plots`.
  page.followPanel = (select, name, show) => page.listeners.push(() => {
    const option = [...select.options].find((one) => Number(one.dataset.of) === page.filters.panel);
    if (!option || option.selected) return;
    select.value = option.value;
    if (byId(`${name}-plots`)?.dataset.count !== undefined) show();
  });

  // Fills `#<name>-plots` with figures: pairs of title and figure; options as of `page.draw`.
  page.showSmallPlots = (name, figures, options = {}) => {
    const blocks = figures.map(([text, figure], i) => {
      const node = element("div", { class: "plot" });
      const note = element("span", { class: "far" }, outliersText(figure));
      const plot = page.draw(node, filterable(figure, text), { ...options, name: `${name}-${i + 1}` });
      const buttons = ["svg", "png"].map((format) =>
        element("button", { type: "button", class: "link", onclick: () => page.save(plot, format) }, format.toUpperCase()));
      const block = element("figure", { class: "curve" }, node,
        element("figcaption", { class: "notes" }, note, element("span", { class: "save" }, buttons[0], " ", buttons[1])));
      return { block, note, figure };
    });
    const holder = byId(`${name}-plots`);
    holder.dataset.count = blocks.length;
    holder.replaceChildren(...blocks.map((one) => one.block));
    if (!blocks.length) holder.append(element("p", { class: "note" }, "Nothing recorded."));
    shownPlots[name] = blocks;
  };
  page.listeners.push(() => {
    for (const { note, figure } of Object.values(shownPlots).flat()) note.textContent = outliersText(figure);
  });
}
