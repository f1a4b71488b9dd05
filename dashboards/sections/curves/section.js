// Curves by epoch: of one metric on all evaluation sets, or of one set by all metrics.
{
  const chooser = page.byId("curve-group");
  const holder = page.byId("curve-plots");
  const legend = page.byId("curve-lines");

  // Pairs of title and figure of the chosen group. `groups` says by group which metrics belong to it
  // and how they are called there; `figures` are those of a panel, by metric.
  const figuresOfGroup = (groups, figures) => {
    const group = chooser.value;
    const isFirst = chooser.selectedIndex === 0; // the overview: its titles stand for themselves
    const pairs = [];
    for (const [metric, name] of Object.entries(groups[group] ?? {})) {
      if (!figures[metric]) continue;
      const title = isFirst ? name : `${group}: ${name}`;
      pairs.push([title, figures[metric]]);
    }
    return pairs;
  };

  const draw = page.drawSection("curves", ({ groups, panels }) => {
    const shown = figuresOfGroup(groups, panels[page.panelShown()] ?? {});
    page.showSmallPlots("curve", holder, shown, page.lineLegend(holder, legend, shown));
  });
  chooser.addEventListener("change", draw);
}
