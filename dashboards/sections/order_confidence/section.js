// The table of pairs: hides lines and columns of the methods that the filters hide.
page.listeners.push(() => {
  const { families } = page.filters;
  for (const node of document.querySelectorAll(".pairs-table [data-family]")) {
    node.hidden = families.size > 0 && !families.has(node.dataset.family);
  }
});
