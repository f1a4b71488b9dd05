// Small plots beside each other. They show one panel, and are made when their section is seen.
{
  const { data, element } = page;

  // Names the panel if there are several, or says that nothing was recorded.
  const notesAbove = (hasFigures) => {
    const notes = [];
    if (data.panels.length > 1) {
      const { model, fraction } = data.panels[page.panelShown()];
      const text = `${page.panelName(model, fraction)}: choose another panel in the bar above.`;
      notes.push(element("p", { class: "note of" }, text));
    }
    if (!hasFigures) notes.push(element("p", { class: "note" }, "Nothing recorded."));
    return notes;
  };

  /**
   * Fill an element with small plots, unless it has these plots already.
   *
   * @param {string} name Beginning of the names of saved files.
   * @param {HTMLElement} holder
   * @param {Array<[string, object]>} figures Pairs of title and figure. A figure with a `family` is
   *   left out if the filters hide this method.
   * @param {object} options As for `page.draw`.
   */
  page.showSmallPlots = (name, holder, figures, options = {}) => {
    const { families } = page.filters;
    const showsFigure = ({ family }) => !family || families.size === 0 || families.has(family);
    const shown = figures.filter(([, figure]) => showsFigure(figure));

    const titles = shown.map(([title]) => title);
    const key = `${page.filters.panel} ${titles}`;
    if (holder.dataset.key === key) return;
    holder.dataset.key = key;

    const plots = shown.map(([title, figure], i) => {
      const node = element("div", { class: "plot" });
      const layout = { ...figure.layout, title: { ...figure.layout.title, text: title } };
      page.draw(node, { data: figure.data, layout }, { ...options, name: `${name}-${i + 1}` });
      return element("figure", { class: "curve" }, node);
    });
    holder.replaceChildren(...notesAbove(shown.length > 0), ...plots);
  };

  /** Return the index of the panel that small plots show: the chosen one, or the first. */
  page.panelShown = () => page.filters.panel ?? 0;

  /** Pair each figure with its own title, for `page.showSmallPlots`. */
  page.titled = (figures) => (figures ?? []).map((figure) => [figure.layout.title.text, figure]);

  /**
   * Call `show` with a section's data once the section is seen, and again whenever filters change.
   *
   * @returns {function} Calls `show` at once, if the section was seen.
   */
  page.drawSection = (id, show) => {
    let isSeen = false;
    const draw = async () => {
      if (isSeen) show(await page.lazyData(id));
    };
    page.whenSeen(id, () => {
      isSeen = true;
      draw();
    });
    page.listeners.push(draw);
    return draw;
  };

  // An element with `data-figures` shows the figures of its section, which are listed by panel.
  page.whenLoaded(() => {
    for (const holder of document.querySelectorAll("[data-figures]")) {
      const { id } = holder.closest("section");
      page.drawSection(id, (panels) => {
        page.showSmallPlots(id, holder, page.titled(panels[page.panelShown()]));
      });
    }
  });
}
