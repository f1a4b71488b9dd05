// Forgetting curves by epoch: of a metric on all sets, or of a set by all metrics.
{
  const [chooser, holder] = [page.byId("curve-group"), page.byId("curve-plots")];
  const draw = page.drawSection("curves", ({ groups, panels }) => {
    const [group, figures] = [chooser.value, panels[page.panelShown()] ?? {}];
    const shown = Object.entries(groups[group] ?? {}).filter(([metric]) => figures[metric])
      .map(([metric, text]) => [chooser.selectedIndex ? `${group}: ${text}` : text, figures[metric]]);
    page.showSmallPlots("curve", holder, shown, page.lineLegend(holder, page.byId("curve-lines"), shown));
  });
  chooser.addEventListener("change", draw);
}
