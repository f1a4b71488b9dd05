// The scorecard: colours of its meters, and the warnings of the methods that the filters show.
page.listeners.push(() => {
  const { families } = page.filters;
  for (const line of document.querySelectorAll("table.scorecard [data-family]")) {
    const slot = page.data.families[line.dataset.family];
    if (slot !== undefined) line.style.setProperty("--swatch", page.slotColour(slot));
  }
  for (const item of document.querySelectorAll("#scorecard li[data-family]")) {
    item.hidden = families.size > 0 && !families.has(item.dataset.family);
  }
});
