// Copies the citation, and shows the BibTeX that is copied.
{
  const { byId } = page;
  for (const button of document.querySelectorAll("[data-cite]")) {
    button.addEventListener("click", async () => {
      const kind = button.dataset.cite;
      const source = byId(`cite-${kind}`);
      const done = await page.copy(kind === "text" ? source.textContent.trim() : source.textContent);
      byId("cite-bibtex").hidden = kind === "text";
      byId("cite-note").textContent = done ? "Copied." : "This browser does not let the page copy: take the text from here.";
    });
  }
}
