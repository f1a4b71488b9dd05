// The reader's view, kept in the address behind `#`: a link to it or a reload shows the same view.
{
  const { data, filters } = page;
  const methods = new Set(data.rows.map((row) => page.cell(row, "method")));
  const seeds = new Set(data.rows.map((row) => page.cell(row, "seed")));
  const lists = { published: new Set(), whole: new Set() }; // panels, by number
  page.switched = lists;
  page.manyLines = data.panels.some((panel) => panel.figure.data.filter((trace) => trace.meta.role === "trajectory").length > 40);

  const told = () => {
    const found = new URLSearchParams();
    for (const family of filters.families) found.append("method", family);
    for (const rate of filters.rates) found.append("rate", rate);
    for (const name of ["from", "to", "setting", "epoch", "seed"]) if (filters[name] !== null) found.set(name, filters[name]);
    if (filters.leading !== page.manyLines) found.set("lines", filters.leading ? "leading" : "all");
    for (const [name, panels] of Object.entries(lists)) if (panels.size) found.set(name, [...panels].join(","));
    if (page.card) found.set("card", `${page.card.epoch}@${page.card.run}`);
    return found.toString();
  };
  page.remember = () => {
    const wanted = told();
    if (wanted === location.hash.slice(1)) return;
    try {
      history.replaceState(null, "", wanted ? `#${wanted}` : "#");
    } catch { // where history is shut, as in some frames
      location.hash = wanted;
    }
  };

  // What the data does not have (any more) is dropped: a link may be older than the page.
  page.recall = () => {
    const given = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
    const number = (name) => (given.has(name) && Number.isFinite(Number(given.get(name))) ? Number(given.get(name)) : null);
    const set = (target, values) => { target.clear(); values.forEach((value) => target.add(value)); };
    set(filters.families, given.getAll("method").filter((family) => family in data.families));
    set(filters.rates, given.getAll("rate").filter((rate) => rate in data.rates));
    [filters.from, filters.to, filters.seed] = ["from", "to", "seed"].map(number);
    if (!seeds.has(filters.seed)) filters.seed = null;
    filters.setting = methods.has(given.get("setting")) ? given.get("setting") : null;
    filters.epoch = /^(to)?\d+$/.test(given.get("epoch") ?? "") ? given.get("epoch") : null;
    filters.leading = given.has("lines") ? given.get("lines") === "leading" : page.manyLines;
    for (const [name, panels] of Object.entries(lists)) {
      set(panels, (given.get(name) ?? "").split(",").filter(Boolean).map(Number).filter((i) => i in data.panels));
    }
    const [epoch, run] = (given.get("card") ?? "").split(/@(.*)/s);
    page.card = run && page.row(run, Number(epoch)) ? { run, epoch: Number(epoch) } : null;
  };
  page.recall();
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) === told()) return;
    page.recall();
    page.changed();
    page.showCard();
  });

  // Links within the page move the reader and leave the view as it is.
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
