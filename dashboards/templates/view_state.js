// Filters, chosen panel, open card and colours, stored in the address behind `#`: a link or a reload
// restores them.
{
  const { data, filters } = page;
  const NUMBERS = ["epoch", "seed", "panel"];
  const known = {
    epoch: new Set(data.rows.map((row) => page.cell(row, "epoch"))),
    seed: new Set(data.rows.map((row) => page.cell(row, "seed"))),
    panel: new Set(data.panels.length > 1 ? data.panels.keys() : []),
  };
  const fragment = () => {
    const view = new URLSearchParams();
    for (const family of filters.families) view.append("method", family);
    for (const rate of filters.rates) view.append("rate", rate);
    for (const name of NUMBERS) if (filters[name] !== null) view.set(name, filters[name]);
    if (!filters.leading) view.set("lines", "all");
    if (page.card) view.set("card", `${page.card.epoch}@${page.card.run}`);
    if (page.card?.alone) view.set("alone", "1");
    if (page.theme !== null) view.set("theme", page.theme);
    return view.toString();
  };
  page.storeView = () => {
    const text = fragment();
    if (text === location.hash.slice(1)) return;
    try {
      history.replaceState(null, "", text ? `#${text}` : "#");
    } catch { // history is not available in some frames
      location.hash = text;
    }
  };
  // Values that are not in the data are dropped: a link may be older than the page.
  page.restoreView = () => {
    const view = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    filters.families = new Set(view.getAll("method").filter((family) => family in data.families));
    filters.rates = new Set(view.getAll("rate").filter((rate) => rate in data.rates));
    for (const name of NUMBERS) {
      const value = view.has(name) ? Number(view.get(name)) : null;
      filters[name] = known[name].has(value) ? value : null;
    }
    filters.leading = view.get("lines") !== "all";
    page.setTheme(["light", "dark"].includes(view.get("theme")) ? view.get("theme") : null);
    const [epoch, run] = (view.get("card") ?? "").split(/@(.*)/s);
    page.card = run && page.row(run, Number(epoch)) ? { run, epoch: Number(epoch), alone: view.has("alone") } : null;
  };
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) === fragment() || !location.hash.includes("=")) return;
    page.restoreView();
    page.changed();
    page.showCard?.();
  });
  // Links within the page scroll, and keep the address.
  page.whenLoaded(() => {
    for (const link of document.querySelectorAll('a[href^="#"]')) {
      link.addEventListener("click", (event) => {
        const target = document.querySelector(link.getAttribute("href"));
        if (!target) return;
        event.preventDefault();
        target.setAttribute("tabindex", "-1");
        target.focus({ preventScroll: true });
        target.scrollIntoView();
      });
    }
  });
}
