// Questions of one set with the answers of a model before and after every epoch, and of the retain
// model; equal answers of neighbouring epochs are one line.
{
  const { element, byId, selection, wordDiff } = page;
  const [PORTION, LONG, CUT] = [12, 420, 360];
  const SETS = page.data.sets;
  const ORDERS = { changed: "most changed first", same: "least changed first", memorized: "most memorized first", given: "as in the data", back: "most given back under the attack first" };
  let data = null;
  let variant = ""; // an attack and its point
  let count = PORTION;

  // Encoded answers of an evaluation: [list, text numbers, ROUGE-L, probability].
  const encoded = (one, epoch, set) => one && (data.answers[one.runs.get(epoch)]?.[epoch]?.[set] ?? null);
  const embeddedEpochs = (one) => selection.epochs(one).filter((epoch) => data.answers[one.runs.get(epoch)]?.[epoch]);
  const hasData = (one) => embeddedEpochs(one).length > 0;
  const ofReference = (one, kind, set, list) => {
    const model = selection.reference(one, kind);
    const answers = model && encoded(model, embeddedEpochs(model)[0], set);
    return answers && answers[0] === list ? answers : null;
  };
  // A set that is only scored has no text.
  const answer = (from, i) => from && { text: from[1].length ? data.lists[from[0]][1][i][from[1][i]] : null, rouge: from[2][i], p: [from[3][i]], es: [from[4]?.[i] ?? null] };

  // Answers to a question by epoch; equal ones of neighbouring epochs are joined.
  const byEpoch = (one, set, list, i) => {
    const lines = [];
    for (const epoch of embeddedEpochs(one).filter((e) => e > 0 || one.kind !== "run")) {
      const from = encoded(one, epoch, set);
      if (!from || from[0] !== list) continue;
      const next = answer(from, i);
      const last = lines.at(-1);
      if (last && next.text !== null && last.text === next.text && last.rouge === next.rouge) {
        last.epochs.push(epoch);
        last.p.push(...next.p);
        last.es.push(...next.es);
      } else lines.push({ ...next, epochs: [epoch] });
    }
    return lines;
  };
  // Answers under attacks have the keys `epoch variant`, and may be of some of the questions only.
  const attackedKeys = (one) => [...one.runs].flatMap(([epoch, run]) =>
    Object.keys(data.answers[run] ?? {}).filter((key) => key.startsWith(`${epoch} `)).map((key) => [run, key]));
  const variantsOf = (one) => [...new Set(attackedKeys(one).map(([, key]) => key.slice(key.indexOf(" ") + 1)))];
  const underAttack = (one, set) => {
    if (!one || !variant) return () => null;
    const found = attackedKeys(one).filter(([, key]) => key.endsWith(` ${variant}`));
    const [run, key] = found.find(([, key]) => key === `${selection.epoch} ${variant}`) ?? found.at(-1) ?? [];
    const from = data.answers[run]?.[key]?.[set];
    if (!from) return () => null;
    const places = new Map(data.lists[from[0]][0].map((question, i) => [question, i]));
    return (question) => (places.has(question) ? { ...answer(from, places.get(question)), epochs: [key.split(" ")[0]] } : null);
  };
  const lineAt = (lines, epoch) => lines.find((line) => line.epochs.includes(epoch)) ?? lines.at(-1);

  const items = () => {
    const [one, set] = [selection.trajectory, byId("answer-set").value];
    const list = embeddedEpochs(one).map((epoch) => encoded(one, epoch, set)?.[0]).find((number) => number !== undefined);
    if (list === undefined) return [];
    const start = ofReference(one, "fine-tuned", set, list) ?? encoded(one, 0, set);
    const goal = ofReference(one, "retain", set, list);
    const [under, goalUnder] = [one, one.kind === "run" ? selection.reference(one, "retain") : null].map((model) => underAttack(model, set));
    return data.lists[list][0].map((question, i) => {
      const truth = data.lists[list][1][i][0];
      const before = one.kind === "run" ? answer(start, i) : null;
      const lines = byEpoch(one, set, list, i);
      const from = before?.text ?? truth;
      const now = lineAt(lines, selection.epoch);
      const change = now && now.text !== null ? wordDiff.distance(from, now.text) : 0;
      const memorized = now ? now.es.at(now.epochs.indexOf(selection.epoch)) : null;
      const attacked = under(question);
      const strength = (line, at) => line?.es.at(at) ?? line?.p.at(at) ?? 0;
      const back = attacked ? strength(attacked, 0) - strength(now, now ? now.epochs.indexOf(selection.epoch) : 0) : null;
      return { attacked, back, goalAttacked: goalUnder(question), question, truth, memorized, before, lines, goal: one.kind === "run" ? answer(goal, i) : null, from, change };
    });
  };

  const hundredths = (value) => ((value ?? 0) / 100).toFixed(2);
  const scores = (line) => {
    const ends = (values) => [...new Set([values[0], values.at(-1)].map(hundredths))].join(" → ");
    const strength = line.es.includes(null) ? "" : ` · ES ${ends(line.es)}`;
    return `${line.text === null || line.rouge === null ? "" : `ROUGE-L ${hundredths(line.rouge)} · `}p ${ends(line.p)}${strength}`;
  };
  const textNodes = (text, against) => {
    const marked = (part) => against === null ? [part] : wordDiff.marked(part, against);
    if (text === null) return [element("span", { class: "none" }, "not generated: this set is only scored")];
    if (!text) return [element("span", { class: "none" }, "nothing")];
    if (text.length <= LONG) return marked(text);
    const more = element("button", { type: "button", class: "link" }, `all ${text.length} characters`);
    const cut = element("span", {}, ...marked(text.slice(0, CUT)), "… ", more);
    more.addEventListener("click", () => cut.replaceChildren(...marked(text)));
    return [cut];
  };
  const line = (title, one, against = null, chosen = false) => element("div", { class: chosen ? "chosen" : "" },
    element("dt", {}, title),
    element("dd", {}, ...textNodes(one.text, against)),
    element("dd", { class: "scores" }, one.p ? scores(one) : ""));
  const epochsOf = ({ epochs }) => epochs.length > 1 ? `epochs ${epochs[0]}–${epochs.at(-1)}` : `epoch ${epochs[0]}`;
  const epochLines = (lines, from) => lines.map((one) =>
    line(epochsOf(one), one, from, lines.length > 1 && lineAt(lines, selection.epoch) === one));

  const card = (item) => {
    const lead = item.before?.text === item.truth ? [line("true, and before", item.before)]
      : [line("true answer", { text: item.truth }), item.before && line("before", item.before, item.truth)];
    const withAttack = (lines, attacked) => attacked ? [...lines, line(`${variant}, epoch ${attacked.epochs[0]}`, attacked, item.from)] : lines;
    const own = withAttack(epochLines(item.lines, item.from), item.attacked);
    return element("article", { class: "qa" },
      element("header", {}, element("h3", {}, item.question || "Plain text"), element("span", { class: "note" }, lineAt(item.lines, selection.epoch)?.text === null ? "" : `changed ${item.change.toFixed(2)}`)),
      element("dl", {}, ...lead, ...own),
      item.goal && element("dl", {}, line("retain model", item.goal),
        item.goalAttacked && line(`retain model, ${variant}`, item.goalAttacked, item.goal.text)));
  };

  const compare = {
    changed: (a, b) => b.change - a.change, same: (a, b) => a.change - b.change,
    memorized: (a, b) => page.compareValues(a.memorized, b.memorized, -1), given: () => 0,
    back: (a, b) => page.compareValues(a.back, b.back, -1),
  };
  const matches = (item) => {
    const words = byId("answer-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const lines = [...item.lines, item.attacked].map((one) => one?.text);
    const text = [item.question, item.truth, item.before?.text, item.goal?.text, ...lines].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  // Values by token are not in records of earlier versions, and not measured on every set.
  const knowsStrength = () => {
    const [one, set] = [selection.trajectory, byId("answer-set").value];
    return embeddedEpochs(one).some((epoch) => encoded(one, epoch, set)?.[4]);
  };
  const strengths = () => knowsStrength() ? "ES: extraction strength, the share of the true answer that greedy decoding gives once its beginning is known. "
    : "No extraction strength by question: this set has none, or the record is of a version that kept no values by token. ";
  const leftOut = () => {
    const [embeddedRows, rows] = data.rows[byId("answer-set").value] ?? [0, 0];
    const [embedded, total] = data.models;
    const missing = selection.epochs(selection.trajectory)
      .filter((epoch) => epoch > 0 && !embeddedEpochs(selection.trajectory).includes(epoch));
    const several = missing.length > 1;
    return [
      embeddedRows < rows ? `This page has the first ${embeddedRows} of ${rows} questions of this set.` : "",
      missing.length ? `It does not have ${several ? "epochs" : "epoch"} ${missing.join(", ")} of this run.` : "",
      embedded < total ? `It has answers of ${embedded} of ${total} evaluations: each method's best setting first, then last epochs; the records have all.` : "",
    ].filter(Boolean).join(" ");
  };
  const render = () => {
    const [order, set, one] = [byId("answer-order").value, byId("answer-set").value, selection.trajectory];
    const found = items().filter(matches).sort(compare[order]);
    byId("answer-list").replaceChildren(...found.slice(0, count).map(card));
    byId("answer-more").hidden = found.length <= count;
    const against = selection.reference(one, "fine-tuned") || encoded(one, 0, set) ? "the answer before" : "the true answer";
    byId("answer-note").replaceChildren(
      element("b", {}, `${page.runName(one.row)}, ${SETS[set] ?? "no set"}`),
      ` · ${Math.min(count, found.length)} of ${found.length} questions, ${ORDERS[order]}. Marked: words that ${against} does not have. `,
      `Changed, at epoch ${selection.epoch}: 0 = the same words in the same order, 1 = none in common. p: probability of the true answer, per token. ${strengths()}`,
      variant && found.some((item) => item.attacked) ? `Last lines of a run and of the retain model: under ${variant}. ` : "",
      leftOut());
  };
  const restart = () => {
    if (!data || !selection.trajectory) return; // not loaded yet
    count = PORTION;
    render();
  };

  const fill = (select, values, name, chosen) => {
    select.replaceChildren(...values.map((value) => element("option", { value }, name(value))));
    if (values.map(String).includes(String(chosen))) select.value = chosen;
  };
  const fillOrders = () => fill(byId("answer-order"), Object.keys(ORDERS).filter((name) => variant || name !== "back"),
    (name) => ORDERS[name], byId("answer-order").value || "changed");
  const markOrders = () => {
    const [select, known] = [byId("answer-order"), knowsStrength()];
    const option = select.querySelector('option[value="memorized"]');
    option.disabled = !known;
    option.textContent = known ? ORDERS.memorized : `${ORDERS.memorized} (not recorded)`;
    if (!known && select.value === "memorized") select.value = "changed";
  };
  const show = () => {
    const one = selection.trajectory;
    if (!hasData(one)) return;
    const choices = selection.choices(hasData);
    selection.fill(byId("answer-run"), choices, one);
    fill(byId("answer-epoch"), embeddedEpochs(one), String, selection.epoch);
    const variants = variantsOf(one);
    if (!variants.includes(variant)) variant = "";
    byId("answer-variant").parentNode.hidden = !variants.length;
    fill(byId("answer-variant"), ["", ...variants], (name) => name || "no attack", variant);
    const sets = Object.keys(SETS).filter((set) => embeddedEpochs(one).some((epoch) => encoded(one, epoch, set)));
    fill(byId("answer-set"), sets, (set) => SETS[set], byId("answer-set").value || page.data.forget[0]);
    fillOrders();
    markOrders();
    restart();
  };

  const load = async () => {
    if (data) return;
    data = await page.lazyData("answers");
    if (!selection.choices(hasData).length) { byId("answer-note").textContent = "No answers were recorded."; return; }
    selection.listeners.push(show);
    selection.start(hasData);
  };

  page.showAnswers = async (run, epoch, under = "") => {
    await load();
    const one = selection.of(run);
    if (!one || !hasData(one)) return;
    // Of an attack with several points, the page has the answers of the last.
    const near = (name) => name.split("@")[0] === under.split("@")[0];
    const known = variantsOf(one);
    variant = known.includes(under) ? under : known.findLast(near) ?? "";
    selection.select(one, epoch);
    if (variant) {
      byId("answer-set").value = page.data.forget[0];
      byId("answer-order").value = "back";
      restart();
    }
    byId("answers").scrollIntoView();
    byId("answer-run").focus({ preventScroll: true });
  };
  byId("answer-run").addEventListener("change", (event) => selection.select(selection.of(event.target.value)));
  byId("answer-epoch").addEventListener("change", (event) => selection.select(selection.trajectory, Number(event.target.value)));
  byId("answer-variant").addEventListener("change", (event) => {
    variant = event.target.value;
    fillOrders();
    if (variant) byId("answer-order").value = "back";
    restart();
  });
  byId("answer-set").addEventListener("change", () => { markOrders(); restart(); });
  byId("answer-order").addEventListener("change", restart);
  byId("answer-search").addEventListener("input", restart);
  byId("answer-more").addEventListener("click", () => { count += 4 * PORTION; render(); });
  page.whenSeen("answers", load);
}
