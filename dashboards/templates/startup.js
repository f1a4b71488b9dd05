// The whole page is loaded: show the view that is stored in the address.
page.whenLoaded(() => {
  page.restoreView();
  page.byId("theme").addEventListener("click", () => {
    page.setTheme(page.isDark() ? "light" : "dark");
    page.paintSwatches();
    page.changed();
  });
  page.listeners.forEach((listener) => listener());
  page.refreshAll();
  page.showCard?.();
  // A sandboxed frame ignores downloads and new windows silently.
  page.byId("framed").hidden = window === window.parent;
});
