// The card of the selected point.
{
  const { element, byId, cell } = page;
  let opener = null;

  const block = (title, ...children) => element("section", { class: "block" }, element("h4", {}, title), ...children.flat());
  const lazyBlock = (title, promise) => {
    const holder = block(title, element("p", { class: "note" }, "Loading …"));
    promise.then((nodes) => holder.replaceChildren(holder.firstChild, ...nodes));
    return holder;
  };

  // Draws the card and its point's ring, which no other part of the page depends on.
  const open = (card) => {
    page.card = card;
    page.showCard();
    page.markSelected();
    page.selection.follow();
    page.storeView();
  };
  const close = () => {
    open(null);
    if (opener?.isConnected) opener.focus({ preventScroll: true });
  };

  // Draws the card of `page.card`, or removes it.
  page.showCard = () => {
    const card = byId("selected");
    card.hidden = page.card === null;
    card.replaceChildren();
    if (page.card === null) return;
    const { run, epoch, alone } = page.card;
    const row = page.row(run, epoch);
    const isRun = cell(row, "kind") === "run";
    const seeds = page.seedsOf(row).length;
    card.dataset.family = cell(row, "family");
    card.append(
      element("div", { class: "head" },
        element("h3", {}, isRun ? element("span", { class: "swatch" }) : null, alone || !isRun ? page.runName(row) : page.settingName(row), isRun ? `, ${page.data.unit} ${epoch}` : ""),
        page.parts.link(run),
        element("button", { type: "button", onclick: () => page.showAnswers(run, epoch) }, "All its answers"),
        element("button", { type: "button", onclick: close }, "Close")),
      element("p", { class: "note" }, `${page.place(row)}; `, ...(isRun && !alone && seeds > 1 ? [`mean of ${seeds} seeds`] : ["run ", element("code", {}, run), `; ${cell(row, "status")}`])),
      element("div", { class: "blocks" },
        block(`Against the start${page.data.retain ? " and the retain" : ""} model`, page.parts.comparison(row, alone)),
        element("div", {},
          isRun ? block("All seeds of the setting", page.parts.seeds(row)) : null,
          lazyBlock("Configuration", page.parts.configuration(run)))),
      isRun ? lazyBlock("Forgetting curves of the setting", page.parts.curves(row)) : "",
      lazyBlock(`Answers that changed most, ${page.data.sets[page.data.forget[0]]}${isRun && !alone ? `, seed ${cell(row, "seed")}` : ""}`, page.parts.answers(row)));
    page.paintSwatches();
  };

  page.select = (run, epoch, alone = false) => {
    if (!page.row(run, epoch)) return;
    opener = document.activeElement;
    open({ run, epoch, alone });
    byId("selected").focus({ preventScroll: true });
  };
  byId("selected").addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
}
