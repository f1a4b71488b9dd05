// Filters, chosen panel, open card, switches and colours, stored in the address behind `#`: a link or a
// reload restores them. A copied link has the section at the top of the window as well.
{
  const { data, filters } = page;
  const methods = new Set(data.rows.map((row) => page.cell(row, "method")));
  const seeds = new Set(data.rows.map((row) => page.cell(row, "seed")));
  const lists = { published: new Set(), whole: new Set() }; // indices of panels
  page.switched = lists;

  // The section that is read: the last one that begins in the upper third of the window.
  const sectionInView = () => [...document.querySelectorAll("main > section")]
    .filter((one) => one.getBoundingClientRect().top < innerHeight / 3)
    .reduce((last, one) => (!last || one.getBoundingClientRect().top > last.getBoundingClientRect().top ? one : last), null)?.id;
  page.link = () => {
    const view = new URLSearchParams(fragment());
    const section = scrollY > 0 && sectionInView();
    if (section) view.set("at", section);
    return `${location.href.split("#")[0]}#${view}`;
  };
  const fragment = () => {
    const view = new URLSearchParams();
    for (const family of filters.families) view.append("method", family);
    for (const rate of filters.rates) view.append("rate", rate);
    for (const name of ["from", "to", "setting", "epoch", "seed"]) if (filters[name] !== null) view.set(name, filters[name]);
    if (!filters.leading) view.set("lines", "all");
    for (const [name, panels] of Object.entries(lists)) if (panels.size) view.set(name, [...panels].join(","));
    if (page.card) view.set("card", `${page.card.epoch}@${page.card.run}`);
    if (page.card?.alone) view.set("alone", "1");
    if (filters.panel !== null) view.set("panel", filters.panel);
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
    const number = (name) => (view.has(name) && Number.isFinite(Number(view.get(name))) ? Number(view.get(name)) : null);
    const set = (target, values) => { target.clear(); values.forEach((value) => target.add(value)); };
    set(filters.families, view.getAll("method").filter((family) => family in data.families));
    set(filters.rates, view.getAll("rate").filter((rate) => rate in data.rates));
    [filters.from, filters.to, filters.seed] = ["from", "to", "seed"].map(number);
    if (!seeds.has(filters.seed)) filters.seed = null;
    filters.setting = methods.has(view.get("setting")) ? view.get("setting") : null;
    filters.epoch = /^(to)?\d+$/.test(view.get("epoch") ?? "") ? view.get("epoch") : null;
    const panel = number("panel");
    filters.panel = data.panels.length > 1 && panel in data.panels ? panel : null;
    page.setTheme(["light", "dark"].includes(view.get("theme")) ? view.get("theme") : null);
    section = page.byId(view.get("at") ?? "")?.matches("main > section") ? page.byId(view.get("at")) : null;
    filters.leading = view.get("lines") !== "all";
    for (const [name, panels] of Object.entries(lists)) {
      set(panels, (view.get(name) ?? "").split(",").filter(Boolean).map(Number).filter((i) => i in data.panels));
    }
    const [epoch, run] = (view.get("card") ?? "").split(/@(.*)/s);
    page.card = run && page.row(run, Number(epoch)) ? { run, epoch: Number(epoch), alone: view.has("alone") } : null;
  };
  let section = null; // of the address
  page.restoreView();
  // Sections above it grow while they are drawn: it stays at the top until the reader does something.
  page.showSection = () => {
    const target = section;
    if (!target) return;
    const stay = () => target.scrollIntoView({ behavior: "instant" });
    const observer = new ResizeObserver(stay);
    observer.observe(document.querySelector("main"));
    const stop = () => observer.disconnect();
    setTimeout(stop, 3000);
    for (const name of ["wheel", "pointerdown", "keydown", "touchstart"]) addEventListener(name, stop, { once: true, passive: true });
    stay();
  };
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) === fragment()) return;
    page.restoreView();
    page.changed();
    page.showCard();
    page.showSection();
  });

  // Links within the page scroll, and keep the address.
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
  if (/^#[\w-]+$/.test(location.hash)) document.querySelector(location.hash)?.scrollIntoView();
}
