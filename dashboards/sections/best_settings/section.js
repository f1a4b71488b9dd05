// Copies the tables of best settings as CSV, Markdown and LaTeX: the visible lines, in their order.
{
  const { byId } = page;
  const tables = page.data.sections.best;
  const several = (lines, name) => new Set(lines.map((line) => line[name])).size > 1;

  // Columns of Markdown and LaTeX: title, value as text; `number` formats one number.
  const [kept, forgotten] = page.headline;
  const columns = (lines, number, log) => {
    const mean = (line, name, digits, value = line[name]) => value === undefined || value.mean === null ? "" : value.low === undefined ? number(value.mean, digits)
      : `${number(value.mean, digits)} ${line.range ? "min-max " : ""}[${number(value.low, digits)}, ${number(value.high, digits)}]`;
    return [
      ["Method", (line) => line.method],
      several(lines, "model") ? ["Model", (line) => line.model] : null,
      several(lines, "fraction") ? ["Forget", (line) => page.splitCell(line.fraction)] : null,
      [log, (line) => mean(line, "quality", forgotten.digits)],
      [kept.name, (line) => mean(line, "utility", kept.digits)],
      ["Rate", (line) => (line.rate === undefined ? "" : page.rate(line.rate))],
      ["Epoch", (line) => String(line.epoch ?? "")],
      ["Seeds", (line) => (line.seeds ? String(line.seeds.length) : "")],
    ].filter(Boolean);
  };
  const caption = (table, lines) => [
    `${table.title}: ${table.rule}.`,
    several(lines, "model") || several(lines, "fraction") ? "" : `${page.panelName(lines[0].model, lines[0].fraction)}.`,
    table.seeds.length > 1 ? `Means over seeds ${table.seeds.join(", ")}.` : `Seed ${table.seeds.join("")}.`,
    ...[...new Set(lines.map((line) => line.interval).filter(Boolean))].map((name) => `Brackets: ${name}.`),
    lines.some((line) => line.note) ? `Empty: ${[...new Set(lines.map((line) => line.note).filter(Boolean))].join("; ")}.` : "",
    ...table.caveats,
  ].filter(Boolean).join(" ");

  const csv = (table, lines) => {
    const quoted = (value) => value === null || value === undefined ? ""
      : /[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value);
    const spread = (name) => ["mean", "low", "high", "spread"].map((part) => (line) => line[name]?.[part]);
    const titles = ["method", "model", "forget_fraction", "learning_rate", "epoch", "seeds",
      ...[forgotten.column, kept.column].flatMap((name) => [name, `${name}_low`, `${name}_high`, `${name}_standard_deviation`]),
      "utility_kept", ...(table.distance ? [table.distance] : []), "settings_tried", "interval", "note", "caveats"];
    const values = [(line) => line.method, (line) => line.model, (line) => line.fraction, (line) => line.rate, (line) => line.epoch,
      (line) => line.seeds?.join(" "), ...spread("quality"), ...spread("utility"), (line) => line.kept, ...(table.distance ? [(line) => line.statistic] : []),
      (line) => line.tried, (line) => line.interval, (line) => line.note, () => table.caveats.join(" ")];
    return [titles.join(","), ...lines.map((line) => values.map((value) => quoted(value(line))).join(","))].join("\n") + "\n";
  };

  const markdown = (table, lines) => {
    const cell = (text) => text.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replace(/[\r\n]+/g, " ");
    const shown = columns(lines, page.number, forgotten.name);
    const line = (cells) => `| ${cells.map(cell).join(" | ")} |`;
    return [line(shown.map(([title]) => title)),
      `| ${shown.map(([title], i) => (i && !["Model"].includes(title) ? "---:" : "---")).join(" | ")} |`,
      ...lines.map((one) => line(shown.map(([, value]) => value(one)))), "", caption(table, lines), ""].join("\n");
  };

  const LATEX = { "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", $: "\\$", "&": "\\&", "#": "\\#", "%": "\\%", _: "\\_", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}", "<": "\\textless{}", ">": "\\textgreater{}", "−": "$-$", "×": "$\\times$", "…": "\\ldots{}" };
  const tex = (text) => text.replace(/log(₁₀|10) /g, "\u0001 ").replace(/[\\{}$&#%_^~<>−×…]/g, (one) => LATEX[one]).replaceAll("\u0001", "$\\log_{10}$");
  const latex = (table, lines) => {
    const number = (value, digits) => `$${value.toFixed(digits)}$`;
    const log = tex(forgotten.name);
    const shown = columns(lines, number, log);
    const raw = new Set([log, kept.name]); // numbers, which are LaTeX already
    const rows = lines.map((line) => `${shown.map(([title, value]) => (raw.has(title) ? value(line) : tex(value(line)))).join(" & ")} \\\\`);
    const align = shown.map(([title]) => (["Method", "Model"].includes(title) ? "l" : "r")).join("");
    return ["% \\usepackage{booktabs}", "\\begin{table}", "\\centering", `\\caption{${tex(caption(table, lines))}}`,
      `\\begin{tabular}{${align}}`, "\\toprule", `${shown.map(([title]) => (title === log ? log : tex(title))).join(" & ")} \\\\`, "\\midrule", ...rows,
      "\\bottomrule", "\\end{tabular}", "\\end{table}", ""].join("\n");
  };
  const FORMATS = { CSV: csv, Markdown: markdown, LaTeX: latex };

  for (const button of document.querySelectorAll("[data-copy]")) {
    const { copy: name, format } = button.dataset;
    const note = byId(`copied-${name}`);
    button.addEventListener("click", async () => {
      const rows = [...byId(`table-${name}`).tBodies[0].rows].filter((row) => !row.hidden && row.dataset.line !== undefined);
      const lines = rows.map((row) => tables[name].lines[Number(row.dataset.line)]);
      if (!lines.length) { note.textContent = "There is no line to copy."; return; }
      const text = FORMATS[format](tables[name], lines);
      const done = await page.copy(text);
      const area = byId(`text-${name}`);
      area.hidden = done;
      area.value = text;
      note.textContent = done ? `${lines.length} ${lines.length === 1 ? "line" : "lines"} copied as ${format}.` : "This browser does not let the page copy: take the text from here.";
      if (!done) area.select();
    });
  }
}
