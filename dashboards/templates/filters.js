// Filters: methods, rates, epochs, a seed, a panel.
{
  const { data, element, byId, filters } = page;

  // The first click shows one alone, further clicks add or remove; none means all.
  const chips = (holder, names, key, sample) => {
    const toggle = (name) => {
      if (!filters[key].delete(name)) filters[key].add(name);
      if (filters[key].size === names.length) filters[key].clear();
      page.changed();
    };
    const buttons = names.map((name) => element("button",
      { type: "button", "aria-pressed": "true", "data-family": name, onclick: () => toggle(name) }, sample(name), name));
    holder.append(...buttons);
    page.listeners.push(() => buttons.forEach((button, i) =>
      button.setAttribute("aria-pressed", String(!filters[key].size || filters[key].has(names[i])))));
  };
  chips(byId("families"), Object.keys(data.families), "families", () => element("span", { class: "swatch" }));
  chips(byId("rates"), Object.keys(data.rates), "rates", (rate) => page.dashSample(data.rates[rate]));

  // A select of numbers; the empty choice means no filter.
  const select = (node, key, everything, values, name) => {
    page.fillSelect(node, ["", ...values], (value) => (value === "" ? everything : name(value)));
    node.addEventListener("change", () => {
      filters[key] = node.value === "" ? null : Number(node.value);
      page.changed();
    });
    page.listeners.push(() => { node.value = filters[key] ?? ""; });
    return node;
  };
  const runs = data.rows.filter((row) => page.cell(row, "kind") === "run");
  const distinct = (name) => [...new Set(runs.map((row) => page.cell(row, name)))].sort((a, b) => a - b);
  const labelled = (label, key, everything, values, name) => {
    if (values.length > 1) byId("selects").append(element("label", {}, label, " ", select(element("select", { "aria-label": label }), key, everything, values, name)));
  };
  labelled(data.unit === "step" ? "Steps" : "Epochs", "epoch", "all", distinct("epoch"), (epoch) => `up to ${epoch}`);
  labelled("Seed", "seed", "mean of all", distinct("seed"), (seed) => `${seed} alone`);
  const leading = element("input", { type: "checkbox", onchange: () => { filters.leading = leading.checked; page.changed(); } });
  if (data.panels.some((panel) => panel.figure.data.some((trace) => trace.meta.leading === false))) {
    byId("selects").append(element("label", {}, leading, " Lines for best settings and the front only"));
  }
  // Of several panels one may be chosen: everything that is of another one is hidden.
  byId("panel-choice").hidden = data.panels.length < 2;
  select(byId("panel-only"), "panel", `all ${data.panels.length} panels`, [...data.panels.keys()],
    (i) => page.panelName(data.panels[i].model, data.panels[i].fraction));

  // The filters as text, for print and for screen readers.
  page.listeners.push(() => {
    const parts = [
      filters.families.size ? `methods ${[...filters.families].join(", ")}` : "",
      filters.rates.size ? `learning rates ${[...filters.rates].join(", ")}` : "",
      filters.epoch === null ? "" : `${data.unit}s up to ${filters.epoch}`,
      filters.seed === null ? "" : `seed ${filters.seed} by itself, without intervals and front`,
    ].filter(Boolean);
    byId("shown").textContent = parts.length ? `Shown: ${parts.join("; ")}.` : "";
    byId("reset").hidden = !parts.length;
    byId("filter-count").textContent = parts.length ? ` (${parts.length})` : "";
    byId("filter-open").classList.toggle("active", parts.length > 0);
    leading.checked = filters.leading;
    for (const node of document.querySelectorAll("[data-place]:not(tr)")) node.hidden = !page.showsPanel(Number(node.dataset.place));
  });
  byId("reset").addEventListener("click", () => {
    Object.assign(filters, { families: new Set(), rates: new Set(), epoch: null, seed: null });
    page.changed();
  });

  // The filters are folded behind a button that has their number.
  const opener = byId("filter-open");
  const fold = (folded) => {
    byId("filters").hidden = folded;
    opener.setAttribute("aria-expanded", String(!folded));
  };
  opener.hidden = !runs.length;
  opener.addEventListener("click", () => fold(!byId("filters").hidden));
  byId("filters").addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    fold(true);
    opener.focus();
  });
  // Also when a link or the reader has changed the colours of the page.
  page.listeners.push(() => page.paintSwatches());
}
