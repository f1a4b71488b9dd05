// Keyboard control of a panel: arrows move from point to point, Enter or Space opens the card.
{
  const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

  page.addKeyboard = (plot) => {
    const { node } = plot;
    let at = null; // [line, point]
    const lines = () => node.data
      .map((trace, curve) => ({ trace, curve, points: (trace.customdata ?? []).map(([, run], i) => (run ? i : -1)).filter((i) => i >= 0) }))
      .filter(({ trace, points }) => ["trajectory", "reference"].includes(trace.meta?.role) && trace.visible !== false && points.length);
    const show = () => {
      const line = lines()[at[0]];
      const point = line.points[at[1]];
      Plotly.Fx.hover(node, [{ curveNumber: line.curve, pointNumber: point }]);
      const text = new DOMParser().parseFromString(line.trace.hovertext[point].replaceAll("<br>", "; "), "text/html");
      page.byId("point-text").textContent = text.body.textContent;
    };
    const move = ([down, right]) => {
      const all = lines();
      if (!all.length) return;
      if (at === null || !all[at[0]]) at = [0, 0];
      else at = [(at[0] + down + all.length) % all.length, at[1] + right];
      const last = all[at[0]].points.length - 1;
      at[1] = Math.max(0, Math.min(last, at[1]));
      show();
    };
    node.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in STEPS) move(STEPS[event.key]);
      else if ((event.key === "Enter" || event.key === " ") && at && lines()[at[0]]) {
        const line = lines()[at[0]];
        const [epoch, run] = line.trace.customdata[line.points[at[1]]];
        page.select(run, epoch, page.filters.seed !== null);
      } else if (event.key === "Escape") Plotly.Fx.unhover(node);
      else return;
      event.preventDefault();
    });
    node.addEventListener("blur", () => Plotly.Fx.unhover(node));
  };
}
