// What all scripts of the page share: the object `page` with the report's data, functions that read
// these data, and functions that make elements.
//
// Text from data is added to the page only as text, never as markup, so that nothing in a record can
// become a script. The scripts of a section run directly behind the section's markup. They pass
// whatever needs the whole page to `page.whenLoaded`.
//
// A row is one evaluation: its values in the order of `page.data.columns`. Its `kind` is "run",
// "fine-tuned" (the start model) or "retain". A panel is one model and split, and is known by its
// index in `page.data.panels`.

const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  // An empty set, or null, filters nothing.
  filters: {
    families: new Set(),
    rates: new Set(), // texts of learning rates, such as "1e-4"
    epoch: null, // the last epoch that is shown
    seed: null,
    panel: null,
    leading: true, // lines only for best settings and the front
  },
  // The point whose card is open: { run, epoch, alone }, or null. With `alone`, the card shows only
  // this run. Otherwise it shows the mean over the seeds of the run's setting.
  card: null,
  listeners: [], // functions that are called after every change of the filters
  plots: [], // what `page.draw` returned
};

page.whenLoaded = (action) => document.addEventListener("DOMContentLoaded", action);

/** Show the page with changed filters or colours, and record them in the address. */
page.changed = () => {
  page.refreshAll();
  page.listeners.forEach((listener) => listener());
  page.storeView();
};

// ---- Elements ----

/**
 * Make an element.
 *
 * @param {string} tag
 * @param {object} attributes A name that begins with "on" is an event with its listener. Null and
 *   false leave an attribute out, and true gives it an empty value.
 * @param {...(Node | string | null | undefined)} children Null and undefined are left out.
 */
page.element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") {
      node.className = value;
    } else if (name.startsWith("on")) {
      node.addEventListener(name.slice("on".length), value);
    } else if (value !== null && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

page.byId = (id) => document.getElementById(id);

/**
 * Fill a select element with options, and select `chosen` if it is among them.
 *
 * @param {HTMLSelectElement} select
 * @param {Array} values
 * @param {function} name Returns the text of a value's option.
 * @param chosen The value to select: by default, the one that was selected before.
 */
page.fillSelect = (select, values, name = String, chosen = select.value) => {
  const options = values.map((value) => page.element("option", { value }, name(value)));
  select.replaceChildren(...options);
  if (values.map(String).includes(String(chosen))) select.value = chosen;
};

/** Call `action` once, when the element with this id is about to come into view. */
page.whenSeen = (id, action) => {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    action();
  }, { rootMargin: "600px" });
  observer.observe(page.byId(id));
};

/**
 * Copy a text to the clipboard.
 *
 * @returns {Promise<boolean>} False if the browser does not allow it, for example to a page that was
 *   opened from disk or in a frame. The caller then shows the text.
 */
page.copy = async (text) => {
  if (!navigator.clipboard) return false;
  return navigator.clipboard.writeText(text).then(() => true, () => false);
};

// ---- Rows ----

{
  const indexOfColumn = Object.fromEntries(page.data.columns.map((name, index) => [name, index]));

  /** Return a row's value in a column, or null if there is none. */
  page.cell = (row, name) => row[indexOfColumn[name]] ?? null;
}

{
  const keyOf = (run, epoch) => `${epoch}@${run}`;
  const rowByKey = new Map();
  for (const row of page.data.rows) {
    rowByKey.set(keyOf(page.cell(row, "run_id"), page.cell(row, "epoch")), row);
  }

  /** Return the row of a run after an epoch, or null. */
  page.row = (run, epoch) => rowByKey.get(keyOf(run, epoch)) ?? null;
}

{
  // A setting after an epoch: the rows of its seeds, and its means by column. A setting of a single
  // row is in the data only if its means are not simply the row's numbers.
  const settingOfRow = new Map();
  for (const [rowIndices, meanValues] of page.data.settings) {
    const rows = rowIndices.map((index) => page.data.rows[index]);
    const means = Object.fromEntries(page.data.means.map((name, i) => [name, meanValues[i]]));
    for (const row of rows) settingOfRow.set(row, { rows, means });
  }

  /** Return the rows of all seeds of a row's setting, at the same epoch. */
  page.seedsOf = (row) => settingOfRow.get(row)?.rows ?? [row];

  /**
   * Return what a card shows in a column: the mean over the seeds of the row's setting, or the
   * row's own number if it is shown alone.
   */
  page.mean = (row, name, alone = false) => {
    const setting = settingOfRow.get(row);
    if (alone || setting === undefined) return page.cell(row, name);
    return setting.means[name] ?? null;
  };
}

/**
 * Return the row of the start or retain model of a row's panel, or null.
 *
 * @param {Array} row
 * @param {"fine-tuned" | "retain"} kind
 */
page.referenceRow = (row, kind) => {
  const place = page.place(row);
  const isReference = (other) => page.cell(other, "kind") === kind && page.place(other) === place;
  return page.data.rows.find(isReference) ?? null;
};

/** Return the index of a row's panel, or -1 if the page has no panel of its model and split. */
page.panelOf = (row) => {
  const rowModel = page.cell(row, "model");
  const rowSplit = page.cell(row, "forget_fraction");
  return page.data.panels.findIndex(({ model, fraction }) => model === rowModel && fraction === rowSplit);
};

// The kept and the forgotten headline metric, in this order: { column, label, digits, name }.
page.headline = page.data.headline;

// ---- Filters ----

/** Whether the filters show a method and a learning rate, both given as the texts of the filters. */
page.shows = (family, rate) => {
  const { families, rates } = page.filters;
  const showsFamily = families.size === 0 || families.has(family);
  const showsRate = rates.size === 0 || rates.has(rate);
  return showsFamily && showsRate;
};

page.showsPanel = (index) => page.filters.panel === null || index === page.filters.panel;

page.showsEpoch = (epoch) => page.filters.epoch === null || epoch <= page.filters.epoch;

page.showsSeed = (seed) => page.filters.seed === null || seed === page.filters.seed;

/** Whether the filters show a row, whatever its epoch. Only the panel hides start and retain models. */
page.showsRow = (row) => {
  if (!page.showsPanel(page.panelOf(row))) return false;
  if (page.cell(row, "kind") !== "run") return true;
  const rate = page.rate(page.cell(row, "learning_rate"));
  return page.shows(page.cell(row, "family"), rate) && page.showsSeed(page.cell(row, "seed"));
};

// ---- Numbers and names as text ----

/** Write a number with a true minus sign, and a missing one as an empty text. */
page.number = (value, digits = 3) => {
  if (value === null || value === undefined) return "";
  return value.toFixed(digits).replace("-", "−");
};

/** Write a number of a metric's column with the column's decimals. */
page.metric = (name, value) => {
  if (value === null || value === undefined) return "";
  const { digits } = page.data.metrics[name];
  // A p-value such as 1e-9 would be rounded to 0, so its first digits are shown.
  const isRoundedToZero = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  const text = isRoundedToZero ? value.toExponential(2) : value.toFixed(digits);
  return text.replaceAll("-", "−");
};

{
  // Filters and figures have the same texts, and no two learning rates share one.
  const textOfRate = new Map();
  for (const text of Object.keys(page.data.rates)) textOfRate.set(Number(text), text);

  /** Write a learning rate. Null is the rate of a method that does not train. */
  page.rate = (value) => (value === null ? "none" : textOfRate.get(value));
}

/** Write a split: a name such as "forget10", or a fraction to forget such as 0.05 ("5 %"). */
page.splitCell = (split) => {
  if (typeof split === "string") return split;
  const percent = Number((100 * split).toFixed(6)); // without the error of 100 · 0.07
  return `${percent} %`;
};

page.panelName = (model, split) => {
  const verb = typeof split === "string" ? "" : "forget ";
  return `${model}, ${verb}${page.splitCell(split)}`;
};

/** Name a row's panel. */
page.place = (row) => page.panelName(page.cell(row, "model"), page.cell(row, "forget_fraction"));

page.settingName = (row) => {
  const rate = page.rate(page.cell(row, "learning_rate"));
  return `${page.cell(row, "method")}, learning rate ${rate}`;
};

page.runName = (row) => {
  const kind = page.cell(row, "kind");
  if (kind === "run") return `${page.settingName(row)}, seed ${page.cell(row, "seed")}`;
  return { "fine-tuned": "start model", retain: "retain model" }[kind];
};

// ---- Compressed parts of the page ----

{
  // The counterpart of `compressed` in `page_data.py`.
  const inflate = async (id) => {
    const compressed = atob(page.byId(id).textContent);
    const bytes = Uint8Array.from(compressed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Response(stream).text();
  };

  const promiseOfSection = {};

  /** Return a promise of a section's data. They are inflated when they are first asked for. */
  page.lazyData = (section) => {
    promiseOfSection[section] ??= inflate(`data-${section}`).then(JSON.parse);
    return promiseOfSection[section];
  };

  // Resolves to Plotly, when its script has run.
  page.plotly = inflate("plotly").then((code) => {
    document.head.append(page.element("script", {}, code));
    return Plotly;
  });
}
