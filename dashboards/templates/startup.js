// The last of the shared scripts: once the page is loaded, it shows the view that the address records.
page.whenLoaded(() => {
  page.restoreView();
  page.byId("theme").addEventListener("click", () => {
    page.setTheme(page.isDark() ? "light" : "dark");
    page.paintSwatches();
    page.changed();
  });
  page.listeners.forEach((listener) => listener());
  page.refreshAll();
  // Only the trade-off section has cards, and it may be missing.
  page.showCard?.();
  // A sandboxed frame silently ignores downloads and new windows, so the page says so.
  page.byId("framed").hidden = window === window.parent;
});
