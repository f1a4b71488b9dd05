// Sorting of tables, which lines filters hide, and tables as text.
{
  const { element } = page;
  const collator = new Intl.Collator("en", { numeric: true });

  // Missing values come last in both directions.
  page.compareValues = (a, b, direction) => {
    const [noA, noB] = [a === null || a === "", b === null || b === ""];
    if (noA || noB) return noA - noB;
    const numbers = typeof a === "number" && typeof b === "number";
    return direction * (numbers ? a - b : collator.compare(String(a), String(b)));
  };
  // Marks the column that the table is sorted by; returns 1 for ascending, -1 for descending.
  page.nextDirection = (head, numeric) => {
    const next = head.getAttribute("aria-sort") === (numeric ? "descending" : "ascending") ? !numeric : numeric;
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next ? "descending" : "ascending");
    return next ? -1 : 1;
  };
  const sortable = (table) => {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const numeric = head.classList.contains("num");
      const value = (row) => {
        const cell = row.cells[index];
        if (!cell || cell.colSpan > 1) return null; // a line without a result
        const text = cell.dataset.value ?? cell.textContent.trim();
        return !numeric || Number.isNaN(Number(text)) ? text : text === "" ? null : Number(text);
      };
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const direction = page.nextDirection(head, numeric);
        body.append(...[...body.rows].sort((a, b) => page.compareValues(value(a), value(b), direction)));
      });
    });
  };
  page.listeners.push(() => {
    for (const row of document.querySelectorAll("table.sortable tr[data-family]")) {
      const { families } = page.filters;
      const { family, place } = row.dataset;
      row.hidden = (families.size > 0 && !families.has(family)) || (place !== undefined && !page.showsPanel(Number(place)));
    }
  });
  // Where the page may not copy, the reader takes the text from an area below the table.
  const copy = async (button) => {
    const { copy: section, name, format } = button.dataset;
    const text = (await page.lazyData(section))[name][format];
    const done = await page.copy(text);
    const area = button.parentNode.nextElementSibling;
    area.hidden = done;
    area.value = text;
    button.parentNode.querySelector(".note").textContent = done ? `Copied as ${format}.` : "This browser does not let the page copy: take the text from here.";
    if (!done) area.select();
  };
  page.whenLoaded(() => {
    document.querySelectorAll("table.sortable").forEach(sortable);
    document.addEventListener("click", ({ target }) => {
      const button = target.closest?.("[data-copy], [data-run]");
      if (button?.dataset.copy) copy(button);
      else if (button) page.select(button.dataset.run, Number(button.dataset.epoch));
    });
  });
}
