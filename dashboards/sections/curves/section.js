// Forgetting curves by epoch: of a metric on all sets, or of a set by all metrics.
{
  const { data, element, byId } = page;
  const groupsByKind = data.sections.curves;
  const groups = Object.assign({}, ...Object.values(groupsByKind));
  const [summary] = Object.keys(groups);
  let group = summary;

  const show = async () => {
    const figures = (await page.lazyData("curves"))[byId("curve-panel").value] ?? {};
    for (const button of byId("curve-group").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(button.dataset.group === group));
    }
    page.showSmallPlots("curve", Object.entries(groups[group]).filter(([metric]) => figures[metric])
      .map(([metric, text]) => [group === summary ? text : `${group}: ${text}`, figures[metric]]));
  };

  byId("curve-panel").append(...page.panelOptions());
  byId("curve-panel").addEventListener("change", show);
  page.followPanel(byId("curve-panel"), "curve", show);
  byId("curve-group").classList.add("one");
  for (const [kind, named] of Object.entries(groupsByKind)) {
    if (kind) byId("curve-group").append(element("span", { class: "name" }, kind));
    byId("curve-group").append(...Object.keys(named).map((name) =>
      element("button", { type: "button", "data-group": name, onclick: () => { group = name; show(); } }, name)));
  }
  page.whenSeen("curves", show);
}
