// The bar at the top of the window: colours and a link to what is shown. Where something is wider than its
// frame, `data-more` says to which side it scrolls.
{
  const { byId, element } = page;

  byId("theme").addEventListener("click", () => {
    page.setTheme(page.isDark() ? "light" : "dark");
    page.paintSwatches();
    page.changed();
  });

  // Where the clipboard is not available (a page from disk, a frame), the older way works.
  page.copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = element("textarea", { class: "away", "aria-hidden": "true" });
      const before = document.activeElement;
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      before?.focus({ preventScroll: true });
      return done;
    }
  };
  const button = byId("copy-link");
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const link = page.link();
    const done = await page.copy(link);
    button.textContent = done ? "Copied" : "In the address";
    try { history.replaceState(null, "", link); } catch { location.hash = link.split("#")[1]; }
    setTimeout(() => { button.textContent = label; }, 1500);
  });

  const measure = (node) => {
    const [left, right] = [node.scrollLeft > 1, node.scrollLeft + node.clientWidth < node.scrollWidth - 1];
    if (left || right) node.dataset.more = left && right ? "both" : left ? "left" : "right";
    else delete node.dataset.more;
  };
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) measure(target.matches("nav, .scroll") ? target : target.parentNode);
  });
  page.watchScroll = (node) => {
    node.addEventListener("scroll", () => measure(node), { passive: true });
    observer.observe(node);
    if (node.firstElementChild) observer.observe(node.firstElementChild);
    return node;
  };
  document.querySelectorAll("nav, .scroll").forEach(page.watchScroll);
}
