// The conclusion: its sample answer leads to all answers of that model; a chosen panel is unfolded.
{
  for (const button of document.querySelectorAll("[data-sample]")) {
    button.addEventListener("click", () => page.showAnswers(button.dataset.sample, Number(button.dataset.epoch)));
  }
  page.listeners.push(() => {
    if (page.filters.panel !== null) {
      for (const one of document.querySelectorAll("details.result")) one.open = Number(one.dataset.place) === page.filters.panel;
    }
  });
}
