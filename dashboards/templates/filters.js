// Filters: methods, rates, one setting, epochs, a seed.
{
  const { data, element, byId, filters } = page;
  const FEW = 8;

  // The first click shows one alone, further clicks add or remove; none means all.
  const toggle = (chosen, name, count) => {
    if (chosen.has(name)) chosen.delete(name); else chosen.add(name);
    if (chosen.size === count) chosen.clear();
    page.changed();
  };
  const chips = (holder, names, chosen, sample) => {
    const buttons = names.map((name) => element("button",
      { type: "button", "aria-pressed": "true", onclick: () => toggle(chosen, name, names.length) }, sample(name), name));
    holder.append(...buttons);
    page.listeners.push(() => buttons.forEach((button, i) =>
      button.setAttribute("aria-pressed", String(!chosen.size || chosen.has(names[i])))));
    return buttons;
  };

  const families = Object.keys(data.families);
  chips(byId("families"), families, filters.families, () => element("span", { class: "swatch" }))
    .forEach((button, i) => { button.dataset.family = families[i]; });

  // A select whose choices may change; the empty choice means no filter.
  const select = (label, everything, choices, key, read = (value) => value) => {
    const node = element("select", { "aria-label": label, onchange: () => {
      filters[key] = node.value === "" ? null : read(node.value);
      page.changed();
    } });
    const holder = element("label", {}, label, " ", node);
    const fill = () => {
      const found = choices();
      node.replaceChildren(element("option", { value: "" }, everything), ...found);
      holder.hidden = !found.length;
      node.value = filters[key] ?? "";
    };
    page.listeners.push(fill);
    byId("selects").append(holder);
    return holder;
  };
  const option = (value, text = String(value)) => element("option", { value }, text);
  const distinct = (name, rows = data.rows) => [...new Set(rows.map((row) => page.cell(row, name)))];
  const runs = data.rows.filter((row) => page.cell(row, "kind") === "run");

  const rates = Object.keys(data.rates);
  if (rates.length <= FEW) {
    chips(byId("rates"), rates, filters.rates, (rate) => page.dashSample(data.rates[rate]));
  } else { // as a search may try
    byId("rates").parentNode.hidden = true;
    const numbers = rates.filter((rate) => Number.isFinite(Number(rate))).sort((a, b) => a - b);
    select("Learning rate from", "lowest", () => numbers.map((rate) => option(Number(rate), rate)), "from", Number);
    select("Learning rate to", "highest", () => numbers.map((rate) => option(Number(rate), rate)), "to", Number);
  }

  select("Setting", "all of the method", () => {
    const [only, another] = filters.families;
    const found = only && !another ? distinct("method", runs.filter((row) => page.cell(row, "family") === only)) : [];
    if (!found.includes(filters.setting)) filters.setting = null;
    return found.length > 1 ? found.map((name) => option(name)) : [];
  }, "setting");
  const epochs = distinct("epoch", runs).sort((a, b) => a - b);
  select("Epochs", "all", () => epochs.length < 2 ? [] : [
    element("optgroup", { label: "up to" }, ...epochs.slice(0, -1).map((epoch) => option(`to${epoch}`, `up to ${epoch}`))),
    element("optgroup", { label: "only" }, ...epochs.map((epoch) => option(epoch, `only ${epoch}`))),
  ], "epoch");
  const seeds = distinct("seed", runs).sort((a, b) => a - b);
  select("Seed", "mean of all", () => seeds.length < 2 ? [] : seeds.map((seed) => option(seed, `${seed} alone`)), "seed", Number);

  const hasOthers = data.panels.some((panel) => panel.figure.data.some((trace) => trace.meta.leading === false));
  const leading = element("input", { type: "checkbox", onchange: () => { filters.leading = leading.checked; page.changed(); } });
  if (hasOthers) byId("selects").append(element("label", {}, leading, " Lines for best settings and the front only"));

  // The filters as text, for print and for screen readers.
  const description = () => {
    const listed = (set) => [...set].join(", ");
    const parts = [
      filters.families.size ? `methods ${listed(filters.families)}` : "",
      filters.rates.size ? `learning rates ${listed(filters.rates)}` : "",
      filters.from !== null ? `learning rates from ${page.rate(filters.from)}` : "",
      filters.to !== null ? `learning rates up to ${page.rate(filters.to)}` : "",
      filters.setting !== null ? `setting ${filters.setting}` : "",
      filters.epoch === null ? "" : filters.epoch.startsWith("to") ? `epochs up to ${filters.epoch.slice(2)}` : `epoch ${filters.epoch} alone`,
      filters.seed === null ? "" : `seed ${filters.seed} by itself, without intervals and front`,
    ].filter(Boolean);
    return parts.length ? `Shown: ${parts.join("; ")}.` : "";
  };
  page.listeners.push(() => {
    byId("reset").hidden = !page.filtered();
    byId("shown").textContent = description();
    leading.checked = filters.leading;
  });
  byId("reset").addEventListener("click", () => {
    filters.families.clear();
    filters.rates.clear();
    for (const name of ["from", "to", "setting", "epoch", "seed"]) filters[name] = null;
    page.changed();
  });
  page.paintSwatches();

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
  page.listeners.push(() => {
    const active = page.activeFilters();
    opener.classList.toggle("active", active > 0);
    byId("filter-count").textContent = active ? ` (${active})` : "";
  });

  // Of several panels one may be chosen: everything that is of another one is hidden.
  const only = byId("panel-only");
  byId("panel-choice").hidden = data.panels.length < 2;
  only.append(option("", `all ${data.panels.length} panels`), ...data.panels.map((panel, i) => option(i, page.panelName(panel.model, panel.fraction))));
  only.addEventListener("change", () => {
    filters.panel = only.value === "" ? null : Number(only.value);
    page.changed();
  });
  page.listeners.push(() => {
    only.value = filters.panel ?? "";
    for (const node of document.querySelectorAll("[data-place]:not(tr)")) node.hidden = !page.showsPanel(Number(node.dataset.place));
  });
}
