// What a run's model says beside what it said before: questions of one set at one epoch.
{
  const { data, element, byId, cell } = page;
  const PAGE = 12;
  const SETS = { forget: "forget set", retain: "retain set", real_authors: "real authors", world_facts: "world facts" };
  let answers = null;
  let count = PAGE;

  const rowsByRun = new Map();
  for (const row of data.rows) if (!rowsByRun.has(cell(row, "run_id"))) rowsByRun.set(cell(row, "run_id"), row);
  const said = (run, epoch, set) => answers.said[run]?.[epoch]?.[set] ?? null;
  const epochs = (run) => Object.keys(answers.said[run] ?? {}).map(Number).sort((a, b) => a - b);

  const anchorSaid = (run, kind, set, list) => {
    const own = rowsByRun.get(run);
    for (const [id, row] of rowsByRun) {
      if (cell(row, "kind") !== kind || cell(row, "model") !== cell(own, "model") || cell(row, "forget_fraction") !== cell(own, "forget_fraction")) continue;
      const there = epochs(id).map((epoch) => said(id, epoch, set)).find(Boolean);
      if (there && there[0] === list) return there;
    }
    return null;
  };

  // Words that the other text does not have, in their order (longest common subsequence).
  const marked = (text, other) => {
    const [a, b] = [text, other].map((t) => t.split(/(\s+)/));
    const width = b.length + 1;
    const lengths = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        lengths[i * width + j] = a[i] === b[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
      }
    }
    const pieces = [];
    let [i, j, run] = [0, 0, ""];
    const flush = () => { if (run) pieces.push(run.trim() ? element("mark", {}, run) : run); run = ""; };
    while (i < a.length) {
      if (j < b.length && a[i] === b[j]) { flush(); pieces.push(a[i]); i++; j++; }
      else if (j < b.length && lengths[i * width + j + 1] > lengths[(i + 1) * width + j]) j++;
      else run += a[i++];
    }
    flush();
    return pieces;
  };

  const items = () => {
    const [run, epoch, set] = ["answer-run", "answer-epoch", "answer-set"].map((id) => byId(id).value);
    const now = said(run, epoch, set);
    if (!now) return [];
    const [questions, truths] = answers.lists[now[0]];
    const first = epochs(run)[0] === 0 ? said(run, 0, set) : null;
    const before = anchorSaid(run, "fine-tuned", set, now[0]) ?? first;
    const goal = anchorSaid(run, "retain", set, now[0]);
    const part = (from, i) => from && { text: answers.texts[from[1][i]], rouge: from[2][i], probability: from[3][i] };
    return questions.map((question, i) => ({
      question: answers.texts[question], truth: answers.texts[truths[i]],
      before: part(before, i), now: part(now, i), goal: part(goal, i),
    }));
  };
  const change = (item) => item.before ? Math.abs(item.before.rouge - item.now.rouge) + (item.before.text === item.now.text ? 0 : 0.5) : 0;

  const part = (title, said, other = null) => element("div", {},
    element("h4", {}, title, said.rouge === undefined ? "" : ` · ROUGE-L ${((said.rouge ?? 0) / 100).toFixed(2)} · p ${((said.probability ?? 0) / 100).toFixed(2)}`),
    element("p", {}, ...(other === null ? [said.text] : marked(said.text, other)), said.text ? "" : element("span", { class: "none" }, "nothing")));

  const card = (item) => element("article", { class: "qa" },
    element("h3", {}, item.question),
    element("div", { class: "columns" },
      part("true answer", { text: item.truth }),
      item.before && part("before", item.before),
      part(`after, epoch ${byId("answer-epoch").value}`, item.now, item.before?.text ?? item.truth),
      item.goal && part("retain model", item.goal)));

  const render = () => {
    const words = byId("answer-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = items().filter((item) => {
      const text = [item.question, item.truth, item.before?.text, item.now.text].join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (byId("answer-order").value === "changed") found = found.sort((a, b) => change(b) - change(a));
    byId("answer-list").replaceChildren(...found.slice(0, count).map(card));
    byId("answer-more").hidden = found.length <= count;
    const [held, there] = answers.rows[byId("answer-set").value] ?? [0, 0];
    const [models, all] = answers.models;
    const limits = [
      held < there ? `This page holds the first ${held} of ${there} questions of this set.` : "",
      models < all ? `It holds the answers of ${models} of ${all} evaluations, last epochs first; the records have them all.` : "",
    ];
    byId("answer-note").textContent = [`${Math.min(count, found.length)} of ${found.length} questions; marked: words that differ from before.`, ...limits].join(" ");
  };
  const restart = () => { count = PAGE; render(); };

  const fill = (select, values, name, wanted) => {
    select.replaceChildren(...values.map((value) => element("option", { value }, name(value))));
    if (values.map(String).includes(String(wanted))) select.value = wanted;
  };
  const chooseRun = (epoch = null) => {
    const run = byId("answer-run").value;
    const known = epochs(run);
    fill(byId("answer-epoch"), known, String, epoch ?? known.at(-1));
    const sets = Object.keys(SETS).filter((set) => said(run, known.at(-1), set));
    fill(byId("answer-set"), sets, (set) => SETS[set], byId("answer-set").value || "forget");
    restart();
  };

  const runs = () => [...rowsByRun].filter(([id, row]) => answers.said[id] &&
    (cell(row, "kind") !== "run" || page.shows(cell(row, "family"), page.rate(cell(row, "learning_rate")))));
  const listRuns = () => {
    const before = byId("answer-run").value;
    const groups = new Map();
    // Where every epoch count is a run of its own, only that count tells runs apart.
    const single = (id) => epochs(id).length === 1 && cell(rowsByRun.get(id), "kind") === "run";
    for (const [id, row] of runs()) {
      const where = `${cell(row, "model")}, forget ${page.percent(cell(row, "forget_fraction"))}`;
      if (!groups.has(where)) groups.set(where, element("optgroup", { label: where }));
      groups.get(where).append(element("option", { value: id }, page.runName(row) + (single(id) ? `, epoch ${epochs(id)[0]}` : "")));
    }
    const select = byId("answer-run");
    select.replaceChildren(...groups.values());
    const first = runs().find(([, row]) => cell(row, "kind") === "run") ?? runs()[0];
    if (runs().some(([id]) => id === before)) select.value = before;
    else if (first) select.value = first[0];
  };
  const load = async () => {
    if (answers) return;
    answers = (await page.more()).answers;
    listRuns();
    if (Object.keys(answers.said).length) chooseRun();
    else byId("answer-note").textContent = "No answers were recorded.";
    page.listeners.push(() => { listRuns(); chooseRun(); });
  };

  page.showAnswers = async (run, epoch) => {
    await load();
    if (!answers.said[run]) return;
    byId("answer-run").value = run;
    chooseRun(epoch);
    byId("answers").scrollIntoView();
    byId("answer-run").focus({ preventScroll: true });
  };
  byId("answer-run").addEventListener("change", () => chooseRun());
  byId("answer-epoch").addEventListener("change", restart);
  byId("answer-set").addEventListener("change", restart);
  byId("answer-order").addEventListener("change", restart);
  byId("answer-search").addEventListener("input", restart);
  byId("answer-more").addEventListener("click", () => { count += 4 * PAGE; render(); });
  page.whenSeen("answers", load);
}
