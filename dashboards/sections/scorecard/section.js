// The sentences below the scorecard: hides those of methods that the filters hide.
page.listeners.push(() => {
  const { families } = page.filters;
  for (const item of document.querySelectorAll("#scorecard li[data-family]")) {
    item.hidden = families.size > 0 && !families.has(item.dataset.family);
  }
});
