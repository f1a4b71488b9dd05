// Each example leads to all answers of its model.
for (const button of document.querySelectorAll("[data-sample]")) {
  button.addEventListener("click", () => page.showAnswers(button.dataset.sample, Number(button.dataset.epoch)));
}
