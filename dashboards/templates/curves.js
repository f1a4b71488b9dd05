// Forgetting curves by epoch, losses and gradient norms by step; drawn when they come into view.
{
  const { data, element, byId } = page;
  const title = (panel) => `${panel.model}, forget ${page.percent(panel.fraction)}`;
  const options = () => data.panels.map((panel, i) => element("option", { value: i }, title(panel)));
  byId("curve-panel").append(...options());
  byId("step-panel").append(...options());

  const fill = (holder, figures, name) => {
    const nodes = figures.map(() => element("div", { class: "plot" }));
    holder.replaceChildren(...nodes);
    figures.forEach((figure, i) => page.draw(nodes[i], figure, { name: `${name}-${i + 1}` }));
    if (!figures.length) holder.append(element("p", { class: "note" }, "Nothing recorded."));
  };

  const groups = Object.keys(data.groups);
  let group = groups[0];
  const buttons = groups.map((name) =>
    element("button", { type: "button", onclick: () => { group = name; curves(); } }, name));
  byId("curve-group").classList.add("one");
  byId("curve-group").append(...buttons);

  const curves = async () => {
    const chosen = (await page.more()).curves[byId("curve-panel").value];
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(groups[i] === group)));
    fill(byId("curve-plots"), chosen ? chosen[group] : [], "curves");
  };
  const steps = async () => {
    const chosen = (await page.more()).steps[byId("step-panel").value];
    fill(byId("step-plots"), chosen ?? [], "training");
  };
  byId("curve-panel").addEventListener("change", curves);
  byId("step-panel").addEventListener("change", steps);
  page.whenSeen("curves", curves);
  page.whenSeen("training", steps);
}
