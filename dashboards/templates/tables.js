// Sorting of tables, which lines filters hide, and tables as text.
{
  const { element } = page;
  const collator = new Intl.Collator("en");
  // The number that a cell begins with: "0.09 [0.05, 0.12]", "80 %", "−3.2", "1e-05", "12,800", "≤ 0.35".
  // A digit inside a word is no number of the cell: "3rd", "4-bit".
  const LEADING = /^[<≤>≥~]?\s*([+−-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+−-]?\d+)?)(?![\w.-])/i;
  // Parts of a text: "npo (beta=0.05)" is before "npo (beta=0.5)". A sign belongs to a number where no word is before it.
  const PARTS = /(?<![\w.)])[+−-]?\d+(?:\.\d+)?(?:e[+−-]?\d+)?(?!\w)|\d+(?:\.\d+)?|[^\d+−-]+|[+−-]/gi;
  const parsed = (digits) => Number(digits.replaceAll(",", "").replaceAll("−", "-"));
  const partsOf = (text) => (text.match(PARTS) ?? []).map((part) => [part, /\d/.test(part) ? parsed(part) : NaN]);

  // What a cell is sorted by: null if it is empty, its number if it begins with one, else its text.
  page.sortKey = (shown) => {
    const text = shown.trim();
    if (text === "" || text === "–") return null;
    if (/^[+−-]?inf(inity)?$/i.test(text)) return /^[−-]/.test(text) ? -Infinity : Infinity;
    const digits = LEADING.exec(text)?.[1] ?? "";
    return /\d/.test(digits) ? parsed(digits) : text;
  };
  const compareTexts = (a, b) => {
    const [left, right] = [partsOf(a), partsOf(b)];
    for (let i = 0; i < Math.min(left.length, right.length); i += 1) {
      const [[text, number], [other, otherNumber]] = [left[i], right[i]];
      const bothNumbers = !Number.isNaN(number) && !Number.isNaN(otherNumber);
      const order = bothNumbers ? number - otherNumber : collator.compare(text, other);
      if (order) return order;
    }
    return left.length - right.length || collator.compare(a, b);
  };
  // Missing values come last in both directions, and texts behind numbers.
  page.compareValues = (a, b, direction) => {
    const [noA, noB] = [a === null || a === "", b === null || b === ""];
    if (noA || noB) return noA - noB;
    const [textA, textB] = [typeof a !== "number", typeof b !== "number"];
    if (textA !== textB) return textA - textB;
    if (textA) return direction * compareTexts(String(a), String(b));
    return a === b ? 0 : direction * (a - b); // ∞ − ∞ is no number
  };
  // The cell below a head; a cell of several columns is below each of them.
  page.cellAt = (row, index) => {
    let before = 0;
    for (const cell of row.cells) {
      before += cell.colSpan;
      if (index < before) return cell;
    }
    return null;
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
        const cell = page.cellAt(row, index);
        if (!cell || cell.colSpan > 1) return null; // a line without a result
        const text = cell.dataset.value ?? cell.textContent;
        const key = page.sortKey(text);
        return numeric || key === null ? key : text.trim();
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
    for (const row of document.querySelectorAll("table.sortable tr[data-family], .unmarked span[data-family]")) {
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
