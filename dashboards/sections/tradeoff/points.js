// Filters the points of a panel's trace: all epochs or some; means over seeds, or one seed.
{
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // The row of a point: its own, or that of the filtered seed.
  const rowFor = (run, epoch) => {
    const row = page.row(run, epoch);
    return row && page.filters.seed !== null ? page.seedsOf(row).find((one) => page.showsSeed(page.cell(one, "seed"))) ?? null : row;
  };
  const position = (row) => {
    const [x, y] = page.headline.map(({ column }) => page.cell(row, column));
    return x === null || y === null ? null : [x, y];
  };
  const hoverText = (row) => [
    `<b>${escaped(page.cell(row, "method"))}</b>  lr ${page.rate(page.cell(row, "learning_rate"))}  ${page.data.unit} ${page.cell(row, "epoch")}`,
    ...page.headline.map(({ column, label, digits }) => escaped(`${label} ${page.number(page.cell(row, column), digits)}`)),
    `seed ${page.cell(row, "seed")} alone`,
  ].join("<br>");

  const OWN = new Set(["trajectory", "best"]);
  page.filteredTrace = (trace) => {
    const { epoch, seed } = page.filters;
    if (!OWN.has(trace.meta.role) || (epoch === null && seed === null)) return { ...trace };
    const points = trace.customdata.map(([at, run], i) => {
      if (!run) return { i, x: trace.x[i], y: trace.y[i] }; // the start of the line
      const row = page.showsEpoch(at) ? rowFor(run, at) : null;
      const xy = row && position(row);
      if (!xy) return null;
      return seed === null ? { i, x: trace.x[i], y: trace.y[i] } : { i, x: xy[0], y: xy[1], row };
    }).filter(Boolean);
    const select = (values) => (Array.isArray(values) ? points.map(({ i }) => values[i]) : values);
    const bar = (error) => error && seed === null
      ? { ...error, array: select(error.array), arrayminus: select(error.arrayminus) } : undefined;
    return {
      ...trace,
      x: points.map((point) => point.x),
      y: points.map((point) => point.y),
      customdata: points.map(({ i, row }) => row ? [trace.customdata[i][0], page.cell(row, "run_id")] : trace.customdata[i]),
      hovertext: trace.hovertext && points.map(({ i, row }) => row ? hoverText(row) : trace.hovertext[i]),
      text: select(trace.text),
      marker: { ...trace.marker, size: select(trace.marker.size), opacity: select(trace.marker.opacity) },
      error_x: bar(trace.error_x),
      error_y: bar(trace.error_y),
      visible: points.some(({ i }) => trace.customdata[i][1]),
    };
  };
}
