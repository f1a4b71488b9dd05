// The parts of a point's card: `comparison` with the start and retain model, `link` to MLflow, `seeds`
// of the setting, `configuration`, `curves`, and the `answers` that changed most. Parts that need
// compressed data return a promise of a list of nodes.
page.parts = {};
{
  const { data, element, cell } = page;

  // ---- Tables ----

  const headRow = (titles) => {
    const cells = titles.map((title, i) =>
      element("th", { scope: "col", class: i === 0 ? "" : "num" }, title));
    return element("tr", {}, ...cells);
  };

  // A table that scrolls if it is too wide. `label` names it for screen readers.
  const scrollingTable = (label, titles, lines) => {
    const head = element("thead", {}, headRow(titles));
    const body = element("tbody", {}, ...lines);
    const attributes = { class: "scroll", tabindex: "0", role: "region", "aria-label": label };
    return element("div", attributes, element("table", {}, head, body));
  };

  const lineHead = (content) => element("th", { scope: "row" }, content);

  const numberCell = (content) => element("td", { class: "num" }, content);

  // ---- Comparison with the start and retain model ----

  // "+0.012" for a number before and after, or an empty text if one of them is missing.
  const changeText = (before, after) => {
    if (before === null || after === null) return "";
    const change = Number((after - before).toFixed(3));
    if (change === 0) return page.number(0); // not "−0.000"
    return (change > 0 ? "+" : "") + page.number(change);
  };

  page.parts.comparison = (row, alone) => {
    const startRow = page.referenceRow(row, "fine-tuned");
    const retainRow = page.referenceRow(row, "retain");
    const numberOf = (model, column) => (model ? page.mean(model, column, alone) : null);

    const lines = data.compared.map((column) => {
      const start = numberOf(startRow, column);
      const here = numberOf(row, column);
      const cells = [
        numberCell(page.number(start)),
        element("td", { class: "num strong" }, page.number(here)),
        numberCell(changeText(start, here)),
      ];
      if (data.retain) cells.push(numberCell(page.number(numberOf(retainRow, column))));
      return element("tr", {}, lineHead(data.metrics[column].label), ...cells);
    });
    const titles = ["", "start model", "here", "change"];
    if (data.retain) titles.push("retain model");
    return scrollingTable("Metrics of this point", titles, lines);
  };

  // ---- Seeds ----

  /** Make the link to a run in MLflow; null if there is none. */
  page.parts.link = (run) => {
    const address = data.links[run] ?? "";
    // Anything else, such as "javascript:", could run a script.
    if (!/^https?:\/\//.test(address)) return null;
    const attributes = { href: address, target: "_blank", rel: "noopener noreferrer" };
    return element("a", attributes, "Run in MLflow");
  };

  // The seed of a row: a button that shows this run alone, unless it is shown so already.
  const seedName = (row, isShownAlone) => {
    const seed = cell(row, "seed");
    if (isShownAlone) return element("b", {}, seed);
    const select = () => page.select(cell(row, "run_id"), cell(row, "epoch"), true);
    return element("button", { type: "button", class: "link", onclick: select }, seed);
  };

  /** Make the table of a setting's seeds; null for the start or retain model. */
  page.parts.seeds = (row) => {
    if (cell(row, "kind") !== "run") return null;
    const seedRows = page.seedsOf(row);
    const [kept, forgotten] = page.headline;
    const metrics = [forgotten, kept];

    const lines = seedRows.map((seedRow) => {
      const run = cell(seedRow, "run_id");
      const isShownAlone = page.card.alone && seedRow === row;
      const numbers = metrics.map(({ column, digits }) =>
        numberCell(page.number(cell(seedRow, column), digits)));
      return element("tr", {},
        lineHead(seedName(seedRow, isShownAlone)),
        ...numbers,
        numberCell(cell(seedRow, "status")),
        numberCell(element("code", {}, run)),
        numberCell(page.parts.link(run) ?? ""));
    });
    if (seedRows.length > 1) {
      const means = metrics.map(({ column, digits }) =>
        numberCell(page.number(page.mean(row, column), digits)));
      const rest = element("td", { colspan: "3" });
      lines.push(element("tr", { class: "reference" }, lineHead("mean"), ...means, rest));
    }
    const titles = ["Seed", ...metrics.map(({ name }) => name), "Status", "Run", ""];
    return scrollingTable("Seeds of this setting", titles, lines);
  };

  // ---- Configuration ----

  // The configuration of a run in groups, of which the first is open.
  page.parts.configuration = async (run) => {
    const configurations = await page.lazyData("trade-off");
    const groups = configurations[run] ?? [];
    return groups.map(([title, pairs], i) => {
      const lines = pairs.map(([name, value]) =>
        element("div", {}, element("dt", {}, name), element("dd", {}, value)));
      return element("details", { open: i === 0 },
        element("summary", {}, title),
        element("dl", { class: "pairs" }, ...lines));
    });
  };

  // ---- Curves ----

  // The section Curves draws a line pale if it is one of many. Here it stands alone.
  const asOnlyLine = (trace) => ({
    ...trace,
    line: { ...trace.line, width: 1.6 },
    marker: { ...trace.marker, opacity: 1 },
    meta: { ...trace.meta, role: "own", alpha: 0.85, best: true },
  });

  // The curves of the section Curves, but only those of the row's setting.
  page.parts.curves = async (row) => {
    const { panels } = await page.lazyData("curves");
    const figures = panels[page.panelOf(row)] ?? {};
    const method = cell(row, "method");
    const rate = page.rate(cell(row, "learning_rate"));
    const isOfSetting = ({ meta }) => meta.method === method && meta.rate === rate;

    const holder = element("div", { class: "small" });
    for (const metric of data.compared) {
      const traces = figures[metric]?.data.filter(isOfSetting) ?? [];
      if (traces.length === 0) continue;
      const title = { text: data.metrics[metric].label, x: 0, xref: "paper" };
      const layout = { ...figures[metric].layout, title, height: 210 };
      const node = element("div", { class: "plot" });
      holder.append(node);
      const figure = { data: traces.map(asOnlyLine), layout };
      page.draw(node, figure, { name: `${cell(row, "run_id")}-${metric}` });
    }
    return [holder];
  };

  // ---- Answers ----

  const SHOWN_ANSWERS = 3;

  // A text under its title, with marks around the words that `against` does not have (null: no marks).
  const titledText = (title, text, against = null) => {
    let nodes;
    if (!text) nodes = [element("span", { class: "none" }, "nothing")];
    else if (against === null) nodes = [text];
    else nodes = page.wordDiff.marked(text, against);
    return element("div", {}, element("h5", {}, title), element("p", {}, ...nodes));
  };

  // The answers on the forget set that differ most from the start model's, or from the true answers if
  // those of the start model are not on the page.
  page.parts.answers = async (row) => {
    const { lists, answers } = await page.lazyData("answers");
    const [forgetSet] = data.forget;
    // [number of the list of questions, number of each answer among the texts to its question, …]
    const storedAnswers = (ofRow) =>
      answers[cell(ofRow, "run_id")]?.[cell(ofRow, "epoch")]?.[forgetSet] ?? null;

    const stored = storedAnswers(row);
    if (!stored || stored[1].length === 0) {
      const text = "This page has no answers of this evaluation; its record may have them.";
      return [element("p", { class: "note" }, text)];
    }
    const [list, textNumbers] = stored;
    const [questions, textsByQuestion] = lists[list];

    const startRow = page.referenceRow(row, "fine-tuned");
    const startAnswers = startRow ? storedAnswers(startRow) : null;
    const hasStart = startAnswers !== null && startAnswers[0] === list;
    const startNumbers = hasStart ? startAnswers[1] : null;

    const compared = questions.map((question, i) => {
      const texts = textsByQuestion[i];
      const [truth] = texts;
      const before = hasStart ? texts[startNumbers[i]] : truth;
      const here = texts[textNumbers[i]];
      return { question, truth, before, here, change: page.wordDiff.distance(before, here) };
    });
    const mostChanged = compared.sort((a, b) => b.change - a.change).slice(0, SHOWN_ANSWERS);
    return mostChanged.map(({ question, truth, before, here }) => element("article", { class: "qa" },
      element("h4", {}, question),
      element("div", { class: "columns" },
        titledText("true answer", truth),
        hasStart ? titledText("start model", before) : null,
        titledText("here", here, before))));
  };
}
