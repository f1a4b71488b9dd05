// The bar at the top of the window: colours and a link to what is shown.
{
  const { byId } = page;

  byId("theme").addEventListener("click", () => {
    page.setTheme(page.isDark() ? "light" : "dark");
    page.paintSwatches();
    page.changed();
  });

  // Without a clipboard (a page from disk, a frame) the caller shows the text.
  page.copy = (text) => navigator.clipboard?.writeText(text).then(() => true, () => false) ?? false;
  const button = byId("copy-link");
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const link = page.link();
    const done = await page.copy(link);
    button.textContent = done ? "✓" : "↑";
    try { history.replaceState(null, "", link); } catch { location.hash = link.split("#")[1]; }
    setTimeout(() => { button.textContent = label; }, 1500);
  });
}
