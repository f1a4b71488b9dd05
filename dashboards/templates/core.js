// Shared by all scripts: the data, ways to read it, and elements. Text from data is added to the page
// only as text, never as markup. Scripts of sections run behind their section; what needs the whole
// page is left to `page.whenLoaded`.
const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  // Empty or null: no filter.
  filters: { families: new Set(), rates: new Set(), epoch: null, seed: null, panel: null, leading: true },
  card: null, // the point whose card is open: { run, epoch, alone }: of a setting's seeds alone, or their mean
  listeners: [],
  plots: [],
};
page.whenLoaded = (action) => document.addEventListener("DOMContentLoaded", action);
page.changed = () => {
  page.refreshAll();
  page.listeners.forEach((listener) => listener());
  page.storeView();
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
// Fills a <select>; keeps what is chosen where it is still offered.
page.fillSelect = (select, values, name = String, chosen = select.value) => {
  select.replaceChildren(...values.map((value) => page.element("option", { value }, name(value))));
  if (values.map(String).includes(String(chosen))) select.value = chosen;
};

page.shows = (family, rate) => {
  const { families, rates } = page.filters;
  return (!families.size || families.has(family)) && (!rates.size || rates.has(rate));
};
// Panels by their index on the page; without a choice, all are shown.
page.showsPanel = (index) => page.filters.panel === null || index === page.filters.panel;
page.panelOf = (row) => page.data.panels.findIndex(({ model, fraction }) =>
  model === page.cell(row, "model") && fraction === page.cell(row, "forget_fraction"));
page.showsEpoch = (epoch) => page.filters.epoch === null || epoch <= page.filters.epoch;
page.showsSeed = (seed) => page.filters.seed === null || seed === page.filters.seed;
page.showsRow = (row) => page.showsPanel(page.panelOf(row)) && (page.cell(row, "kind") !== "run"
  || (page.shows(page.cell(row, "family"), page.rate(page.cell(row, "learning_rate"))) && page.showsSeed(page.cell(row, "seed"))));

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
{
  // Filters and figures have these texts, too. No two rates have the same one.
  const texts = new Map(Object.keys(page.data.rates).map((text) => [Number(text), text]));
  page.rate = (value) => (value === null ? "none" : texts.get(value));
}

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
  const byPoint = new Map(page.data.rows.map((row) => [`${page.cell(row, "epoch")}@${page.cell(row, "run_id")}`, row]));
  // Settings of several rows, by each of these.
  const settings = new Map();
  for (const [places, values] of page.data.settings) {
    const rows = places.map((place) => page.data.rows[place]);
    const means = Object.fromEntries(page.data.means.map((name, i) => [name, values[i]]));
    rows.forEach((row) => settings.set(row, { rows, means }));
  }
  page.row = (run, epoch) => byPoint.get(`${epoch}@${run}`) ?? null;
  page.seedsOf = (row) => settings.get(row)?.rows ?? [row];
  // What a card shows: the mean of a setting's seeds, or the number of the one that is chosen.
  page.mean = (row, name, alone = false) => {
    const setting = alone ? undefined : settings.get(row);
    return setting === undefined ? page.cell(row, name) : setting.means[name] ?? null;
  };
  // The start ("fine-tuned") or retain model of a row's panel.
  page.referenceRow = (row, kind) =>
    page.data.rows.find((other) => page.cell(other, "kind") === kind && page.place(other) === page.place(row)) ?? null;
}

// Compressed parts of the page are inflated once, when they are first needed.
{
  const inflate = async (id) => {
    const packed = Uint8Array.from(atob(page.byId(id).textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).text();
  };
  const loaded = {};
  page.lazyData = (section) => (loaded[section] ??= inflate(`data-${section}`).then(JSON.parse));
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
// Without a clipboard (a page from disk, a frame) the caller shows the text.
page.copy = (text) => navigator.clipboard?.writeText(text).then(() => true, () => false) ?? false;
