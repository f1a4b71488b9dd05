// Filters the points of a trade-off panel: only the first epochs, or only the runs of one seed in
// place of the means over seeds.
{
  const METHOD_ROLES = new Set(["trajectory", "best"]);

  // Plotly reads the text at a point as markup.
  const escaped = (text) =>
    text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // The row of the filtered seed in the setting of a run, or the run's own row; null if there is none.
  const rowOfPoint = (run, epoch) => {
    const row = page.row(run, epoch);
    if (row === null || page.filters.seed === null) return row;
    return page.seedsOf(row).find((seedRow) => page.showsSeed(page.cell(seedRow, "seed"))) ?? null;
  };

  // The text at a point of one seed. That of a mean comes from Python.
  const hoverText = (row) => {
    const method = escaped(page.cell(row, "method"));
    const rate = page.rate(page.cell(row, "learning_rate"));
    const numbers = page.headline.map(({ column, label, digits }) =>
      escaped(`${label} ${page.number(page.cell(row, column), digits)}`));
    return [
      `<b>${method}</b>  lr ${rate}  ${page.data.unit} ${page.cell(row, "epoch")}`,
      ...numbers,
      `seed ${page.cell(row, "seed")} alone`,
    ].join("<br>");
  };

  // What the filters leave of point `index`: { index, x, y, row }, or null. `row` is the row of the
  // filtered seed, and null if the point is shown as it is.
  const filteredPoint = (trace, index) => {
    const [epoch, run] = trace.customdata[index];
    const unchanged = { index, x: trace.x[index], y: trace.y[index], row: null };
    if (!run) return unchanged; // the start model, where the line begins
    const row = page.showsEpoch(epoch) ? rowOfPoint(run, epoch) : null;
    if (!row) return null;
    const [x, y] = page.headline.map(({ column }) => page.cell(row, column));
    if (x === null || y === null) return null;
    return page.filters.seed === null ? unchanged : { index, x, y, row };
  };

  /** Return a copy of a trace without the points that the filters hide. */
  page.filteredTrace = (trace) => {
    const { epoch, seed } = page.filters;
    const isFiltered = epoch !== null || seed !== null;
    if (!isFiltered || !METHOD_ROLES.has(trace.meta.role)) return { ...trace };

    const points = [];
    for (const index of trace.customdata.keys()) {
      const point = filteredPoint(trace, index);
      if (point !== null) points.push(point);
    }

    // A property of a trace is a list with a value per point, or one value for all of them.
    const select = (values) =>
      Array.isArray(values) ? points.map(({ index }) => values[index]) : values;
    // Error bars are intervals of means.
    const selectBar = (bar) => {
      if (!bar || seed !== null) return undefined;
      return { ...bar, array: select(bar.array), arrayminus: select(bar.arrayminus) };
    };
    const customdataOf = ({ index, row }) => {
      if (row === null) return trace.customdata[index];
      const [pointEpoch] = trace.customdata[index];
      return [pointEpoch, page.cell(row, "run_id")];
    };
    const hovertextOf = ({ index, row }) => (row ? hoverText(row) : trace.hovertext[index]);
    const hasRun = ({ index }) => Boolean(trace.customdata[index][1]);

    return {
      ...trace,
      x: points.map(({ x }) => x),
      y: points.map(({ y }) => y),
      customdata: points.map(customdataOf),
      hovertext: trace.hovertext && points.map(hovertextOf),
      text: select(trace.text),
      marker: {
        ...trace.marker,
        size: select(trace.marker.size),
        opacity: select(trace.marker.opacity),
      },
      error_x: selectBar(trace.error_x),
      error_y: selectBar(trace.error_y),
      visible: points.some(hasRun),
    };
  };
}
