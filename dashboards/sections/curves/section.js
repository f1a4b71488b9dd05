// Forgetting curves by epoch: of a metric on all sets, or of a set by all metrics.
{
  const chooser = page.byId("curve-group");
  const draw = page.drawSection("curves", ({ groups, panels }) => {
    const [group, figures] = [chooser.value, panels[page.panelShown()] ?? {}];
    page.showSmallPlots("curve", page.byId("curve-plots"), Object.entries(groups[group] ?? {}).filter(([metric]) => figures[metric])
      .map(([metric, text]) => [chooser.selectedIndex ? `${group}: ${text}` : text, figures[metric]]));
  });
  chooser.addEventListener("change", draw);
}
