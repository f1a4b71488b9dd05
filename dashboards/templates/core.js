// Shared by all scripts: the data, ways to read it, and elements. Text from data is added to the page
// only as text, never as markup.
const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  // Empty or null: no filter.
  filters: { families: new Set(), rates: new Set(), from: null, to: null, setting: null, epoch: null, seed: null, panel: null, leading: true },
  card: null, // the point whose card is open: { run, epoch, alone }: of a setting's seeds alone, or their mean
  listeners: [],
  plots: [],
};

page.element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};
page.headline = page.data.headline; // what is kept, what is forgotten: { column, label, digits, name }
page.byId = (id) => document.getElementById(id);

page.shows = (family, rate, method = null) => {
  const { families, rates, from, to, setting } = page.filters;
  const number = Number(rate);
  return (!families.size || families.has(family))
    && (!rates.size || rates.has(rate))
    && (from === null || number >= from) && (to === null || number <= to)
    && (setting === null || method === null || method === setting);
};
// The number of kinds of filters in use; the choice of a panel has its own place, and is none.
page.activeFilters = () => {
  const { families, rates, from, to, setting, epoch, seed } = page.filters;
  return [families.size, rates.size].filter(Boolean).length + [from, to, setting, epoch, seed].filter((one) => one !== null).length;
};
page.filtered = () => page.activeFilters() > 0;
// Panels by their index on the page; without a choice, all are shown.
page.showsPanel = (index) => page.filters.panel === null || index === page.filters.panel;
page.showsRow = (row) => {
  if (page.filters.panel === null) return true;
  const { model, fraction } = page.data.panels[page.filters.panel];
  return model === page.cell(row, "model") && fraction === page.cell(row, "forget_fraction");
};
// An epoch filter is "3" (that epoch alone) or "to3" (all up to it).
page.showsEpoch = (epoch) => {
  const filter = page.filters.epoch;
  if (filter === null) return true;
  return filter.startsWith("to") ? epoch <= Number(filter.slice(2)) : epoch === Number(filter);
};
page.showsSeed = (seed) => page.filters.seed === null || seed === page.filters.seed;

// Numbers have a true minus sign.
page.number = (value, digits = 3) =>
  value === null || value === undefined ? "" : value.toFixed(digits).replace("-", "−");
// A number of a column: with its decimals; one that they would round to 0 by its first digits.
page.metric = (name, value) => {
  if (value === null || value === undefined) return "";
  const { digits } = page.data.metrics[name];
  const tiny = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  return (tiny ? value.toExponential(2) : value.toFixed(digits)).replaceAll("-", "−");
};
// A split: a fraction to forget, or a name.
page.splitCell = (split) => (typeof split === "string" ? split : `${Number((100 * split).toFixed(6))} %`);
page.panelName = (model, split) => `${model}, ${typeof split === "string" ? "" : "forget "}${page.splitCell(split)}`;
page.rate = (value) => {
  if (value === null) return "none";
  const [mantissa, exponent] = value.toExponential().split("e");
  return `${Number(Number(mantissa).toFixed(6))}e${Number(exponent)}`;
};

{
  const column = Object.fromEntries(page.data.columns.map((name, i) => [name, i]));
  page.cell = (row, name) => row[column[name]] ?? null;
}
page.settingName = (row) => `${page.cell(row, "method")}, learning rate ${page.rate(page.cell(row, "learning_rate"))}`;
page.runName = (row) => page.cell(row, "kind") === "run"
  ? `${page.settingName(row)}, seed ${page.cell(row, "seed")}`
  : { "fine-tuned": "start model", retain: "retain model" }[page.cell(row, "kind")];
page.place = (row) => page.panelName(page.cell(row, "model"), page.cell(row, "forget_fraction"));

{
  const key = (run, epoch) => `${epoch}@${run}`;
  const setting = (row) => ["model", "forget_fraction", "method", "learning_rate", "epoch"].map((name) => page.cell(row, name)).join("\n");
  const byPoint = new Map();
  const bySetting = new Map();
  for (const row of page.data.rows) {
    byPoint.set(key(page.cell(row, "run_id"), page.cell(row, "epoch")), row);
    if (!bySetting.has(setting(row))) bySetting.set(setting(row), []);
    bySetting.get(setting(row)).push(row);
  }
  // What a card shows: the mean of a setting's seeds, or the row of the one that is chosen.
  page.mean = (row, name, alone = false) => {
    const values = (alone ? [row] : page.seedsOf(row)).map((one) => page.cell(one, name));
    return values.includes(null) ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
  };
  page.row = (run, epoch) => byPoint.get(key(run, epoch)) ?? null;
  page.seedsOf = (row) => bySetting.get(setting(row)) ?? [];
  // The start ("fine-tuned") or retain model of a row's panel.
  page.referenceRow = (row, kind) => page.data.rows.find((other) => page.cell(other, "kind") === kind
    && page.cell(other, "model") === page.cell(row, "model")
    && page.cell(other, "forget_fraction") === page.cell(row, "forget_fraction")) ?? null;
}

// Compressed parts of the page are inflated once, when they are first needed.
{
  const inflate = async (id) => {
    const letters = atob(page.byId(id).textContent);
    const packed = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i); // far faster than `from`
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).text();
  };
  let lazyData = null;
  page.lazyData = async (section) => (await (lazyData ??= inflate("lazy-data").then(JSON.parse)))[section];
  page.plotly = inflate("plotly").then((code) => {
    document.head.append(page.element("script", {}, code));
    return Plotly;
  });
}

page.whenSeen = (id, action) => {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    action();
  }, { rootMargin: "600px" });
  observer.observe(page.byId(id));
};

page.changed = () => {
  page.refreshAll();
  page.listeners.forEach((listener) => listener());
  page.storeView();
};
