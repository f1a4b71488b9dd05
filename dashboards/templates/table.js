// Tables that sort by any column; the long one is drawn a page at a time.
{
  const { data, element, byId, cell } = page;
  const PAGE = 60;
  const collator = new Intl.Collator("en", { numeric: true });

  // Missing values come last, whichever way one sorts.
  const compare = (a, b, direction) => {
    const [noA, noB] = [a === null || a === "", b === null || b === ""];
    if (noA || noB) return noA - noB;
    const both = typeof a === "number" && typeof b === "number";
    return direction * (both ? a - b : collator.compare(String(a), String(b)));
  };
  const nextDirection = (head, numeric) => {
    const now = head.getAttribute("aria-sort");
    const first = numeric ? "descending" : "ascending";
    const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
    return next === "ascending" ? 1 : -1;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const numeric = head.classList.contains("num");
      const value = (row) => {
        const at = row.cells[index];
        if (!at || at.colSpan > 1) return null; // a line without a best setting
        const text = at.dataset.value ?? at.textContent.trim();
        return numeric ? (text === "" ? null : Number(text)) : text;
      };
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const direction = nextDirection(head, numeric);
        body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b), direction)));
      });
    });
    page.listeners.push(() => {
      for (const row of body.rows) row.hidden = Boolean(page.filters.families.size) && !page.filters.families.has(row.dataset.family);
    });
  }

  const HEADS = {
    method: "method", model: "model", forget_fraction: "forget", learning_rate: "rate", seed: "seed", epoch: "epoch",
    model_utility: "Model Utility", forget_quality: "Forget Quality", log10_forget_quality: "log₁₀ FQ", ks_statistic: "KS D", ks_n: "n",
    status: "status", run_id: "run",
  };
  const SETS = { retain: "retain", real_authors: "authors", world_facts: "facts", forget: "forget" };
  const METRICS = { rouge: "ROUGE-L", probability: "Prob.", truth_ratio: "Truth ratio" };
  for (const [metric, title] of Object.entries(METRICS)) {
    for (const [set, name] of Object.entries(SETS)) HEADS[`${metric}_${set}`] = `${title} ${name}`;
  }
  const columns = data.columns.filter((name) => name in HEADS);
  const texts = new Set(["method", "model", "status", "run_id"]);
  const whole = new Set(["seed", "epoch", "ks_n"]);
  const shown = (row, name) => {
    const value = cell(row, name);
    if (value === null) return "";
    if (texts.has(name)) return value;
    if (name === "learning_rate") return page.rate(value);
    if (name === "forget_fraction") return page.percent(value);
    if (whole.has(name)) return String(value);
    if (name === "forget_quality") return value.toPrecision(3).replaceAll("-", "−");
    return page.number(value, name === "log10_forget_quality" ? 2 : 3);
  };

  let order = null;
  let count = PAGE;
  const matches = () => {
    const words = byId("table-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) =>
      (cell(row, "kind") !== "run" || (page.shows(cell(row, "family"), page.rate(cell(row, "learning_rate")), cell(row, "method")) &&
        page.showsEpoch(cell(row, "epoch")) && page.showsSeed(cell(row, "seed")))) &&
      words.every((word) => ["method", "model", "status", "run_id", "kind"].some((name) => cell(row, name).toLowerCase().includes(word))));
    return order ? rows.sort((a, b) => compare(cell(a, order.name), cell(b, order.name), order.direction)) : rows;
  };
  const line = (row) => {
    const run = cell(row, "run_id");
    const pick = element("button", { type: "button", class: "link", onclick: () => page.select(run, cell(row, "epoch")) }, cell(row, "method"));
    const cells = columns.map((name) => name === "method"
      ? element("th", { scope: "row" }, element("span", { class: "swatch" }), pick)
      : element("td", { class: texts.has(name) ? "" : "num" }, shown(row, name)));
    return element("tr", { class: cell(row, "kind") === "run" ? "" : "anchor", "data-family": cell(row, "family") }, ...cells);
  };
  const render = () => {
    const rows = matches();
    byId("table").tBodies[0].replaceChildren(...rows.slice(0, count).map(line));
    byId("table-more").hidden = rows.length <= count;
    byId("table-count").textContent = `${Math.min(count, rows.length)} of ${rows.length} rows`;
    page.paintSwatches();
  };
  const restart = () => { count = PAGE; render(); };
  byId("table").tHead.append(element("tr", {}, ...columns.map((name) => {
    const head = element("th", { scope: "col", class: texts.has(name) ? "" : "num" },
      element("button", { type: "button" }, HEADS[name]));
    head.firstChild.addEventListener("click", () => {
      order = { name, direction: nextDirection(head, !texts.has(name)) };
      restart();
    });
    return head;
  })));
  for (const button of document.querySelectorAll("[data-run]")) {
    button.addEventListener("click", () => page.select(button.dataset.run, Number(button.dataset.epoch)));
  }
  byId("table-search").addEventListener("input", restart);
  byId("table-more").addEventListener("click", () => { count += 5 * PAGE; render(); });
  page.listeners.push(restart);
}
