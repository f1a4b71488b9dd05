// Tables: sorting by a click on a column's head, rows that filters hide, and copying as text.
{
  const { element } = page;

  // ---- What a cell is sorted by ----

  const collator = new Intl.Collator("en");

  // A sign is "+", "-" or the true minus sign "−".
  //
  // The number that a cell begins with: "0.09 [0.05, 0.12]", "80 %", "−3.2", "1e-05", "12,800",
  // "≤ 0.35". A digit inside a word is not a number of the cell: "3rd", "4-bit".
  const LEADING_NUMBER = /^[<≤>≥~]?\s*([+−-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+−-]?\d+)?)(?![\w.-])/i;
  // The numbers of a text and what is between them, so that "npo (beta=0.05)" comes before
  // "npo (beta=0.5)". A sign belongs to a number only if no word is directly before it.
  const PARTS = /(?<![\w.)])[+−-]?\d+(?:\.\d+)?(?:e[+−-]?\d+)?(?!\w)|\d+(?:\.\d+)?|[^\d+−-]+|[+−-]/gi;

  const hasDigit = (text) => /\d/.test(text);

  const parseNumber = (text) => Number(text.replaceAll(",", "").replaceAll("−", "-"));

  /**
   * Return what a cell is sorted by.
   *
   * @param {string} shown The cell's text, or the number that it shows as text.
   * @returns {number | string | null} The number that the text begins with, or else the text; null
   *   if the cell is empty.
   */
  page.sortKey = (shown) => {
    const text = shown.trim();
    if (text === "" || text === "–") return null;
    if (/^[+−-]?inf(inity)?$/i.test(text)) return /^[−-]/.test(text) ? -Infinity : Infinity;
    const number = LEADING_NUMBER.exec(text)?.[1] ?? "";
    return hasDigit(number) ? parseNumber(number) : text;
  };

  const splitParts = (text) => text.match(PARTS) ?? [];

  // Numbers are compared as numbers, and everything else as text.
  const compareParts = (a, b) => {
    if (hasDigit(a) && hasDigit(b)) {
      const numberA = parseNumber(a);
      const numberB = parseNumber(b);
      const areNumbers = !Number.isNaN(numberA) && !Number.isNaN(numberB);
      if (areNumbers) return numberA - numberB;
    }
    return collator.compare(a, b);
  };

  const compareTexts = (a, b) => {
    const partsA = splitParts(a);
    const partsB = splitParts(b);
    const sharedLength = Math.min(partsA.length, partsB.length);
    for (let i = 0; i < sharedLength; i += 1) {
      const order = compareParts(partsA[i], partsB[i]);
      if (order) return order;
    }
    return partsA.length - partsB.length || collator.compare(a, b);
  };

  /**
   * Compare two sort keys, for `Array.sort`.
   *
   * Missing values come last in both directions, and texts come behind numbers.
   *
   * @param {number | string | null} a
   * @param {number | string | null} b
   * @param {1 | -1} direction 1 for ascending, -1 for descending.
   */
  page.compareValues = (a, b, direction) => {
    const isMissingA = a === null || a === "";
    const isMissingB = b === null || b === "";
    if (isMissingA || isMissingB) return isMissingA - isMissingB;

    const isTextA = typeof a !== "number";
    const isTextB = typeof b !== "number";
    if (isTextA !== isTextB) return isTextA - isTextB;
    if (isTextA) return direction * compareTexts(String(a), String(b));

    if (a === b) return 0; // ∞ − ∞ would be NaN
    return direction * (a - b);
  };

  // ---- Sorting ----

  /** Return the cell of a row below the head with this index. A wide cell is below several heads. */
  page.cellAt = (row, index) => {
    let columnsSoFar = 0;
    for (const cell of row.cells) {
      columnsSoFar += cell.colSpan;
      if (index < columnsSoFar) return cell;
    }
    return null;
  };

  /**
   * Turn the order of a column around, and mark its head as the one that the table is sorted by.
   *
   * The first click puts the largest numbers first, or texts in the order of the alphabet.
   *
   * @param {HTMLElement} head
   * @param {boolean} isNumeric
   * @returns {1 | -1} The direction for `page.compareValues`.
   */
  page.nextDirection = (head, isNumeric) => {
    const firstOrder = isNumeric ? "descending" : "ascending";
    const secondOrder = isNumeric ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === firstOrder ? secondOrder : firstOrder;
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    return order === "descending" ? -1 : 1;
  };

  // Returns what a row is sorted by in a column, or null.
  const rowKey = (row, index, isNumeric) => {
    const cell = page.cellAt(row, index);
    const isSentence = cell && cell.colSpan > 1; // it says why a row has no result
    if (!cell || isSentence) return null;
    const text = cell.dataset.value ?? cell.textContent;
    const key = page.sortKey(text);
    return isNumeric || key === null ? key : text.trim();
  };

  // Makes a button of each head. Only the first body is sorted: the models that methods are compared
  // with stand in a second one, which stays below.
  const makeSortable = (table) => {
    const [body] = table.tBodies;
    const heads = [...table.tHead.rows[0].cells];
    for (const [index, head] of heads.entries()) {
      const isNumeric = head.classList.contains("num");
      const button = element("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const direction = page.nextDirection(head, isNumeric);
        const compareRows = (a, b) =>
          page.compareValues(rowKey(a, index, isNumeric), rowKey(b, index, isNumeric), direction);
        body.append(...[...body.rows].sort(compareRows));
      });
    }
  };

  // ---- Filters ----

  const ROWS = "table.sortable tr[data-family], .unmarked span[data-family]";
  page.listeners.push(() => {
    const { families } = page.filters;
    for (const node of document.querySelectorAll(ROWS)) {
      const { family, place } = node.dataset;
      const isFamilyHidden = families.size > 0 && !families.has(family);
      const isPanelHidden = place !== undefined && !page.showsPanel(Number(place));
      node.hidden = isFamilyHidden || isPanelHidden;
    }
  });

  // ---- Copying ----

  // Copies the text of a table, such as LaTeX. If the browser does not allow it, the text is shown
  // in an area below the buttons, and selected.
  const copyTable = async (button) => {
    const { copy: section, name, format } = button.dataset;
    const tables = await page.lazyData(section);
    const text = tables[name][format];
    const isCopied = await page.copy(text);

    const area = button.parentNode.nextElementSibling;
    area.hidden = isCopied;
    area.value = text;
    const note = button.parentNode.querySelector(".note");
    note.textContent = isCopied
      ? `Copied as ${format}.`
      : "This browser does not let the page copy: take the text from here.";
    if (!isCopied) area.select();
  };

  page.whenLoaded(() => {
    document.querySelectorAll("table.sortable").forEach(makeSortable);
    document.addEventListener("click", ({ target }) => {
      const button = target.closest?.("[data-copy], [data-run]");
      if (!button) return;
      if (button.dataset.copy) copyTable(button);
      else page.select(button.dataset.run, Number(button.dataset.epoch));
    });
  });
}
