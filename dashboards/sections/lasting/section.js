// Plots of attacks. A click on a point, or on an underlined number of a table, opens the answers
// under that attack.
{
  const openAnswersOnClick = (plot) => {
    plot.node.on("plotly_click", (event) => {
      const [run, epoch, variant] = event.points[0].customdata ?? [];
      if (run) page.showAnswers(run, epoch, variant);
    });
  };

  page.drawSection("lasting", (panels) => {
    const figures = panels[page.panelShown()] ?? {};
    for (const holder of document.querySelectorAll("[data-attacks]")) {
      const kind = holder.dataset.attacks; // "curves" or "leaks"
      const options = { drawn: openAnswersOnClick };
      page.showSmallPlots(`lasting-${kind}`, holder, figures[kind] ?? [], options);
    }
  });

  for (const button of document.querySelectorAll("[data-answers]")) {
    const { answers: run, at: epoch, variant } = button.dataset;
    button.addEventListener("click", () => page.showAnswers(run, Number(epoch), variant));
  }
}
