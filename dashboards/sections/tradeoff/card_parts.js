// Parts of a point's card: comparison with start and retain model, seeds, configuration, forgetting
// curves, and the answers that changed most.
page.parts = {};
{
  const { data, element, cell } = page;
  const head = (titles) => element("thead", {}, element("tr", {}, ...titles.map((text, i) =>
    element("th", { scope: "col", class: i ? "num" : "" }, text))));
  const table = (label, titles, lines) => element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    element("table", {}, head(titles), element("tbody", {}, ...lines)));
  const number = (text) => element("td", { class: "num" }, text);

  page.parts.comparison = (row, alone) => {
    const [start, goal] = [page.referenceRow(row, "fine-tuned"), page.referenceRow(row, "retain")];
    const heads = data.retain ? ["retain model"] : [];
    const lines = data.compared.map((name) => {
      const [before, now, aim] = [start, row, goal].map((of) => (of ? page.mean(of, name, alone) : null));
      const by = before === null || now === null ? null : Number((now - before).toFixed(3)) || 0; // no −0
      const change = (by > 0 ? "+" : "") + page.number(by);
      return element("tr", {}, element("th", { scope: "row" }, data.metrics[name].label),
        number(page.number(before)), element("td", { class: "num strong" }, page.number(now)), number(change), ...heads.map(() => number(page.number(aim))));
    });
    return table("Metrics of this point", ["", "start model", "here", "change", ...heads], lines);
  };

  page.parts.link = (run) => {
    const address = data.links[run];
    return /^https?:\/\//.test(address ?? "")
      ? element("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, "Run in MLflow") : null;
  };

  page.parts.seeds = (row) => {
    const found = page.seedsOf(row);
    if (cell(row, "kind") !== "run") return null;
    const shown = [...page.headline].reverse();
    const lines = found.map((one) => {
      const [run, epoch] = [cell(one, "run_id"), cell(one, "epoch")];
      const name = page.card.alone && one === row ? element("b", {}, cell(one, "seed"))
        : element("button", { type: "button", class: "link", onclick: () => page.select(run, epoch, true) }, cell(one, "seed"));
      return element("tr", {}, element("th", { scope: "row" }, name),
        ...shown.map(({ column, digits }) => number(page.number(cell(one, column), digits))),
        element("td", { class: "num" }, cell(one, "status")), element("td", { class: "num" }, element("code", {}, run)),
        element("td", { class: "num" }, page.parts.link(run) ?? ""));
    });
    if (found.length > 1) {
      lines.push(element("tr", { class: "reference" }, element("th", { scope: "row" }, "mean"),
        ...shown.map(({ column, digits }) => number(page.number(page.mean(row, column), digits))), element("td", { colspan: "3" })));
    }
    return table("Seeds of this setting", ["Seed", ...shown.map(({ name }) => name), "Status", "Run", ""], lines);
  };

  page.parts.configuration = async (run) => {
    const parts = (await page.lazyData("trade-off"))[run] ?? [];
    return parts.map(([title, pairs], i) =>
      element("details", { open: i === 0 }, element("summary", {}, title),
        element("dl", { class: "pairs" }, ...pairs.map(([name, value]) =>
          element("div", {}, element("dt", {}, name), element("dd", {}, value))))));
  };

  // The curves of the section below, of this setting alone.
  page.parts.curves = async (row) => {
    const figures = (await page.lazyData("curves")).panels[page.panelOf(row)] ?? {};
    const own = ({ meta }) => meta.method === cell(row, "method") && meta.rate === page.rate(cell(row, "learning_rate"));
    const holder = element("div", { class: "small" });
    for (const name of data.compared.filter((one) => figures[one]?.data.some(own))) {
      const node = element("div", { class: "plot" });
      const layout = { ...figures[name].layout, title: { text: data.metrics[name].label, x: 0, xref: "paper" }, height: 210 };
      holder.append(node);
      // A line is pale in the section below, where it is one of many.
      const alone = (trace) => ({
        ...trace, line: { ...trace.line, width: 1.6 }, marker: { ...trace.marker, opacity: 1 },
        meta: { ...trace.meta, role: "own", alpha: 0.85, best: true },
      });
      page.draw(node, { data: figures[name].data.filter(own).map(alone), layout }, { name: `${cell(row, "run_id")}-${name}` });
    }
    return [holder];
  };

  // Answers on the forget set that differ most from the start model's.
  page.parts.answers = async (row) => {
    const { lists, answers } = await page.lazyData("answers");
    const own = (run, epoch) => answers[run]?.[epoch]?.[data.forget[0]] ?? null;
    const now = own(cell(row, "run_id"), cell(row, "epoch"));
    if (!now?.[1].length) return [element("p", { class: "note" }, "This page has no answers of this evaluation; its record may have them.")];
    const start = page.referenceRow(row, "fine-tuned");
    const first = start && own(cell(start, "run_id"), cell(start, "epoch"));
    const before = first && first[0] === now[0] ? first : null;
    const [questions, texts] = lists[now[0]];
    const from = (i) => texts[i][before ? before[1][i] : 0];
    const changed = questions.map((_, i) => ({ i, by: page.wordDiff.distance(from(i), texts[i][now[1][i]]) }))
      .sort((a, b) => b.by - a.by).slice(0, 3);
    const part = (title, text, against = null) => element("div", {}, element("h5", {}, title),
      element("p", {}, ...(text ? (against === null ? [text] : page.wordDiff.marked(text, against)) : [element("span", { class: "none" }, "nothing")])));
    return changed.map(({ i }) => element("article", { class: "qa" },
      element("h4", {}, questions[i]),
      element("div", { class: "columns" }, part("true answer", texts[i][0]),
        before && part("start model", from(i)), part("here", texts[i][now[1][i]], from(i)))));
  };
}
