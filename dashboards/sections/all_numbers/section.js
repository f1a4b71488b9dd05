// The table of all numbers: searched, sorted, and printed in portions.
{
  const { data, element, byId, cell } = page;
  const PORTION = 60;
  const FIELDS = {
    method: "method", model: "model", forget_fraction: "forget", learning_rate: "rate", seed: "seed", epoch: "epoch",
    status: "status", run_id: "run",
  };
  const title = (name) => FIELDS[name] ?? data.metrics[name].label;
  const texts = new Set(["method", "model", "status", "run_id"]);
  // Further columns are values by the number of the row, and stand before the status once chosen.
  const further = new Map();
  const places = new Map(data.rows.map((row, i) => [row, i]));
  const columns = data.columns.filter((name) => name in FIELDS || name in data.metrics);
  const value = (row, name) => (further.has(name) ? further.get(name)[places.get(row)] : cell(row, name));
  const valueText = (row, name) => {
    const shown = value(row, name);
    if (shown === null) return "";
    if (name in data.metrics) return page.metric(name, shown);
    if (name === "learning_rate") return page.rate(shown);
    return name === "forget_fraction" ? page.splitCell(shown) : String(shown);
  };

  let order = null;
  let count = PORTION;
  const passesFilters = (row) => page.showsRow(row) && (cell(row, "kind") !== "run"
    || (page.shows(cell(row, "family"), page.rate(cell(row, "learning_rate")), cell(row, "method"))
      && page.showsEpoch(cell(row, "epoch")) && page.showsSeed(cell(row, "seed"))));
  const matches = () => {
    const words = byId("table-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => passesFilters(row)
      && words.every((word) => ["method", "model", "status", "run_id", "kind"].some((name) => cell(row, name).toLowerCase().includes(word))));
    return order ? rows.sort((a, b) => page.compareValues(value(a, order.name), value(b, order.name), order.direction)) : rows;
  };
  const line = (row) => {
    const button = element("button", { type: "button", class: "link", onclick: () => page.select(cell(row, "run_id"), cell(row, "epoch")) }, cell(row, "method"));
    const cells = columns.map((name) => name === "method"
      ? element("th", { scope: "row" }, element("span", { class: "swatch" }), button)
      : element("td", { class: texts.has(name) ? "" : "num" }, valueText(row, name)));
    return element("tr", { class: cell(row, "kind") === "run" ? "" : "reference", "data-family": cell(row, "family") }, ...cells);
  };
  const render = () => {
    const rows = matches();
    byId("table").tBodies[0].replaceChildren(...rows.slice(0, count).map(line));
    byId("table-more").hidden = rows.length <= count;
    byId("table-count").textContent = `${Math.min(count, rows.length)} of ${rows.length} rows`;
    page.paintSwatches();
  };
  const restart = () => { count = PORTION; render(); };
  const heads = element("tr");
  const head = (name) => {
    const node = element("th", { scope: "col", class: texts.has(name) ? "" : "num" },
      element("button", { type: "button" }, title(name)));
    node.firstChild.addEventListener("click", () => {
      order = { name, direction: page.nextDirection(node, !texts.has(name)) };
      restart();
    });
    return node;
  };
  heads.append(...columns.map(head));
  byId("table").tHead.append(heads);
  const chooser = byId("table-further");
  if (chooser) {
    const offered = Object.keys(data.metrics).filter((name) => !columns.includes(name));
    chooser.append(element("option", { value: "" }, `${offered.length} more`),
      ...offered.map((name) => element("option", { value: name }, title(name))), element("option", { value: "*" }, "all of them"));
    chooser.addEventListener("change", async () => {
      const all = await page.lazyData("numbers");
      const chosen = chooser.value === "*" ? offered : [chooser.value];
      for (const name of chosen.filter((one) => one in all && !further.has(one))) {
        const at = columns.indexOf("status");
        further.set(name, all[name]);
        heads.children[at].before(head(name));
        columns.splice(at, 0, name);
        chooser.querySelector(`option[value="${CSS.escape(name)}"]`).disabled = true;
      }
      chooser.value = "";
      render();
      if (chosen.length === 1) heads.children[columns.indexOf(chosen[0])]?.scrollIntoView({ block: "nearest", inline: "center" });
    });
  }
  byId("table-search").addEventListener("input", restart);
  byId("table-more").addEventListener("click", () => { count += 5 * PORTION; render(); });
  page.listeners.push(restart);
}
