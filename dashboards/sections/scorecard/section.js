// The scorecard: colours of its meters, and the parts behind a method's scores, drawn when opened.
{
  const { element } = page;
  const tables = [...document.querySelectorAll("table.scorecard")];
  const close = (line) => {
    line.querySelector(".parts")?.setAttribute("aria-expanded", "false");
    if (line.nextElementSibling?.classList.contains("behind")) line.nextElementSibling.remove();
  };
  const lines = (table) => [...table.tBodies[0].rows].filter((row) => row.dataset.panelLine);

  const titles = (line) => [...line.closest("table").tHead.rows[0].cells].slice(1).map((head) => head.textContent);
  const cells = ([label, value, ends, start, retain]) => element("tr", {},
    element("th", { scope: "row" }, label),
    ...[page.number(start), value === null ? "not known" : `${page.number(value)}${ends ? ` [${ends.map((end) => page.number(end)).join(", ")}]` : ""}`, page.number(retain)]
      .map((text, i) => element("td", { class: i === 1 ? "num strong" : "num" }, text)));
  const behind = (line, scores) => {
    const width = line.cells.length;
    const heads = ["", "start model", "here", "retain model"].map((text) => element("th", { scope: "col", class: text ? "num" : "" }, text));
    return element("tr", { class: "behind", "data-family": line.dataset.family }, element("td", { colspan: width },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...scores.flatMap((parts, i) => [
        element("tr", {}, element("th", { scope: "rowgroup", colspan: 4, class: "score" }, titles(line)[i])), ...parts.map(cells)]))),
      element("p", { class: "note" }, `Means over seeds.${scores.flat().some(([, , ends]) => ends) ? " In brackets: 95 % bootstrap interval of an attack's area, over the questions, for the first seed." : ""}`)));
  };
  const open = async (line) => {
    const [panel, at] = line.dataset.panelLine.split(",").map(Number);
    const { parts: data } = await page.lazyData("scorecard");
    if (line.querySelector(".parts").getAttribute("aria-expanded") === "true") line.after(behind(line, data[panel][at]));
  };

  for (const table of tables) {
    table.tHead.addEventListener("click", () => lines(table).forEach(close), true); // before they are sorted
    for (const line of lines(table)) {
      const button = line.querySelector(".parts");
      button?.addEventListener("click", () => {
        if (button.getAttribute("aria-expanded") === "true") return close(line);
        button.setAttribute("aria-expanded", "true");
        return open(line);
      });
    }
  }
  // The visible lines as LaTeX, in their order.
  for (const button of document.querySelectorAll("[data-latex]")) {
    const i = Number(button.dataset.latex);
    button.addEventListener("click", async () => {
      const { head, lines: all, foot } = (await page.lazyData("scorecard")).latex[i];
      const shown = lines(tables[i]).filter((row) => !row.hidden).map((row) => all[Number(row.dataset.panelLine.split(",")[1])]);
      const text = [head, ...shown, foot].join("\n");
      const done = await page.copy(text);
      const [note, area] = ["note", "text"].map((part) => page.byId(`latex-${part}-${i}`));
      area.hidden = done;
      area.value = text;
      note.textContent = done ? `${shown.length} lines copied as LaTeX.` : "This browser does not let the page copy: take the text from here.";
    });
  }
  const paint = () => {
    const { families } = page.filters;
    for (const line of tables.flatMap(lines)) {
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
