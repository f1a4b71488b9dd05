// The scorecard: colours of its meters, and the warnings of the methods that the filters show.
{
  const tables = [...document.querySelectorAll("table.scorecard")];
  const paint = () => {
    const { families } = page.filters;
    for (const line of tables.flatMap((table) => [...table.tBodies[0].rows])) {
      const slot = page.data.families[line.dataset.family];
      if (slot !== undefined) line.style.setProperty("--swatch", page.slotColour(slot));
    }
    for (const kind of document.querySelectorAll(".beyond")) {
      const items = [...kind.querySelectorAll("li")];
      for (const item of items) item.hidden = families.size > 0 && !families.has(item.dataset.family);
      const count = items.filter((item) => !item.hidden).length;
      kind.querySelector(".count").textContent = count;
      kind.hidden = !count;
    }
  };
  page.listeners.push(paint);
}
