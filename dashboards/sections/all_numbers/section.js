// The table of all numbers: one line per evaluation, searched, sorted, and added in portions.
{
  const { data, element, byId, cell } = page;

  const FIRST_COUNT = 60; // lines that are shown at first
  const MORE = 300; // lines that "Show more" adds

  // ---- Columns ----

  // Titles of columns that are not metrics.
  const FIELDS = {
    method: "method",
    model: "model",
    forget_fraction: "forget",
    learning_rate: "rate",
    seed: "seed",
    epoch: data.unit,
    status: "status",
    run_id: "run",
  };
  const TEXT_COLUMNS = new Set(["method", "model", "status", "run_id"]);
  const SEARCHED_COLUMNS = [...TEXT_COLUMNS, "kind"];

  const titleOf = (column) => FIELDS[column] ?? data.metrics[column].label;

  let columns = data.columns.filter((name) => name in FIELDS || name in data.metrics);

  // Numbers of the columns that the reader has to ask for: by column, a list in the order of the
  // rows. It is empty until the reader has asked.
  const furtherNumbers = {};
  const indexOfRow = new Map(data.rows.map((row, index) => [row, index]));

  const valueOf = (row, column) => {
    if (column in furtherNumbers) return furtherNumbers[column][indexOfRow.get(row)];
    return cell(row, column);
  };

  const textOf = (row, column) => {
    const value = valueOf(row, column);
    if (value === null) return "";
    if (column in data.metrics) return page.metric(column, value);
    if (column === "learning_rate") return page.rate(value);
    if (column === "forget_fraction") return page.splitCell(value);
    return String(value);
  };

  // ---- Rows ----

  let order = null; // { column, direction }, or null for the order of the data
  let shownCount = FIRST_COUNT;

  const isRun = (row) => cell(row, "kind") === "run";

  const passesFilters = (row) =>
    page.showsRow(row) && (!isRun(row) || page.showsEpoch(cell(row, "epoch")));

  const contains = (row, word) =>
    SEARCHED_COLUMNS.some((column) => cell(row, column).toLowerCase().includes(word));

  // The rows that pass the filters and contain every word of the search, in the chosen order.
  const matchingRows = () => {
    const words = byId("table-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (row) => passesFilters(row) && words.every((word) => contains(row, word));
    const rows = data.rows.filter(matches);
    if (order === null) return rows;
    const { column, direction } = order;
    return rows.sort((a, b) => page.compareValues(valueOf(a, column), valueOf(b, column), direction));
  };

  // ---- Elements ----

  // The first cell of a line: a button that opens the card of the point.
  const methodCell = (row) => {
    const button = element("button", {
      type: "button",
      class: "link",
      "data-run": cell(row, "run_id"),
      "data-epoch": cell(row, "epoch"),
    }, cell(row, "method"));
    return element("th", { scope: "row" }, element("span", { class: "swatch" }), button);
  };

  const lineOf = (row) => {
    const cells = columns.map((column) => {
      if (column === "method") return methodCell(row);
      return element("td", { class: TEXT_COLUMNS.has(column) ? "" : "num" }, textOf(row, column));
    });
    const attributes = {
      class: isRun(row) ? "" : "reference",
      "data-family": cell(row, "family"),
    };
    return element("tr", attributes, ...cells);
  };

  const render = () => {
    const rows = matchingRows();
    byId("table").tBodies[0].replaceChildren(...rows.slice(0, shownCount).map(lineOf));
    byId("table-more").hidden = rows.length <= shownCount;
    byId("table-count").textContent = `${Math.min(shownCount, rows.length)} of ${rows.length} rows`;
    page.paintSwatches();
  };

  const showFirst = () => {
    shownCount = FIRST_COUNT;
    render();
  };

  const headOf = (column) => {
    const isNumeric = !TEXT_COLUMNS.has(column);
    const button = element("button", { type: "button" }, titleOf(column));
    const head = element("th", { scope: "col", class: isNumeric ? "num" : "" }, button);
    button.addEventListener("click", () => {
      order = { column, direction: page.nextDirection(head, isNumeric) };
      showFirst();
    });
    return head;
  };

  const showHeads = () => {
    byId("table").tHead.replaceChildren(element("tr", {}, ...columns.map(headOf)));
  };

  // ---- Events ----

  // Adds the further columns before the status, or removes them.
  const toggleFurtherColumns = async (isShown) => {
    Object.assign(furtherNumbers, await page.lazyData("numbers"));
    const added = Object.keys(furtherNumbers);
    columns = columns.filter((column) => !added.includes(column));
    if (isShown) columns.splice(columns.indexOf("status"), 0, ...added);
    showHeads();
    render();
  };

  showHeads();
  // The box is missing if there are no further columns.
  byId("table-further")?.addEventListener("change", ({ target }) => toggleFurtherColumns(target.checked));
  byId("table-search").addEventListener("input", showFirst);
  byId("table-more").addEventListener("click", () => {
    shownCount += MORE;
    render();
  });
  page.listeners.push(showFirst);
}
