// Questions of one set, each with what a model said before, after every epoch, and what the retain
// model says; equal answers of neighbouring epochs are one line. A second run can stand beside it.
{
  const { element, byId, reader, words } = page;
  const [PAGE, LONG, CUT] = [12, 420, 360];
  const SETS = { forget: "forget set", retain: "retain set", real_authors: "real authors", world_facts: "world facts" };
  const ORDERS = { changed: "most changed first", same: "least changed first", given: "as in the data", apart: "where the two runs differ most" };
  let answers = null;
  let other = null;
  let count = PAGE;

  const said = (one, epoch, set) => one && (answers.said[one.runs.get(epoch)]?.[epoch]?.[set] ?? null);
  const held = (one) => reader.epochs(one).filter((epoch) => answers.said[one.runs.get(epoch)]?.[epoch]);
  const anchor = (one, kind, set, list) => {
    const found = reader.anchor(one, kind);
    const there = found && said(found, held(found)[0], set);
    return there && there[0] === list ? there : null;
  };
  const part = (from, i) => from && { text: answers.lists[from[0]][1][i][from[1][i]], rouge: from[2][i], p: [from[3][i]] };

  // Answers by epoch; neighbours that say the same are taken together.
  const stages = (one, set, list, i) => {
    const lines = [];
    for (const epoch of held(one).filter((e) => e > 0 || one.kind !== "run")) {
      const from = said(one, epoch, set);
      if (!from || from[0] !== list) continue;
      const found = part(from, i);
      const last = lines.at(-1);
      if (last && last.text === found.text && last.rouge === found.rouge) {
        last.epochs.push(epoch);
        last.p.push(...found.p);
      } else lines.push({ ...found, epochs: [epoch] });
    }
    return lines;
  };
  const at = (lines, epoch) => lines.find((line) => line.epochs.includes(epoch)) ?? lines.at(-1);

  const items = () => {
    const [one, set] = [reader.now, byId("answer-set").value];
    const list = held(one).map((epoch) => said(one, epoch, set)?.[0]).find((number) => number !== undefined);
    if (list === undefined) return [];
    const start = anchor(one, "fine-tuned", set, list) ?? said(one, 0, set);
    const goal = anchor(one, "retain", set, list);
    return answers.lists[list][0].map((question, i) => {
      const truth = answers.lists[list][1][i][0];
      const before = one.kind === "run" ? part(start, i) : null;
      const lines = stages(one, set, list, i);
      const beside = other ? stages(other, set, list, i) : [];
      const from = (before ?? { text: truth }).text;
      const now = at(lines, reader.epoch);
      const change = now ? words.apart(from, now.text) : 0;
      const apart = now && beside.length ? words.apart(now.text, at(beside, reader.epoch).text) : 0;
      return { question, truth, before, lines, beside, goal: one.kind === "run" ? part(goal, i) : null, from, change, apart };
    });
  };

  const hundredth = (value) => ((value ?? 0) / 100).toFixed(2);
  const scores = (line) => {
    const ends = [...new Set([line.p[0], line.p.at(-1)].map(hundredth))];
    return `ROUGE-L ${hundredth(line.rouge)} · p ${ends.join(" → ")}`;
  };
  const told = (text, against) => {
    const shown = (some) => against === null ? [some] : words.marked(some, against);
    if (!text) return [element("span", { class: "none" }, "nothing")];
    if (text.length <= LONG) return shown(text);
    const more = element("button", { type: "button", class: "link" }, `all ${text.length} characters`);
    const rest = element("span", {}, ...shown(text.slice(0, CUT)), "… ", more);
    more.addEventListener("click", () => rest.replaceChildren(...shown(text)));
    return [rest];
  };
  const line = (title, said, against = null, chosen = false) => element("div", { class: chosen ? "chosen" : "" },
    element("dt", {}, title),
    element("dd", {}, ...told(said.text, against)),
    element("dd", { class: "scores" }, said.p ? scores(said) : ""));
  const epochsOf = ({ epochs }) => epochs.length > 1 ? `epochs ${epochs[0]}–${epochs.at(-1)}` : `epoch ${epochs[0]}`;
  const after = (lines, from) => lines.map((one) => line(epochsOf(one), one, from, lines.length > 1 && at(lines, reader.epoch) === one));

  const card = (item) => {
    const kept = item.before?.text === item.truth;
    const lead = kept ? [line("true, and before", item.before)]
      : [line("true answer", { text: item.truth }), item.before && line("before", item.before, item.truth)];
    const [mine, theirs] = [after(item.lines, item.from), after(item.beside, item.from)];
    const column = (one, lines) => element("div", {}, element("h4", {}, page.runName(one.row)), element("dl", {}, ...lines));
    return element("article", { class: "qa" },
      element("header", {}, element("h3", {}, item.question), element("span", { class: "note" }, `changed ${item.change.toFixed(2)}`)),
      element("dl", {}, ...lead, ...(other ? [] : mine)),
      other && element("div", { class: "pair" }, column(reader.now, mine), column(other, theirs)),
      item.goal && element("dl", {}, line("retain model", item.goal)));
  };

  const by = {
    changed: (a, b) => b.change - a.change, same: (a, b) => a.change - b.change,
    apart: (a, b) => b.apart - a.apart, given: () => 0,
  };
  const matches = (item) => {
    const sought = byId("answer-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const lines = [...item.lines, ...item.beside].map((one) => one.text);
    const text = [item.question, item.truth, item.before?.text, item.goal?.text, ...lines].join("\n").toLowerCase();
    return sought.every((word) => text.includes(word));
  };
  const limits = () => {
    const [heldRows, rows] = answers.rows[byId("answer-set").value] ?? [0, 0];
    const [models, there] = answers.models;
    const missing = reader.epochs(reader.now).filter((epoch) => epoch > 0 && !held(reader.now).includes(epoch));
    return [
      heldRows < rows ? `This page holds the first ${heldRows} of ${rows} questions of this set.` : "",
      missing.length ? `Of this run, ${missing.length > 1 ? "epochs" : "epoch"} ${missing.join(", ")} ${missing.length > 1 ? "are" : "is"} not held.` : "",
      models < there ? `It holds answers of ${models} of ${there} evaluations: each method's best setting first, then last epochs; the records have them all.` : "",
    ];
  };
  const render = () => {
    const order = byId("answer-order").value;
    const found = items().filter(matches).sort(by[order]);
    byId("answer-list").replaceChildren(...found.slice(0, count).map(card));
    byId("answer-more").hidden = found.length <= count;
    const against = reader.anchor(reader.now, "fine-tuned") || said(reader.now, 0, byId("answer-set").value) ? "the answer before" : "the true answer";
    byId("answer-note").replaceChildren(
      element("b", {}, `${page.runName(reader.now.row)}${other ? ` beside ${page.runName(other.row)}` : ""}, ${SETS[byId("answer-set").value] ?? "no set"}`),
      ` · ${Math.min(count, found.length)} of ${found.length} questions, ${ORDERS[order]}. Marked: words that ${against} does not have. `,
      `Changed: share of the words, in order, that it and the answer after epoch ${reader.epoch} do not have in common. p: probability of the true answer, per token. `,
      limits().filter(Boolean).join(" "));
  };
  const restart = () => {
    if (!answers || !reader.now) return; // its reader is faster than the page
    count = PAGE;
    render();
  };

  const fill = (select, values, name, wanted) => {
    select.replaceChildren(...values.map((value) => element("option", { value }, name(value))));
    if (values.map(String).includes(String(wanted))) select.value = wanted;
  };
  const holds = (one) => held(one).length > 0;
  const show = () => {
    if (!holds(reader.now)) return;
    const beside = reader.offered(holds).filter((one) => one !== reader.now && reader.same(one, reader.now));
    if (!beside.includes(other)) other = null;
    reader.fill(byId("answer-run"), reader.offered(holds), reader.now);
    reader.fill(byId("answer-other"), beside, other, "no other run");
    fill(byId("answer-epoch"), held(reader.now), String, reader.epoch);
    const sets = Object.keys(SETS).filter((set) => held(reader.now).some((epoch) => said(reader.now, epoch, set)));
    fill(byId("answer-set"), sets, (set) => SETS[set], byId("answer-set").value || "forget");
    orders();
    restart();
  };
  const orders = () => fill(byId("answer-order"), Object.keys(ORDERS).filter((name) => other || name !== "apart"),
    (name) => ORDERS[name], byId("answer-order").value || "changed");

  const load = async () => {
    if (answers) return;
    answers = (await page.more()).answers;
    if (!reader.offered(holds).length) { byId("answer-note").textContent = "No answers were recorded."; return; }
    reader.listeners.push(show);
    reader.begin(holds);
  };

  page.showAnswers = async (run, epoch) => {
    await load();
    const one = reader.of(run);
    if (!one || !holds(one)) return;
    reader.turn(one, epoch);
    byId("answers").scrollIntoView();
    byId("answer-run").focus({ preventScroll: true });
  };
  byId("answer-run").addEventListener("change", (event) => reader.turn(reader.of(event.target.value)));
  byId("answer-epoch").addEventListener("change", (event) => reader.turn(reader.now, Number(event.target.value)));
  byId("answer-other").addEventListener("change", (event) => {
    other = reader.of(event.target.value);
    orders();
    restart();
  });
  byId("answer-set").addEventListener("change", restart);
  byId("answer-order").addEventListener("change", restart);
  byId("answer-search").addEventListener("input", restart);
  byId("answer-more").addEventListener("click", () => { count += 4 * PAGE; render(); });
  page.whenSeen("answers", load);
}
