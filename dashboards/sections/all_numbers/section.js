// The table of all numbers: searched, sorted, and printed in portions.
{
  const { data, element, byId, cell } = page;
  const PORTION = 60;
  const FIELDS = {
    method: "method", model: "model", forget_fraction: "forget", learning_rate: "rate", seed: "seed", epoch: data.unit,
    status: "status", run_id: "run",
  };
  const TEXTS = new Set(["method", "model", "status", "run_id"]);
  const title = (name) => FIELDS[name] ?? data.metrics[name].label;
  const further = {}; // values by the number of the row
  const places = new Map(data.rows.map((row, i) => [row, i]));
  const value = (row, name) => (name in further ? further[name][places.get(row)] : cell(row, name));
  const valueText = (row, name) => {
    const shown = value(row, name);
    if (shown === null) return "";
    if (name in data.metrics) return page.metric(name, shown);
    if (name === "learning_rate") return page.rate(shown);
    return name === "forget_fraction" ? page.splitCell(shown) : String(shown);
  };

  let columns = data.columns.filter((name) => name in FIELDS || name in data.metrics);
  let order = null;
  let count = PORTION;
  const matches = () => {
    const words = byId("table-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => page.showsRow(row) && (cell(row, "kind") !== "run" || page.showsEpoch(cell(row, "epoch")))
      && words.every((word) => [...TEXTS, "kind"].some((name) => cell(row, name).toLowerCase().includes(word))));
    return order ? rows.sort((a, b) => page.compareValues(value(a, order.name), value(b, order.name), order.direction)) : rows;
  };
  const line = (row) => {
    const button = element("button", { type: "button", class: "link", "data-run": cell(row, "run_id"), "data-epoch": cell(row, "epoch") }, cell(row, "method"));
    const cells = columns.map((name) => name === "method"
      ? element("th", { scope: "row" }, element("span", { class: "swatch" }), button)
      : element("td", { class: TEXTS.has(name) ? "" : "num" }, valueText(row, name)));
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
  const head = (name) => {
    const node = element("th", { scope: "col", class: TEXTS.has(name) ? "" : "num" }, element("button", { type: "button" }, title(name)));
    node.firstChild.addEventListener("click", () => {
      order = { name, direction: page.nextDirection(node, !TEXTS.has(name)) };
      restart();
    });
    return node;
  };
  const showHeads = () => byId("table").tHead.replaceChildren(element("tr", {}, ...columns.map(head)));
  showHeads();
  byId("table-further")?.addEventListener("change", async ({ target }) => {
    Object.assign(further, await page.lazyData("numbers"));
    const added = Object.keys(further);
    columns = columns.filter((name) => !added.includes(name));
    if (target.checked) columns.splice(columns.indexOf("status"), 0, ...added); // before the status
    showHeads();
    render();
  });
  byId("table-search").addEventListener("input", restart);
  byId("table-more").addEventListener("click", () => { count += 5 * PORTION; render(); });
  page.listeners.push(restart);
}
