// The filters, the Pareto panels, and the card of the point that the reader has picked.
{
  const { data, element, byId } = page;
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = { solid: "", dash: "6 4", dot: "1.5 3", dashdot: "6 3 1.5 3", longdash: "10 4", longdashdot: "10 3 1.5 3" };

  const dashSample = (dash) => {
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ width: 26, height: 8, "aria-hidden": "true" })) svg.setAttribute(name, value);
    const line = document.createElementNS(SVG, "line");
    const look = { x1: 0, x2: 26, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 1.6, "stroke-dasharray": DASHES[dash] };
    for (const [name, value] of Object.entries(look)) line.setAttribute(name, value);
    svg.append(line);
    return svg;
  };

  // The first click shows one alone, further clicks add or take away; none left means all.
  const toggle = (chosen, name, count) => {
    if (chosen.has(name)) chosen.delete(name); else chosen.add(name);
    if (chosen.size === count) chosen.clear();
    page.changed();
  };

  const chips = (holder, names, chosen, sample) => {
    const buttons = names.map((name) => {
      const button = element("button", { type: "button", "aria-pressed": "true" }, sample(name), name);
      button.addEventListener("click", () => toggle(chosen, name, names.length));
      return button;
    });
    holder.append(...buttons);
    page.listeners.push(() => buttons.forEach((button, i) =>
      button.setAttribute("aria-pressed", String(!chosen.size || chosen.has(names[i])))));
    return buttons;
  };

  const families = Object.keys(data.families);
  chips(byId("families"), families, page.filters.families, () => element("span", { class: "swatch" }))
    .forEach((button, i) => { button.dataset.family = families[i]; });
  chips(byId("rates"), Object.keys(data.rates), page.filters.rates, (rate) => dashSample(data.rates[rate]));
  byId("filters").hidden = !families.length;
  byId("reset").addEventListener("click", () => {
    page.filters.families.clear();
    page.filters.rates.clear();
    page.changed();
  });
  page.listeners.push(() => {
    byId("reset").hidden = !page.filters.families.size && !page.filters.rates.size;
  });
  page.paintSwatches();

  const column = Object.fromEntries(data.columns.map((name, i) => [name, i]));
  page.cell = (row, name) => row[column[name]];
  page.rate = (value) => {
    if (value === null) return "none";
    const [mantissa, exponent] = value.toExponential().split("e");
    return `${Number(Number(mantissa).toFixed(6))}e${Number(exponent)}`;
  };
  page.runName = (row) => page.cell(row, "kind") === "run"
    ? `${page.cell(row, "method")}, rate ${page.rate(page.cell(row, "learning_rate"))}, seed ${page.cell(row, "seed")}`
    : { "fine-tuned": "fine-tuned model (start)", retain: "retain model (goal)" }[page.cell(row, "kind")];
  page.percent = (fraction) => `${Number((100 * fraction).toFixed(6))} %`;

  const anchor = (row, kind) => data.rows.find((other) => page.cell(other, "kind") === kind
    && page.cell(other, "model") === page.cell(row, "model")
    && page.cell(other, "forget_fraction") === page.cell(row, "forget_fraction"));

  const comparison = (row) => {
    const start = anchor(row, "fine-tuned");
    const goal = anchor(row, "retain");
    const names = { model_utility: "Model Utility", log10_forget_quality: "log₁₀ Forget Quality", ks_statistic: "KS D" };
    for (const [set, title] of [["forget", "forget set"], ["retain", "retain set"], ["real_authors", "real authors"], ["world_facts", "world facts"]]) {
      for (const [metric, name] of [["probability", "Probability"], ["rouge", "ROUGE-L"], ["truth_ratio", "Truth ratio"]]) {
        names[`${metric}_${set}`] = `${name}, ${title}`;
      }
    }
    const value = (of, name) => element("td", { class: "num" }, of ? page.number(page.cell(of, name)) : "");
    const lines = Object.entries(names).map(([name, title]) => element("tr", {},
      element("th", { scope: "row" }, title), value(start, name), value(row, name), value(goal, name)));
    const heads = ["", "start", "here", "retain model"].map((text, i) =>
      element("th", { scope: "col", class: i ? "num" : "" }, text));
    return element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines)));
  };

  page.select = (run, epoch) => {
    const row = data.rows.find((r) => page.cell(r, "run_id") === run && page.cell(r, "epoch") === epoch);
    if (!row) return;
    page.card = { run, epoch };
    page.listeners.forEach((listener) => listener());
    const card = byId("selected");
    const where = `${page.cell(row, "model")}, forget ${page.percent(page.cell(row, "forget_fraction"))}`;
    const close = () => { card.hidden = true; };
    card.replaceChildren(
      element("div", { class: "head" },
        element("h3", {}, `${page.runName(row)}, epoch ${epoch}`),
        element("button", { type: "button", onclick: () => page.showAnswers(run, epoch) }, "Its answers"),
        element("button", { type: "button", onclick: close }, "Close")),
      element("p", { class: "note" }, `${where}; run `, element("code", {}, run)),
      comparison(row));
    card.hidden = false;
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  };

  const plots = data.panels.map((panel, i) => {
    const node = document.querySelector(`.plot[data-panel="${i}"]`);
    const plot = page.draw(node, panel.figure, { name: `pareto-${i + 1}` });
    node.on("plotly_click", (event) => {
      const [epoch, run] = event.points[0].customdata ?? [];
      if (run) page.select(run, epoch);
    });
    return plot;
  });
  const switches = (attribute, option, on, off) => {
    for (const button of document.querySelectorAll(`[data-${attribute}]`)) {
      const plot = plots[Number(button.dataset[attribute])];
      button.addEventListener("click", () => {
        plot.options[option] = plot.options[option] ? null : on(Number(button.dataset[attribute]));
        button.setAttribute("aria-pressed", String(Boolean(plot.options[option])));
        [button.textContent, button.dataset.other] = [button.dataset.other ?? off, button.textContent];
        page.refresh(plot);
      });
    }
  };
  switches("whole", "whole", (i) => data.panels[i].low * 1.04, "Back to the working models");
  switches("published", "published", () => true, "Hide the CE-U paper's points");

  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => page.save(plots[Number(button.dataset.save)], button.dataset.format));
  }

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; plots.forEach(page.refresh); }
  });
}
