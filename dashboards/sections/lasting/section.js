// Attacks: curves and bars of the chosen panel; what is clicked opens the answers under that attack.
{
  const { byId } = page;
  const chosen = byId("lasting-panel");

  const opensAnswers = (plot) => plot.node.on("plotly_click", (event) => {
    const [run, epoch, variant] = event.points[0].customdata ?? [];
    if (run) page.showAnswers(run, epoch, variant);
  });
  const show = async () => {
    const figures = (await page.lazyData("lasting"))[Number(chosen?.value ?? 0)];
    for (const kind of ["curves", "bars", "leaks"]) {
      if (byId(`lasting-${kind}-plots`)) page.showSmallPlots(`lasting-${kind}`, figures[kind], { drawn: opensAnswers });
    }
  };

  chosen?.addEventListener("change", show);
  if (chosen) for (const kind of ["curves", "bars"]) page.followPanel(chosen, `lasting-${kind}`, show);
  for (const button of document.querySelectorAll("[data-answers]")) {
    const { answers, at, variant } = button.dataset;
    button.addEventListener("click", () => page.showAnswers(answers, Number(at), variant));
  }
  page.whenSeen("lasting", show);
}
