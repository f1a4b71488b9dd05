// Questions of one set with the answers of one or two models, before and after every epoch, and of the
// retain model; equal answers of neighbouring epochs are one line.
{
  const { element, byId, cell, selection, wordDiff } = page;
  const [PORTION, LONG, CUT] = [12, 420, 360];
  const SETS = page.data.sets;
  const ORDERS = { changed: "most changed first", same: "least changed first", memorized: "most memorized first", given: "as in the data", back: "most given back under the attack first", differ: "most different side by side first" };
  const NARROW = 640; // pixels: as in the styles, where two models do not fit beside each other
  let data = null;
  let beside = null; // the second model: { one, epoch }
  let variant = ""; // an attack and its point
  let count = PORTION;

  // Encoded answers of an evaluation: [list, text numbers, ROUGE-L, probability, extraction strength,
  // questions whose answer repeats itself].
  const encoded = (one, epoch, set) => one && (data.answers[one.runs.get(epoch)]?.[epoch]?.[set] ?? null);
  const embeddedEpochs = (one) => selection.epochs(one).filter((epoch) => data.answers[one.runs.get(epoch)]?.[epoch]);
  const hasData = (one) => embeddedEpochs(one).length > 0;
  const ofReference = (one, kind, set, list) => {
    const model = selection.reference(one, kind);
    const answers = model && encoded(model, embeddedEpochs(model)[0], set);
    return answers && answers[0] === list ? answers : null;
  };
  // A set that is only scored has no text.
  const answer = (from, i) => from && { text: from[1].length ? data.lists[from[0]][1][i][from[1][i]] : null, rouge: from[2][i], p: [from[3][i]], es: [from[4]?.[i] ?? null], loops: from[5]?.includes(i) ?? false };

  // Answers to a question by epoch; equal ones of neighbouring epochs are joined.
  const byEpoch = (one, set, list, i) => {
    const lines = [];
    for (const epoch of embeddedEpochs(one).filter((e) => e > 0 || one.kind !== "run")) {
      const from = encoded(one, epoch, set);
      if (!from || from[0] !== list) continue;
      const [next, last] = [answer(from, i), lines.at(-1)];
      if (last && next.text !== null && last.text === next.text && last.rouge === next.rouge) {
        for (const [name, value] of [["epochs", epoch], ["p", next.p[0]], ["es", next.es[0]]]) last[name].push(value);
      } else lines.push({ ...next, epochs: [epoch] });
    }
    return lines;
  };
  // Answers under attacks have the keys `epoch variant`, and may be of some of the questions only.
  const attackedKeys = (one) => [...one.runs].flatMap(([epoch, run]) =>
    Object.keys(data.answers[run] ?? {}).filter((key) => key.startsWith(`${epoch} `)).map((key) => [run, key]));
  const variantsOf = (one) => [...new Set(attackedKeys(one).map(([, key]) => key.slice(key.indexOf(" ") + 1)))];
  const underAttack = (one, epoch, set) => {
    const found = one && variant ? attackedKeys(one).filter(([, key]) => key.endsWith(` ${variant}`)) : [];
    const [run, key] = found.find(([, name]) => name === `${epoch} ${variant}`) ?? found.at(-1) ?? [];
    const from = data.answers[run]?.[key]?.[set];
    const places = new Map(from && data.lists[from[0]][0].map((question, i) => [question, i]));
    return (question) => (places.has(question) ? { ...answer(from, places.get(question)), epochs: [key.split(" ")[0]] } : null);
  };
  const lineAt = (lines, epoch) => lines.find((line) => line.epochs.includes(epoch)) ?? lines.at(-1);

  const listOf = (one, set) => embeddedEpochs(one).map((epoch) => encoded(one, epoch, set)?.[0]).find((number) => number !== undefined);

  // What a model answers, question by question: its lines by epoch, and the one under an attack.
  const sideOf = ({ one, epoch }, set, list) => {
    const under = underAttack(one, epoch, set);
    return (question, i, from) => {
      const lines = byEpoch(one, set, list, i);
      const now = lineAt(lines, epoch);
      const place = now ? now.epochs.indexOf(epoch) : 0;
      const change = now && now.text !== null ? wordDiff.distance(from, now.text) : 0;
      const attacked = under(question);
      // The model may have been attacked after another epoch than the one that is shown.
      const attackedEpoch = attacked ? Number(attacked.epochs[0]) : null;
      const plain = lines.find((line) => line.epochs.includes(attackedEpoch));
      const at = plain ? plain.epochs.indexOf(attackedEpoch) : 0;
      // Both numbers are of one metric: extraction strength, or probability where one lacks it.
      const pair = (name) => [attacked?.[name].at(0) ?? null, plain?.[name].at(at) ?? null];
      const both = [pair("es"), pair("p")].find((values) => !values.includes(null));
      return {
        one, lines, now, change, attacked,
        memorized: now ? now.es.at(place) : null, back: both ? both[0] - both[1] : null,
      };
    };
  };

  const items = () => {
    const [one, set] = [selection.trajectory, byId("answer-set").value];
    const list = listOf(one, set);
    if (list === undefined) return [];
    const isRun = one.kind === "run";
    const start = ofReference(one, "fine-tuned", set, list) ?? encoded(one, 0, set);
    const goal = ofReference(one, "retain", set, list);
    const goalUnder = underAttack(isRun ? selection.reference(one, "retain") : null, selection.epoch, set);
    const [first, second] = [{ one, epoch: selection.epoch }, beside].map((side) => side && sideOf(side, set, list));
    const [questions, texts] = data.lists[list];
    return questions.map((question, i) => {
      const truth = texts[i][0];
      const before = isRun ? answer(start, i) : null;
      const from = before?.text ?? truth;
      const [main, other] = [first(question, i, from), second?.(question, i, from) ?? null];
      const [here, there] = [main.now?.text ?? null, other?.now?.text ?? null];
      return {
        ...main, other, i, goalAttacked: goalUnder(question), question, truth, before, from, goal: isRun ? answer(goal, i) : null,
        differ: here === null || there === null ? null : wordDiff.distance(here, there),
      };
    });
  };

  const hundredths = (value) => value === null ? "–" : (value / 100).toFixed(2);
  const scores = (line) => {
    const ends = (values) => [...new Set([values[0], values.at(-1)].map(hundredths))].join(" → ");
    const strength = line.es.includes(null) ? "" : ` · ES ${ends(line.es)}`;
    const loops = line.loops ? " · ⚠ repeats itself" : "";
    return `${line.text === null || line.rouge === null ? "" : `ROUGE-L ${hundredths(line.rouge)} · `}p ${ends(line.p)}${strength}${loops}`;
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
  const epochsOf = ({ epochs }) => epochs.length > 1 ? `${page.data.unit}s ${epochs[0]}–${epochs.at(-1)}` : `${page.data.unit} ${epochs[0]}`;
  // The lines of a model; the one at its chosen epoch is marked.
  const linesOf = ({ lines, now, attacked }, from) => [
    ...lines.map((one) => line(epochsOf(one), one, from, lines.length > 1 && now === one)),
    attacked && line(`${variant}, ${epochsOf(attacked)}`, attacked, from),
  ].filter(Boolean);
  const changed = ({ now, change }) => (now?.text === null ? "" : `changed ${change.toFixed(2)}`);
  const column = (side, from) => element("div", { "data-family": cell(side.one.row, "family") },
    element("header", {}, element("h4", {}, element("span", { class: "swatch" }), page.runName(side.one.row)), element("span", { class: "note" }, changed(side))),
    side.lines.length ? element("dl", {}, ...linesOf(side, from)) : element("p", { class: "none" }, "This page has none of its answers to this question."));
  const card = (item) => {
    const { question, truth, before, from, goal, goalAttacked, other } = item;
    const known = before?.text === truth ? [line("true, and before", before)] : [line("true answer", { text: truth }), before && line("before", before, truth)].filter(Boolean);
    return element("article", { class: "qa" },
      element("header", {}, element("h3", {}, question || "Plain text"), element("span", { class: "note" }, other ? "" : changed(item))),
      element("dl", {}, ...known, ...(other ? [] : linesOf(item, from))),
      other && element("div", { class: "sides" }, column(item, from), column(other, from)),
      goal && element("dl", {}, line("retain model", goal), goalAttacked && line(`retain model, ${variant}`, goalAttacked, goal.text)));
  };

  const compare = {
    changed: (a, b) => b.change - a.change, same: (a, b) => a.change - b.change,
    memorized: (a, b) => page.compareValues(a.memorized, b.memorized, -1), given: () => 0,
    back: (a, b) => page.compareValues(a.back, b.back, -1),
    differ: (a, b) => page.compareValues(a.differ, b.differ, -1),
  };
  const matches = (item) => {
    const words = byId("answer-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    if (byId("answer-question").value !== "" && item.i !== Number(byId("answer-question").value)) return false;
    const lines = [item, item.other].flatMap((side) => (side ? [...side.lines, side.attacked] : [])).map((one) => one?.text);
    const text = [item.question, item.truth, item.before?.text, item.goal?.text, ...lines].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  // Values by token are not in records of earlier versions, and not measured on every set.
  const knowsStrength = () => embeddedEpochs(selection.trajectory).some((epoch) => encoded(selection.trajectory, epoch, byId("answer-set").value)?.[4]);
  const leftOut = (one, set) => {
    const [[embeddedRows, rows], [embedded, total]] = [data.rows[set] ?? [0, 0], data.models];
    const missing = selection.epochs(one).filter((epoch) => epoch > 0 && !embeddedEpochs(one).includes(epoch));
    return [
      embeddedRows < rows ? `This page has the first ${embeddedRows} of ${rows} questions of this set.` : "",
      missing.length ? `Of this run it lacks ${page.data.unit} ${missing.join(", ")}.` : "",
      embedded < total ? `It has answers of ${embedded} of ${total} evaluations: each method's best setting first, then last ${page.data.unit}s; the records have all.` : "",
    ].filter(Boolean).join(" ");
  };
  // Why the scores of the shown settings are no success, for those that are the best of their method.
  const warnings = () => [{ one: selection.trajectory, epoch: selection.epoch }, beside].filter(Boolean)
    .map(({ one, epoch }) => [one, data.warnings[`${epoch}@${one.runs.get(epoch)}`]]).filter(([, text]) => text)
    .map(([one, text]) => element("span", { class: "warned" }, `⚠ ${cell(one.row, "method")}: ${text} (`, element("button", { type: "button", class: "link", onclick: () => byId("scorecard")?.scrollIntoView() }, "Scorecard"), " has the reasons)."));
  const render = () => {
    const [order, set, one] = [byId("answer-order").value, byId("answer-set").value, selection.trajectory];
    const found = items().filter(matches).sort(compare[order]);
    byId("answer-list").replaceChildren(...found.slice(0, count).map(card));
    byId("answer-more").hidden = found.length <= count;
    const against = selection.reference(one, "fine-tuned") || encoded(one, 0, set) ? "the answer before" : "the true answer";
    byId("answer-note").replaceChildren(
      element("b", {}, `${page.runName(one.row)}${beside ? `, beside ${page.runName(beside.one.row)}` : ""}, ${SETS[set] ?? set}`),
      ` · ${Math.min(count, found.length)} of ${found.length} questions, ${ORDERS[order]}. Marked: words that ${against} does not have. `,
      leftOut(one, set), ...warnings());
    byId("answer-how").replaceChildren(
      `Changed${beside ? "" : `, at ${page.data.unit} ${selection.epoch}`}: 0 = the same words in the same order, 1 = none in common. p: probability of the true answer, per token. `,
      knowsStrength() ? "ES: extraction strength, the share of the true answer that greedy decoding gives once its beginning is known. " : "",
      "An answer repeats itself if it says more than half of its 4-grams again. ",
      variant && found.some((item) => item.attacked) ? `Last lines of a run and of the retain model: under ${variant}. ` : "");
    page.paintSwatches();
  };
  const cutQuestion = (text) => (text.length > 90 ? `${text.slice(0, 88)} …` : text);
  let offeredList = null;
  const offerQuestions = () => {
    const list = listOf(selection.trajectory, byId("answer-set").value);
    if (list === offeredList) return;
    offeredList = list;
    const questions = data.lists[list]?.[0] ?? [];
    const name = (i) => (i === "" ? `all ${questions.length}` : cutQuestion(questions[i]) || `text ${i + 1}`);
    page.fillSelect(byId("answer-question"), ["", ...questions.keys()], name, "");
  };
  // The second model: of the same panel, and another than the first.
  const BEST = page.data.panels.flatMap(({ figure }) => figure.data.filter(({ meta }) => meta.role === "best").map(({ customdata }) => customdata[0]));
  const bestEpoch = (one) => BEST.find(([epoch, run]) => one.runs.get(epoch) === run)?.[0] ?? null;
  const setBeside = (one, epoch = bestEpoch(one)) => {
    const epochs = embeddedEpochs(one);
    beside = { one, epoch: epochs.includes(epoch) ? epoch : epochs.at(-1) };
  };
  const offerBeside = () => {
    const one = selection.trajectory;
    const fits = (other) => other !== one && hasData(other) && page.place(other.row) === page.place(one.row);
    if (beside && !fits(beside.one)) beside = null;
    const offered = selection.choices(hasData).filter(fits);
    if (beside && !offered.includes(beside.one)) offered.push(beside.one);
    selection.fill(byId("answer-beside"), offered, beside?.one);
    byId("answer-beside").prepend(element("option", { value: "" }, "no other"));
    if (!beside) byId("answer-beside").value = "";
    byId("answer-beside").parentNode.hidden = !offered.length;
    byId("answer-beside-at").parentNode.hidden = !beside;
    if (beside) page.fillSelect(byId("answer-beside-at"), embeddedEpochs(beside.one), String, beside.epoch);
  };
  const restart = () => {
    if (!data || !selection.trajectory) return; // not loaded yet
    const offered = Object.keys(ORDERS).filter((name) => (variant || name !== "back") && (beside || name !== "differ") && (name !== "memorized" || knowsStrength()));
    page.fillSelect(byId("answer-order"), offered, (name) => ORDERS[name]);
    offerQuestions();
    count = PORTION;
    render();
  };
  const show = () => {
    const one = selection.trajectory;
    if (!hasData(one)) return;
    selection.fill(byId("answer-run"), selection.choices(hasData), one);
    page.fillSelect(byId("answer-epoch"), embeddedEpochs(one), String, selection.epoch);
    offerBeside();
    const variants = variantsOf(one);
    if (!variants.includes(variant)) variant = "";
    byId("answer-variant").parentNode.hidden = !variants.length;
    page.fillSelect(byId("answer-variant"), ["", ...variants], (name) => name || "no attack", variant);
    const sets = [...new Set([...Object.keys(SETS), ...Object.keys(data.rows)])].filter((set) => embeddedEpochs(one).some((epoch) => encoded(one, epoch, set)));
    page.fillSelect(byId("answer-set"), sets, (set) => SETS[set] ?? set, byId("answer-set").value || page.data.forget[0]);
    restart();
  };
  const setVariant = (name) => {
    variant = name;
    restart();
    if (!variant) return;
    byId("answer-order").value = "back";
    render();
  };

  const load = async () => {
    if (data) return;
    data = await page.lazyData("answers");
    if (!selection.choices(hasData).length) { byId("answer-note").textContent = "No answers were recorded."; return; }
    selection.listeners.push(show);
    // At first the best method and its runner-up stand beside each other, where there is room.
    const [run, epoch] = page.data.second ?? [];
    const second = selection.of(run);
    if (innerWidth > NARROW && !selection.trajectory && second && hasData(second)) setBeside(second, epoch);
    selection.start(hasData);
  };
  page.showAnswers = async (run, epoch, under = "") => {
    await load();
    const one = selection.of(run);
    if (!one || !hasData(one)) return;
    // Of an attack with several points, the page has the answers of the last.
    const known = variantsOf(one);
    variant = known.includes(under) ? under : known.findLast((name) => name.split("@")[0] === under.split("@")[0]) ?? "";
    selection.select(one, epoch);
    if (variant) byId("answer-set").value = page.data.forget[0];
    setVariant(variant);
    byId("answers").scrollIntoView();
    byId("answer-run").focus({ preventScroll: true });
  };
  byId("answer-run").addEventListener("change", (event) => selection.select(selection.of(event.target.value)));
  byId("answer-epoch").addEventListener("change", (event) => selection.select(selection.trajectory, Number(event.target.value)));
  byId("answer-variant").addEventListener("change", (event) => setVariant(event.target.value));
  byId("answer-beside").addEventListener("change", ({ target }) => {
    beside = null;
    if (target.value) setBeside(selection.of(target.value));
    show();
  });
  byId("answer-beside-at").addEventListener("change", ({ target }) => {
    beside.epoch = Number(target.value);
    show();
  });
  for (const [id, event] of [["answer-set", "change"], ["answer-order", "change"], ["answer-question", "change"], ["answer-search", "input"]]) byId(id).addEventListener(event, restart);
  byId("answer-more").addEventListener("click", () => { count += 4 * PORTION; render(); });
  page.whenSeen("answers", load);
}
