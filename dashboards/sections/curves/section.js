// Forgetting curves by epoch: of a metric on all sets, or of a set by all metrics.
{
  const { data, element, byId } = page;
  const groupsByKind = data.sections.curves;
  const groups = Object.assign({}, ...Object.values(groupsByKind));
  const [summary] = Object.keys(groups);
  const chooser = byId("curve-group");
  for (const [kind, named] of Object.entries(groupsByKind)) {
    const options = Object.keys(named).map((name) => element("option", { value: name }, name));
    chooser.append(...(kind ? [element("optgroup", { label: kind }, ...options)] : options));
  }
  const draw = page.drawSection("curves", (figures = {}) => {
    const group = chooser.value;
    page.showSmallPlots("curve", byId("curve-plots"), Object.entries(groups[group]).filter(([metric]) => figures[metric])
      .map(([metric, text]) => [group === summary ? text : `${group}: ${text}`, figures[metric]]));
  });
  chooser.addEventListener("change", draw);
}
