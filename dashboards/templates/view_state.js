// The reader's view, stored in the address behind `#`, so that a link or a reload restores it: the
// filters, the open card and the colours. For example
// `#method=npo&method=idk&epoch=2&panel=0&card=2@1055048e802961c5&theme=dark`.
{
  const { data, filters } = page;

  const NUMBER_FILTERS = ["epoch", "seed", "panel"];
  const knownValues = {
    epoch: new Set(data.rows.map((row) => page.cell(row, "epoch"))),
    seed: new Set(data.rows.map((row) => page.cell(row, "seed"))),
    panel: new Set(data.panels.length > 1 ? data.panels.keys() : []),
  };

  // ---- From the page to the address ----

  const fragmentOfView = () => {
    const view = new URLSearchParams();
    for (const family of filters.families) view.append("method", family);
    for (const rate of filters.rates) view.append("rate", rate);
    for (const name of NUMBER_FILTERS) {
      if (filters[name] !== null) view.set(name, filters[name]);
    }
    if (!filters.leading) view.set("lines", "all");
    if (page.card) view.set("card", `${page.card.epoch}@${page.card.run}`);
    if (page.card?.alone) view.set("alone", "1");
    if (page.theme !== null) view.set("theme", page.theme);
    return view.toString();
  };

  /** Write the present view into the address. */
  page.storeView = () => {
    const fragment = fragmentOfView();
    if (fragment === location.hash.slice(1)) return;
    try {
      // A changed filter is no step that "back" in the browser should undo.
      history.replaceState(null, "", fragment ? `#${fragment}` : "#");
    } catch { // some frames have no history
      location.hash = fragment;
    }
  };

  // ---- From the address to the page ----

  // A link within the page, such as "#scorecard", is no view.
  const hasView = () => location.hash.includes("=");

  // Reads "2@1055048e802961c5", epoch and run. A run's id may contain "@" too.
  const readCard = (view) => {
    const [epochText, run] = (view.get("card") ?? "").split(/@(.*)/s);
    const epoch = Number(epochText);
    if (!run || !page.row(run, epoch)) return null;
    return { run, epoch, alone: view.has("alone") };
  };

  /**
   * Set filters, card and colours to the view in the address, without showing them.
   *
   * A link may be older than the page, so values that are not in the data are dropped.
   */
  page.restoreView = () => {
    const view = new URLSearchParams(hasView() ? location.hash.slice(1) : "");
    filters.families = new Set(view.getAll("method").filter((family) => family in data.families));
    filters.rates = new Set(view.getAll("rate").filter((rate) => rate in data.rates));
    for (const name of NUMBER_FILTERS) {
      const value = view.has(name) ? Number(view.get(name)) : null;
      filters[name] = knownValues[name].has(value) ? value : null;
    }
    filters.leading = view.get("lines") !== "all";

    const theme = view.get("theme");
    page.setTheme(theme === "light" || theme === "dark" ? theme : null);
    page.card = readCard(view);
  };

  addEventListener("hashchange", () => {
    const isOwnChange = location.hash.slice(1) === fragmentOfView();
    if (isOwnChange || !hasView()) return;
    page.restoreView();
    page.changed();
    page.showCard?.();
  });

  // A link within the page scrolls without changing the address, which holds the view.
  const scrollToTarget = (event) => {
    const target = document.querySelector(event.currentTarget.getAttribute("href"));
    if (!target) return;
    event.preventDefault();
    target.setAttribute("tabindex", "-1"); // so that the keyboard goes on from there
    target.focus({ preventScroll: true });
    target.scrollIntoView();
  };

  page.whenLoaded(() => {
    for (const link of document.querySelectorAll('a[href^="#"]')) {
      link.addEventListener("click", scrollToTarget);
    }
  });
}
