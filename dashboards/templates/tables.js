// Sorting of tables, and of the lines that the template printed.
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
    const now = head.getAttribute("aria-sort");
    const first = numeric ? "descending" : "ascending";
    const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", next);
    return next === "ascending" ? 1 : -1;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
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
    page.listeners.push(() => {
      const { families } = page.filters;
      for (const row of body.rows) row.hidden = (families.size > 0 && !families.has(row.dataset.family)) || (row.dataset.place !== undefined && !page.showsPanel(Number(row.dataset.place)));
    });
  }
  // Tables as text, which the page stores; where it may not copy, the reader takes the text from here.
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const { copy, name, format } = button.dataset;
      const text = (await page.lazyData(copy))[name][format];
      const done = await page.copy(text);
      const area = button.parentNode.nextElementSibling;
      area.hidden = done;
      area.value = text;
      button.parentNode.querySelector(".note").textContent = done ? `Copied as ${format}.` : "This browser does not let the page copy: take the text from here.";
      if (!done) area.select();
    });
  }
  for (const button of document.querySelectorAll("[data-run]")) {
    button.addEventListener("click", () => page.select(button.dataset.run, Number(button.dataset.epoch)));
  }
}
