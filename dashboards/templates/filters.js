// The filters: methods, learning rates, epochs, a seed, a panel, and whether all settings have lines.
{
  const { data, element, byId, filters } = page;

  // ---- Methods and learning rates: buttons that are pressed ----

  /**
   * Add a button for each value of a filter that can have several.
   *
   * The first click shows only the clicked value, and further clicks add or remove others. Without
   * a chosen value, and with all of them, nothing is filtered.
   *
   * @param {HTMLElement} holder
   * @param {string[]} values
   * @param {"families" | "rates"} key
   * @param {function} sample Draws a value's sample, which stands before its name.
   */
  const addChips = (holder, values, key, sample) => {
    const toggle = (value) => {
      const wasChosen = filters[key].delete(value);
      if (!wasChosen) filters[key].add(value);
      if (filters[key].size === values.length) filters[key].clear();
      page.changed();
    };

    const buttonOfValue = new Map();
    for (const value of values) {
      const button = element("button", {
        type: "button",
        "aria-pressed": "true",
        "data-family": value, // a swatch takes its colour from it
        onclick: () => toggle(value),
      }, sample(value), value);
      buttonOfValue.set(value, button);
    }
    holder.append(...buttonOfValue.values());

    page.listeners.push(() => {
      for (const [value, button] of buttonOfValue) {
        const isShown = filters[key].size === 0 || filters[key].has(value);
        button.setAttribute("aria-pressed", String(isShown));
      }
    });
  };

  const swatchSample = () => element("span", { class: "swatch" });
  const dashSample = (rate) => page.dashSample(data.rates[rate]);
  addChips(byId("families"), Object.keys(data.families), "families", swatchSample);
  addChips(byId("rates"), Object.keys(data.rates), "rates", dashSample);

  // ---- Epochs, seed and panel: selects of numbers ----

  const NO_FILTER = ""; // value of the first option

  /**
   * Let a select element set a filter.
   *
   * @param {HTMLSelectElement} select
   * @param {"epoch" | "seed" | "panel"} key
   * @param {string} nameOfAll Text of the option that filters nothing.
   * @param {number[]} values
   * @param {function} name Returns the text of a value's option.
   */
  const bindSelect = (select, key, nameOfAll, values, name) => {
    const textOf = (value) => (value === NO_FILTER ? nameOfAll : name(value));
    page.fillSelect(select, [NO_FILTER, ...values], textOf);
    select.addEventListener("change", () => {
      filters[key] = select.value === NO_FILTER ? null : Number(select.value);
      page.changed();
    });
    page.listeners.push(() => {
      select.value = filters[key] ?? NO_FILTER;
    });
  };

  const runs = data.rows.filter((row) => page.cell(row, "kind") === "run");

  const distinctNumbers = (column) => {
    const numbers = new Set(runs.map((row) => page.cell(row, column)));
    return [...numbers].sort((a, b) => a - b);
  };

  // Adds a select with a label, if there is anything to choose.
  const addSelect = (label, key, nameOfAll, name) => {
    const values = distinctNumbers(key);
    if (values.length < 2) return;
    const select = element("select", { "aria-label": label });
    bindSelect(select, key, nameOfAll, values, name);
    byId("selects").append(element("label", {}, label, " ", select));
  };

  const epochLabel = data.unit === "step" ? "Steps" : "Epochs";
  addSelect(epochLabel, "epoch", "all", (epoch) => `up to ${epoch}`);
  addSelect("Seed", "seed", "mean of all", (seed) => `${seed} alone`);

  byId("panel-choice").hidden = data.panels.length < 2;
  const panelName = (index) => page.panelName(data.panels[index].model, data.panels[index].fraction);
  const panelIndices = [...data.panels.keys()];
  bindSelect(byId("panel-only"), "panel", `all ${data.panels.length} panels`, panelIndices, panelName);

  // ---- Lines ----

  const leadingBox = element("input", {
    type: "checkbox",
    onchange: () => {
      filters.leading = leadingBox.checked;
      page.changed();
    },
  });
  const isOtherSetting = (trace) => trace.meta.leading === false;
  if (data.panels.some((panel) => panel.figure.data.some(isOtherSetting))) {
    byId("selects").append(
      element("label", {}, leadingBox, " Lines for best settings and the front only"));
  }

  // ---- What is shown, in words ----

  // For print and screen readers.
  const describeFilters = () => {
    const parts = [];
    if (filters.families.size) parts.push(`methods ${[...filters.families].join(", ")}`);
    if (filters.rates.size) parts.push(`learning rates ${[...filters.rates].join(", ")}`);
    if (filters.epoch !== null) parts.push(`${data.unit}s up to ${filters.epoch}`);
    if (filters.seed !== null) {
      parts.push(`seed ${filters.seed} by itself, without intervals and front`);
    }
    return parts;
  };

  page.listeners.push(() => {
    const parts = describeFilters();
    byId("shown").textContent = parts.length ? `Shown: ${parts.join("; ")}.` : "";
    byId("reset").hidden = parts.length === 0;
    byId("filter-count").textContent = parts.length ? ` (${parts.length})` : "";
    byId("filter-open").classList.toggle("active", parts.length > 0);
    leadingBox.checked = filters.leading;
    // Parts of a panel that is not chosen are hidden. The rows of tables are hidden in `tables.js`.
    for (const node of document.querySelectorAll("[data-place]:not(tr)")) {
      node.hidden = !page.showsPanel(Number(node.dataset.place));
    }
  });

  byId("reset").addEventListener("click", () => {
    Object.assign(filters, { families: new Set(), rates: new Set(), epoch: null, seed: null });
    page.changed();
  });

  // ---- The button that folds and unfolds the filters ----

  const opener = byId("filter-open");
  const setFolded = (isFolded) => {
    byId("filters").hidden = isFolded;
    opener.setAttribute("aria-expanded", String(!isFolded));
  };
  opener.hidden = runs.length === 0;
  opener.addEventListener("click", () => setFolded(!byId("filters").hidden));
  byId("filters").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    setFolded(true);
    opener.focus();
  });

  // A link or the reader may have changed the colours of the page together with the filters.
  page.listeners.push(() => page.paintSwatches());
}
