// Each example has a button that leads to all answers of its model.
for (const button of document.querySelectorAll("[data-sample]")) {
  const { sample: run, epoch } = button.dataset;
  button.addEventListener("click", () => page.showAnswers(run, Number(epoch)));
}
