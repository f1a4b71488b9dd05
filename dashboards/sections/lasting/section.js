// Attacks: curves of the panel; what is clicked opens the answers under that attack.
{
  const opensAnswers = (plot) => plot.node.on("plotly_click", (event) => {
    const [run, epoch, variant] = event.points[0].customdata ?? [];
    if (run) page.showAnswers(run, epoch, variant);
  });
  page.drawSection("lasting", (panels) => {
    const figures = panels[page.panelShown()] ?? {};
    for (const holder of document.querySelectorAll("[data-attacks]")) {
      const kind = holder.dataset.attacks;
      page.showSmallPlots(`lasting-${kind}`, holder, figures[kind] ?? [], { drawn: opensAnswers });
    }
  });
  for (const button of document.querySelectorAll("[data-answers]")) {
    const { answers, at, variant } = button.dataset;
    button.addEventListener("click", () => page.showAnswers(answers, Number(at), variant));
  }
}
