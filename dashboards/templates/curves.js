// Forgetting curves by epoch, losses and gradient norms by step; drawn when they come into view.
{
  const { data, element, byId } = page;
  const title = (panel) => `${panel.model}, forget ${page.percent(panel.fraction)}`;
  const options = () => data.panels.map((panel, i) => element("option", { value: i }, title(panel)));
  byId("curve-panel").append(...options());
  byId("step-panel").append(...options());

  const filtered = () => page.filtered?.() ?? Boolean(page.filters.families.size || page.filters.rates.size);
  // What is far out is left outside the frame only while all is shown: what is picked is all seen.
  const framed = (figure, text) => ({
    data: figure.data,
    get layout() {
      const far = figure.layout.meta?.outside?.length;
      const { range, ...axis } = figure.layout.yaxis;
      return { ...figure.layout, title: { ...figure.layout.title, text }, yaxis: far && filtered() ? axis : figure.layout.yaxis };
    },
  });
  const outside = (figure) => {
    const far = figure.layout.meta?.outside ?? [];
    if (!far.length || filtered()) return "";
    const more = far.length > 3 ? `, and ${far.length - 3} more` : "";
    return `Beyond the frame: ${far.slice(0, 3).join("; ")}${more}.`;
  };
  const holders = {};
  const fill = (name, figures) => {
    const blocks = figures.map(([text, figure], i) => {
      const plot = element("div", { class: "plot" });
      const far = element("span", { class: "far" }, outside(figure));
      const save = ["svg", "png"].map((format) => element("button", { type: "button", class: "link" }, format.toUpperCase()));
      const block = element("figure", { class: "curve" }, plot,
        element("figcaption", { class: "notes" }, far, element("span", { class: "save" }, save[0], " ", save[1])));
      return { block, plot, far, figure, save, text, file: `${name}-${i + 1}` };
    });
    const holder = byId(`${name}-plots`);
    holder.dataset.count = blocks.length;
    holder.replaceChildren(...blocks.map((one) => one.block));
    for (const one of blocks) {
      const drawn = page.draw(one.plot, framed(one.figure, one.text), { name: one.file });
      one.save.forEach((button, i) => button.addEventListener("click", () => page.save(drawn, ["svg", "png"][i])));
    }
    if (!blocks.length) holder.append(element("p", { class: "note" }, "Nothing recorded."));
    holders[name] = blocks;
  };
  page.listeners.push(() => {
    for (const one of Object.values(holders).flat()) one.far.textContent = outside(one.figure);
  });

  const groups = Object.assign({}, ...Object.values(data.groups));
  const summary = Object.keys(groups)[0];
  let group = summary;
  const buttons = Object.entries(data.groups).flatMap(([kind, named]) => [
    kind && element("span", { class: "name" }, kind),
    ...Object.keys(named).map((name) =>
      element("button", { type: "button", "data-group": name, onclick: () => { group = name; curves(); } }, name)),
  ]).filter(Boolean);
  byId("curve-group").classList.add("one");
  byId("curve-group").append(...buttons);

  const curves = async () => {
    const chosen = (await page.more()).curves[byId("curve-panel").value] ?? {};
    for (const button of byId("curve-group").querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.group === group));
    fill("curve", Object.entries(groups[group]).filter(([metric]) => chosen[metric])
      .map(([metric, text]) => [group === summary ? text : `${group}: ${text}`, chosen[metric]]));
  };
  const steps = async () => {
    const chosen = (await page.more()).steps[byId("step-panel").value] ?? [];
    fill("step", chosen.map((figure) => [figure.layout.title.text, figure]));
  };
  byId("curve-panel").addEventListener("change", curves);
  byId("step-panel").addEventListener("change", steps);
  page.whenSeen("curves", curves);
  page.whenSeen("training", steps);
}
