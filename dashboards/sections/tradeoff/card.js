// The card of the selected point: `page.card`, drawn into the element "selected".
{
  const { element, byId, cell } = page;

  let opener = null; // the element that had the focus before the card was opened

  // ---- Blocks ----

  const block = (title, content) =>
    element("section", { class: "block" }, element("h4", {}, title), content);

  // A block whose nodes arrive later.
  const lazyBlock = (title, promise) => {
    const holder = block(title, element("p", { class: "note" }, "Loading …"));
    const heading = holder.firstChild;
    promise.then((nodes) => holder.replaceChildren(heading, ...nodes));
    return holder;
  };

  // ---- Parts ----

  const headOf = (row) => {
    const { run, epoch, alone } = page.card;
    const isRun = cell(row, "kind") === "run";
    const isOneRun = alone || !isRun;
    const heading = element("h3", {},
      isRun ? element("span", { class: "swatch" }) : null,
      isOneRun ? page.runName(row) : page.settingName(row),
      isRun ? `, ${page.data.unit} ${epoch}` : "");
    const showAnswers = () => page.showAnswers(run, epoch);
    return element("div", { class: "head" },
      heading,
      page.parts.link(run),
      element("button", { type: "button", onclick: showAnswers }, "All its answers"),
      element("button", { type: "button", onclick: close }, "Close"));
  };

  // Says what the numbers are of: several seeds, or one run.
  const originOf = (row) => {
    const { run, alone } = page.card;
    const seedCount = page.seedsOf(row).length;
    const isMean = cell(row, "kind") === "run" && !alone && seedCount > 1;
    const origin = isMean
      ? [`mean of ${seedCount} seeds`]
      : ["run ", element("code", {}, run), `; ${cell(row, "status")}`];
    return element("p", { class: "note" }, `${page.place(row)}; `, ...origin);
  };

  const partsOf = (row) => {
    const { run, alone } = page.card;
    const isRun = cell(row, "kind") === "run";
    const models = page.data.retain ? "start and the retain model" : "start model";
    const seedsBlock = isRun ? block("All seeds of the setting", page.parts.seeds(row)) : null;
    const configuration = lazyBlock("Configuration", page.parts.configuration(run));
    const curves = isRun
      ? lazyBlock("Forgetting curves of the setting", page.parts.curves(row))
      : "";

    // Answers are of one run, also on a card of several seeds.
    const forgetSet = page.data.sets[page.data.forget[0]];
    const seedText = isRun && !alone ? `, seed ${cell(row, "seed")}` : "";
    const answersTitle = `Answers that changed most, ${forgetSet}${seedText}`;

    return [
      element("div", { class: "blocks" },
        block(`Against the ${models}`, page.parts.comparison(row, alone)),
        element("div", {}, seedsBlock, configuration)),
      curves,
      lazyBlock(answersTitle, page.parts.answers(row)),
    ];
  };

  /** Draw the card of `page.card`, or hide it if that is null. */
  page.showCard = () => {
    const card = byId("selected");
    card.hidden = page.card === null;
    card.replaceChildren();
    if (page.card === null) return;
    const row = page.row(page.card.run, page.card.epoch);
    card.dataset.family = cell(row, "family");
    card.append(headOf(row), originOf(row), ...partsOf(row));
    page.paintSwatches();
  };

  // ---- Opening and closing ----

  // Filters stay, so only the card, the ring around its point, and the selected run are updated.
  const setCard = (card) => {
    page.card = card;
    page.showCard();
    page.markSelected();
    page.selection.follow();
    page.storeView();
  };

  const close = () => {
    setCard(null);
    if (opener?.isConnected) opener.focus({ preventScroll: true });
  };

  /**
   * Open the card of a point. Nothing happens if the report has no such evaluation.
   *
   * @param {string} run
   * @param {number} epoch
   * @param {boolean} alone Whether the card shows only this run, and not the mean over its seeds.
   */
  page.select = (run, epoch, alone = false) => {
    if (!page.row(run, epoch)) return;
    opener = document.activeElement;
    setCard({ run, epoch, alone });
    byId("selected").focus({ preventScroll: true });
  };

  byId("selected").addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });
}
