// Questions of one evaluation set with the answers of one model, or of two models side by side:
// before unlearning, after every epoch, under an attack, and the retain model's.
//
// A trajectory is a model over epochs (`run_selection.js`). A side is a trajectory at a chosen epoch:
// { trajectory, epoch }. A line is an answer with the epochs that gave it, because equal answers of
// neighbouring epochs are joined: { text, rouge, probabilities, strengths, loops, epochs }. `text` is
// null if the set is only scored, and the two lists have one value per epoch. All scores are in
// hundredths, or null if they are not defined.
{
  const { element, byId, cell, selection, wordDiff } = page;

  const FIRST_COUNT = 12; // questions that are shown at first
  const MORE = 48; // questions that "Show more" adds
  const LONGEST_TEXT = 420; // characters; a longer text is cut …
  const CUT_TEXT = 360; // … to so many
  const LONGEST_QUESTION = 90; // characters of a question in the list of questions …
  const CUT_QUESTION = 88; // … and of one that is cut
  const NARROW = 640; // pixels: two models do not fit beside each other, as in the styles
  const SET_NAMES = page.data.sets;
  const ORDERS = {
    changed: "most changed first",
    same: "least changed first",
    memorized: "most memorized first",
    given: "as in the data",
    back: "most given back under the attack first",
    differ: "most different side by side first",
  };

  let data = null; // loaded when the section is first seen
  let beside = null; // the second side, or null
  let variant = ""; // the chosen attack and its point, such as "relearning@13", or ""
  let shownCount = FIRST_COUNT;

  const mainSide = () => ({ trajectory: selection.trajectory, epoch: selection.epoch });

  const chosenSet = () => byId("answer-set").value;

  // ---- Reading the embedded data ----

  // The answers of one evaluation to the questions of one set, as Python stores them.
  const decode = ([list, textNumbers, rouge, probability, strength, looping]) => ({
    list, // index in `data.lists`, whose entries are [questions, texts by question]
    textNumbers, // by question, an index in the question's texts; empty for a set that is only scored
    rouge, // ROUGE-L by question
    probability, // of the true answer, per token
    strength, // extraction strength; missing in records of earlier versions
    looping, // indices of questions whose answer repeats itself
  });

  // The answers of a trajectory after an epoch to a set, or null if the page does not have them.
  const evaluationAt = (trajectory, epoch, set) => {
    const stored = data.answers[trajectory.runs.get(epoch)]?.[epoch]?.[set];
    return stored ? decode(stored) : null;
  };

  const embeddedEpochs = (trajectory) =>
    selection.epochs(trajectory).filter((epoch) => data.answers[trajectory.runs.get(epoch)]?.[epoch]);

  const hasData = (trajectory) => embeddedEpochs(trajectory).length > 0;

  const evaluationsOf = (trajectory, set) => embeddedEpochs(trajectory)
    .map((epoch) => evaluationAt(trajectory, epoch, set))
    .filter((evaluation) => evaluation !== null);

  // The list of questions that a trajectory answers in a set, or undefined.
  const listOf = (trajectory, set) => evaluationsOf(trajectory, set)[0]?.list;

  // The start ("fine-tuned") or retain model's answers, if they are to the same list of questions.
  const referenceEvaluation = (trajectory, kind, set, list) => {
    const reference = selection.reference(trajectory, kind);
    if (!reference) return null;
    const [epoch] = embeddedEpochs(reference);
    const evaluation = evaluationAt(reference, epoch, set);
    return evaluation?.list === list ? evaluation : null;
  };

  // The answer to question i, as a line without epochs; null without an evaluation.
  const answerTo = (evaluation, i) => {
    if (!evaluation) return null;
    const [, textsByQuestion] = data.lists[evaluation.list];
    const isOnlyScored = evaluation.textNumbers.length === 0;
    return {
      text: isOnlyScored ? null : textsByQuestion[i][evaluation.textNumbers[i]],
      rouge: evaluation.rouge[i],
      probabilities: [evaluation.probability[i]],
      strengths: [evaluation.strength?.[i] ?? null],
      loops: evaluation.looping?.includes(i) ?? false,
    };
  };

  const isSameAnswer = (a, b) => b.text !== null && a.text === b.text && a.rouge === b.rouge;

  // The lines of a trajectory for question i, by epoch.
  const linesByEpoch = (trajectory, set, list, i) => {
    const lines = [];
    for (const epoch of embeddedEpochs(trajectory)) {
      const isBeforeUnlearning = epoch === 0 && trajectory.kind === "run"; // has a line of its own
      const evaluation = evaluationAt(trajectory, epoch, set);
      if (isBeforeUnlearning || evaluation?.list !== list) continue;
      const answer = answerTo(evaluation, i);
      const last = lines.at(-1);
      if (last && isSameAnswer(last, answer)) {
        last.epochs.push(epoch);
        last.probabilities.push(...answer.probabilities);
        last.strengths.push(...answer.strengths);
      } else {
        lines.push({ ...answer, epochs: [epoch] });
      }
    }
    return lines;
  };

  const lineOfEpoch = (lines, epoch) => lines.find((line) => line.epochs.includes(epoch));

  // ---- Answers under attacks ----

  // The evaluations of a trajectory under attacks: [{ epoch, variant, sets }]. Their keys in the data
  // are an epoch and a variant, such as "5 relearning@13".
  const attackedEvaluations = (trajectory) => {
    const attacked = [];
    for (const [epoch, run] of trajectory.runs) {
      const prefix = `${epoch} `;
      for (const [key, sets] of Object.entries(data.answers[run] ?? {})) {
        if (key.startsWith(prefix)) attacked.push({ epoch, variant: key.slice(prefix.length), sets });
      }
    }
    return attacked;
  };

  const variantsOf = (trajectory) =>
    [...new Set(attackedEvaluations(trajectory).map((attacked) => attacked.variant))];

  /**
   * Return a function from the text of a question to the line under the chosen attack, or to null.
   *
   * The model may have been attacked only after another epoch than the one that is shown, and may
   * have been asked only some of the questions. That is why questions are found by their text.
   */
  const linesUnderAttack = (trajectory, epoch, set) => {
    if (!trajectory || !variant) return () => null;
    const ofVariant = attackedEvaluations(trajectory)
      .filter((attacked) => attacked.variant === variant);
    const attacked = ofVariant.find((one) => one.epoch === epoch) ?? ofVariant.at(-1);
    const stored = attacked?.sets[set];
    if (!stored) return () => null;

    const evaluation = decode(stored);
    const [questions] = data.lists[evaluation.list];
    const indexOf = new Map(questions.map((question, i) => [question, i]));
    return (question) => {
      if (!indexOf.has(question)) return null;
      return { ...answerTo(evaluation, indexOf.get(question)), epochs: [attacked.epoch] };
    };
  };

  /**
   * Compute how much of an answer an attack brings back: the gain over the same epoch without the
   * attack.
   *
   * @returns {number | null} The gain in extraction strength, or in the probability of the true answer
   *   if extraction strength is not known for both; null if neither is.
   */
  const givenBack = (attacked, lines) => {
    if (!attacked) return null;
    const [epoch] = attacked.epochs;
    const plain = lineOfEpoch(lines, epoch);
    if (!plain) return null;
    const place = plain.epochs.indexOf(epoch);
    for (const score of ["strengths", "probabilities"]) {
      const after = attacked[score][0] ?? null;
      const before = plain[score][place] ?? null;
      if (after !== null && before !== null) return after - before;
    }
    return null;
  };

  // ---- Questions ----

  /**
   * Return a function that collects what a side answers to question i.
   *
   * Its values: `lines`; `now`, the line of the chosen epoch or else the last one; `attacked`, the line
   * under the chosen attack or null; and what questions are ordered by: `change` (how different the
   * answer is from the text `original`, 0 to 1), `memorized` and `back`.
   */
  const answersOfSide = ({ trajectory, epoch }, set, list) => {
    const underAttack = linesUnderAttack(trajectory, epoch, set);
    return (question, i, original) => {
      const lines = linesByEpoch(trajectory, set, list, i);
      const now = lineOfEpoch(lines, epoch) ?? lines.at(-1);
      const attacked = underAttack(question);
      const hasText = now && now.text !== null;
      // The last line stands in for an epoch that the page lacks. Then the index is −1, which is the
      // line's last epoch.
      const place = now ? now.epochs.indexOf(epoch) : 0;
      return {
        trajectory,
        lines,
        now,
        attacked,
        change: hasText ? wordDiff.distance(original, now.text) : 0,
        memorized: now ? now.strengths.at(place) : null,
        back: givenBack(attacked, lines),
      };
    };
  };

  // How different the answers of two sides are, or null if one of them has no text.
  const differenceOf = (main, other) => {
    const mainText = main.now?.text ?? null;
    const otherText = other?.now?.text ?? null;
    if (mainText === null || otherText === null) return null;
    return wordDiff.distance(mainText, otherText);
  };

  /**
   * Collect the questions of the chosen set with everything that is shown of them.
   *
   * Each has the values of the main side, and `other` (those of the second side, or null), `differ`,
   * `index`, `question`, `truth`, and the lines `before` (the start model's), `retain` and
   * `retainAttacked`, which are null for a model that is not a run. `original` is the text whose
   * other words are marked: the answer before, or the true answer.
   */
  const collectItems = () => {
    const { trajectory, epoch } = mainSide();
    const set = chosenSet();
    const list = listOf(trajectory, set);
    if (list === undefined) return [];

    const isRun = trajectory.kind === "run";
    const start = referenceEvaluation(trajectory, "fine-tuned", set, list)
      ?? evaluationAt(trajectory, 0, set);
    const retain = referenceEvaluation(trajectory, "retain", set, list);
    const retainModel = isRun ? selection.reference(trajectory, "retain") : null;
    const retainUnderAttack = linesUnderAttack(retainModel, epoch, set);
    const answersOfMain = answersOfSide(mainSide(), set, list);
    const answersOfOther = beside ? answersOfSide(beside, set, list) : () => null;

    const [questions, textsByQuestion] = data.lists[list];
    return questions.map((question, index) => {
      const [truth] = textsByQuestion[index];
      const before = isRun ? answerTo(start, index) : null;
      const original = before?.text ?? truth;
      const main = answersOfMain(question, index, original);
      const other = answersOfOther(question, index, original);
      return {
        ...main,
        other,
        differ: differenceOf(main, other),
        index,
        question,
        truth,
        before,
        original,
        retain: isRun ? answerTo(retain, index) : null,
        retainAttacked: retainUnderAttack(question),
      };
    });
  };

  const COMPARE = {
    changed: (a, b) => b.change - a.change,
    same: (a, b) => a.change - b.change,
    memorized: (a, b) => page.compareValues(a.memorized, b.memorized, -1),
    given: () => 0,
    back: (a, b) => page.compareValues(a.back, b.back, -1),
    differ: (a, b) => page.compareValues(a.differ, b.differ, -1),
  };

  const isChosenQuestion = (item) => {
    const chosen = byId("answer-question").value; // an index, or "" for all questions
    return chosen === "" || item.index === Number(chosen);
  };

  // Whether each word of the search is in the question or one of its answers.
  const matchesSearch = (item) => {
    const words = byId("answer-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const answersOf = (side) => (side ? [...side.lines, side.attacked] : []);
    const answers = [item.before, item.retain, ...answersOf(item), ...answersOf(item.other)];
    const texts = [item.question, item.truth, ...answers.map((answer) => answer?.text)];
    const searched = texts.join("\n").toLowerCase();
    return words.every((word) => searched.includes(word));
  };

  // ---- Cards ----

  // "0.20" for 20.
  const fromHundredths = (value) => (value === null ? "–" : (value / 100).toFixed(2));

  // "0.20 → 0.85": the first and the last of joined epochs, or one number if they are equal.
  const firstToLast = (values) => {
    const ends = [values[0], values.at(-1)].map(fromHundredths);
    return [...new Set(ends)].join(" → ");
  };

  const scoresOf = (line) => {
    const parts = [];
    if (line.text !== null && line.rouge !== null) parts.push(`ROUGE-L ${fromHundredths(line.rouge)}`);
    parts.push(`p ${firstToLast(line.probabilities)}`);
    if (!line.strengths.includes(null)) parts.push(`ES ${firstToLast(line.strengths)}`);
    if (line.loops) parts.push("⚠ repeats itself");
    return parts.join(" · ");
  };

  // The nodes of an answer, with marks around words that the text `against` does not have. Null marks
  // nothing. A long answer is cut, with a button that shows all of it.
  const textNodes = (text, against) => {
    if (text === null) {
      return [element("span", { class: "none" }, "not generated: this set is only scored")];
    }
    if (!text) return [element("span", { class: "none" }, "nothing")];

    const marked = (part) => (against === null ? [part] : wordDiff.marked(part, against));
    if (text.length <= LONGEST_TEXT) return marked(text);
    const more = element("button", { type: "button", class: "link" }, `all ${text.length} characters`);
    const holder = element("span", {}, ...marked(text.slice(0, CUT_TEXT)), "… ", more);
    more.addEventListener("click", () => holder.replaceChildren(...marked(text)));
    return [holder];
  };

  const lineElement = (title, line, { against = null, isChosen = false } = {}) => {
    const hasScores = line.probabilities !== undefined; // the true answer has none
    return element("div", { class: isChosen ? "chosen" : "" },
      element("dt", {}, title),
      element("dd", {}, ...textNodes(line.text, against)),
      element("dd", { class: "scores" }, hasScores ? scoresOf(line) : ""));
  };

  // "epoch 3", or "epochs 3–5" for joined epochs.
  const epochsText = ({ epochs }) => {
    const { unit } = page.data;
    if (epochs.length === 1) return `${unit} ${epochs[0]}`;
    return `${unit}s ${epochs[0]}–${epochs.at(-1)}`;
  };

  // The lines of a side. That of the chosen epoch is marked, if there are others.
  const linesOfSide = ({ lines, now, attacked }, original) => {
    const elements = lines.map((line) => lineElement(epochsText(line), line, {
      against: original,
      isChosen: lines.length > 1 && line === now,
    }));
    if (attacked) {
      const title = `${variant}, ${epochsText(attacked)}`;
      elements.push(lineElement(title, attacked, { against: original }));
    }
    return elements;
  };

  const knownLines = ({ truth, before }) => {
    if (before?.text === truth) return [lineElement("true, and before", before)];
    const lines = [lineElement("true answer", { text: truth })];
    if (before) lines.push(lineElement("before", before, { against: truth }));
    return lines;
  };

  const retainLines = ({ retain, retainAttacked }) => {
    const lines = [lineElement("retain model", retain)];
    if (retainAttacked) {
      const title = `retain model, ${variant}`;
      lines.push(lineElement(title, retainAttacked, { against: retain.text }));
    }
    return lines;
  };

  const changeText = ({ now, change }) => (now?.text === null ? "" : `changed ${change.toFixed(2)}`);

  const columnOfSide = (side, original) => {
    const { row } = side.trajectory;
    const heading = element("h4", {}, element("span", { class: "swatch" }), page.runName(row));
    const note = element("span", { class: "note" }, changeText(side));
    const noAnswers = "This page has none of its answers to this question.";
    return element("div", { "data-family": cell(row, "family") },
      element("header", {}, heading, note),
      side.lines.length
        ? element("dl", {}, ...linesOfSide(side, original))
        : element("p", { class: "none" }, noAnswers));
  };

  const cardOf = (item) => {
    const { question, original, other, retain } = item;
    const isAlone = other === null;
    const heading = element("h3", {}, question || "Plain text"); // a text of a corpus has no question
    const note = element("span", { class: "note" }, isAlone ? changeText(item) : "");
    const ownLines = isAlone ? linesOfSide(item, original) : [];
    const sides = isAlone
      ? null
      : element("div", { class: "sides" }, columnOfSide(item, original), columnOfSide(other, original));
    return element("article", { class: "qa" },
      element("header", {}, heading, note),
      element("dl", {}, ...knownLines(item), ...ownLines),
      sides,
      retain && element("dl", {}, ...retainLines(item)));
  };

  // ---- Notes above the cards ----

  const knowsStrength = () =>
    evaluationsOf(selection.trajectory, chosenSet()).some(({ strength }) => strength);

  // What the page leaves out to stay small, in sentences.
  const leftOut = () => {
    const { trajectory } = selection;
    const { unit } = page.data;
    const [embeddedRows, rows] = data.rows[chosenSet()] ?? [0, 0];
    const [embeddedEvaluations, evaluations] = data.models;
    const embedded = embeddedEpochs(trajectory);
    const isMissing = (epoch) => epoch > 0 && !embedded.includes(epoch);
    const missing = selection.epochs(trajectory).filter(isMissing);

    const sentences = [];
    if (embeddedRows < rows) {
      sentences.push(`This page has the first ${embeddedRows} of ${rows} questions of this set.`);
    }
    if (missing.length) sentences.push(`Of this run it lacks ${unit} ${missing.join(", ")}.`);
    if (embeddedEvaluations < evaluations) {
      sentences.push(`It has answers of ${embeddedEvaluations} of ${evaluations} evaluations: `
        + `each method's best setting first, then last ${unit}s; the records have all.`);
    }
    return sentences.join(" ");
  };

  // Why the scores of a best setting are no success. Only best settings have such a warning.
  const warningElement = ({ trajectory, epoch }) => {
    const warning = data.warnings[`${epoch}@${trajectory.runs.get(epoch)}`];
    if (!warning) return null;
    const link = element("button", {
      type: "button",
      class: "link",
      onclick: () => byId("scorecard")?.scrollIntoView(),
    }, "Scorecard");
    return element("span", { class: "warned" },
      `⚠ ${cell(trajectory.row, "method")}: ${warning} (`, link, " has the reasons).");
  };

  // Says whose answers these are, how many, and what the marks mean.
  const showNote = (items) => {
    const { trajectory } = selection;
    const set = chosenSet();
    const besideText = beside ? `, beside ${page.runName(beside.trajectory.row)}` : "";
    const title = `${page.runName(trajectory.row)}${besideText}, ${SET_NAMES[set] ?? set}`;
    const hasBefore = selection.reference(trajectory, "fine-tuned") || evaluationAt(trajectory, 0, set);
    const against = hasBefore ? "the answer before" : "the true answer";
    const sides = beside ? [mainSide(), beside] : [mainSide()];
    byId("answer-note").replaceChildren(
      element("b", {}, title),
      ` · ${Math.min(shownCount, items.length)} of ${items.length} questions, `
        + `${ORDERS[byId("answer-order").value]}. Marked: words that ${against} does not have. `,
      leftOut(),
      ...sides.map(warningElement).filter((warning) => warning !== null));
  };

  // Explains the numbers.
  const showExplanation = (items) => {
    const at = beside ? "" : `, at ${page.data.unit} ${selection.epoch}`;
    const sentences = [
      `Changed${at}: 0 = the same words in the same order, 1 = none in common.`,
      "p: probability of the true answer, per token.",
    ];
    if (knowsStrength()) {
      sentences.push("ES: extraction strength, the share of the true answer that greedy decoding gives "
        + "once its beginning is known.");
    }
    sentences.push("An answer repeats itself if it says more than half of its 4-grams again.");
    if (variant && items.some((item) => item.attacked)) {
      sentences.push(`Last lines of a run and of the retain model: under ${variant}.`);
    }
    byId("answer-how").textContent = sentences.map((sentence) => `${sentence} `).join("");
  };

  // ---- Rendering ----

  const render = () => {
    const isShown = (item) => isChosenQuestion(item) && matchesSearch(item);
    const compare = COMPARE[byId("answer-order").value];
    const items = collectItems().filter(isShown).sort(compare);
    byId("answer-list").replaceChildren(...items.slice(0, shownCount).map(cardOf));
    byId("answer-more").hidden = items.length <= shownCount;
    showNote(items);
    showExplanation(items);
    page.paintSwatches();
  };

  // ---- What the reader can choose ----

  const offerOrders = () => {
    const isOffered = {
      memorized: knowsStrength(),
      back: variant !== "",
      differ: beside !== null,
    };
    const offered = Object.keys(ORDERS).filter((order) => isOffered[order] ?? true);
    page.fillSelect(byId("answer-order"), offered, (order) => ORDERS[order]);
  };

  const cutQuestion = (text) =>
    text.length > LONGEST_QUESTION ? `${text.slice(0, CUT_QUESTION)} …` : text;

  let offeredList = null; // whose questions are offered

  // Offers the questions of the chosen set, if they are not offered already.
  const offerQuestions = () => {
    const list = listOf(selection.trajectory, chosenSet());
    if (list === offeredList) return;
    offeredList = list;
    const questions = data.lists[list]?.[0] ?? [];
    const nameOf = (index) => {
      if (index === "") return `all ${questions.length}`;
      return cutQuestion(questions[index]) || `text ${index + 1}`;
    };
    page.fillSelect(byId("answer-question"), ["", ...questions.keys()], nameOf, "");
  };

  // The ringed points of the panels, [epoch, run] each: the best setting of each method.
  const bestPoints = [];
  for (const { figure } of page.data.panels) {
    for (const trace of figure.data) {
      if (trace.meta.role === "best") bestPoints.push(trace.customdata[0]);
    }
  }

  const bestEpoch = (trajectory) => {
    const point = bestPoints.find(([epoch, run]) => trajectory.runs.get(epoch) === run);
    return point ? point[0] : null;
  };

  // Puts a model beside the first one, at this epoch if the page has it, and otherwise at the last.
  const setBeside = (trajectory, epoch = bestEpoch(trajectory)) => {
    const epochs = embeddedEpochs(trajectory);
    beside = { trajectory, epoch: epochs.includes(epoch) ? epoch : epochs.at(-1) };
  };

  // Offers the other models of the panel.
  const offerBeside = () => {
    const first = selection.trajectory;
    const fits = (trajectory) => trajectory !== first
      && hasData(trajectory)
      && page.place(trajectory.row) === page.place(first.row);
    if (beside && !fits(beside.trajectory)) beside = null;
    const offered = selection.choices(hasData).filter(fits);
    // The second model stays, also if the filters hide it.
    if (beside && !offered.includes(beside.trajectory)) offered.push(beside.trajectory);

    const select = byId("answer-beside");
    selection.fill(select, offered, beside?.trajectory);
    select.prepend(element("option", { value: "" }, "no other"));
    if (!beside) select.value = "";
    select.parentNode.hidden = offered.length === 0;

    const epochSelect = byId("answer-beside-at");
    epochSelect.parentNode.hidden = !beside;
    if (beside) {
      page.fillSelect(epochSelect, embeddedEpochs(beside.trajectory), String, beside.epoch);
    }
  };

  const offerVariants = () => {
    const variants = variantsOf(selection.trajectory);
    if (!variants.includes(variant)) variant = "";
    const select = byId("answer-variant");
    select.parentNode.hidden = variants.length === 0;
    page.fillSelect(select, ["", ...variants], (name) => name || "no attack", variant);
  };

  const offerSets = () => {
    const { trajectory } = selection;
    const known = new Set([...Object.keys(SET_NAMES), ...Object.keys(data.rows)]);
    const sets = [...known].filter((set) => evaluationsOf(trajectory, set).length > 0);
    const chosen = chosenSet() || page.data.forget[0];
    page.fillSelect(byId("answer-set"), sets, (set) => SET_NAMES[set] ?? set, chosen);
  };

  // ---- Events ----

  // Shows the first questions again, after the reader changed what is shown.
  const restart = () => {
    if (!data || !selection.trajectory) return; // not loaded yet
    offerOrders();
    offerQuestions();
    shownCount = FIRST_COUNT;
    render();
  };

  // Offers what the selected model has, and shows its answers.
  const show = () => {
    const { trajectory, epoch } = selection;
    if (!hasData(trajectory)) return;
    selection.fill(byId("answer-run"), selection.choices(hasData), trajectory);
    page.fillSelect(byId("answer-epoch"), embeddedEpochs(trajectory), String, epoch);
    offerBeside();
    offerVariants();
    offerSets();
    restart();
  };

  const setVariant = (name) => {
    variant = name;
    restart(); // offers the order "back" if there is an attack
    if (variant === "") return;
    byId("answer-order").value = "back";
    render();
  };

  const load = async () => {
    if (data) return;
    data = await page.lazyData("answers");
    if (!selection.choices(hasData).length) {
      byId("answer-note").textContent = "No answers were recorded.";
      return;
    }
    selection.listeners.push(show);
    // At first, the best method and its runner-up stand beside each other, if there is room and the
    // reader has not chosen a model elsewhere on the page.
    const [run, epoch] = page.data.second ?? [];
    const runnerUp = selection.of(run);
    const hasRoom = innerWidth > NARROW;
    if (hasRoom && !selection.trajectory && runnerUp && hasData(runnerUp)) setBeside(runnerUp, epoch);
    selection.start(hasData);
  };

  const attackOf = (name) => name.split("@")[0];

  /**
   * Show the answers of a run after an epoch, and scroll to them. For other sections.
   *
   * @param {string} run
   * @param {number} epoch
   * @param {string} under An attack and its point, such as "relearning@13"; "" for no attack.
   */
  page.showAnswers = async (run, epoch, under = "") => {
    await load();
    const trajectory = selection.of(run);
    if (!trajectory || !hasData(trajectory)) return;
    // Of an attack with several points, the page has only the answers at the last one.
    const variants = variantsOf(trajectory);
    const ofSameAttack = variants.findLast((name) => attackOf(name) === attackOf(under));
    variant = variants.includes(under) ? under : ofSameAttack ?? "";
    selection.select(trajectory, epoch);
    if (variant) byId("answer-set").value = page.data.forget[0];
    setVariant(variant);
    byId("answers").scrollIntoView();
    byId("answer-run").focus({ preventScroll: true });
  };

  byId("answer-run").addEventListener("change", ({ target }) => {
    selection.select(selection.of(target.value));
  });
  byId("answer-epoch").addEventListener("change", ({ target }) => {
    selection.select(selection.trajectory, Number(target.value));
  });
  byId("answer-variant").addEventListener("change", ({ target }) => setVariant(target.value));
  byId("answer-beside").addEventListener("change", ({ target }) => {
    beside = null;
    if (target.value) setBeside(selection.of(target.value));
    show();
  });
  byId("answer-beside-at").addEventListener("change", ({ target }) => {
    beside.epoch = Number(target.value);
    show();
  });
  byId("answer-set").addEventListener("change", restart);
  byId("answer-order").addEventListener("change", restart);
  byId("answer-question").addEventListener("change", restart);
  byId("answer-search").addEventListener("input", restart);
  byId("answer-more").addEventListener("click", () => {
    shownCount += MORE;
    render();
  });
  page.whenSeen("answers", load);
}
