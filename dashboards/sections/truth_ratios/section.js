// The two truth-ratio distributions that the KS test compares, with D marked.
{
  const { element, byId, selection, cell } = page;
  const LEVEL = Number(byId("ratio-text").dataset.level);
  let data = null;
  let plot = null;

  const sample = (one, epoch) => one && (data.units[one.runs.get(epoch)]?.[epoch] ?? null);
  const gap = (one, epoch) => data.gaps[one.runs.get(epoch)]?.[epoch] ?? null;
  const embeddedEpochs = (one) => selection.epochs(one).filter((epoch) => sample(one, epoch));
  const hasData = (one) => embeddedEpochs(one).length > 0;

  // The empirical distribution function as a line of steps: from 0, up by 1/n at each ratio.
  const steps = (units) => {
    const x = [];
    let sum = 0;
    for (const unit of units) x.push(10 ** ((sum += unit) * data.step));
    return { x: [x[0], ...x], y: [0, ...x.map((_, i) => (i + 1) / x.length)] };
  };
  const line = (units, name, style, more = {}) => ({
    type: "scatter", mode: "lines", name, ...steps(units), line: { shape: "hv", width: 2, ...style },
    hovertemplate: "R = %{x:.3g}: %{y:.0%} of the questions<extra>%{fullData.name}</extra>", meta: { role: "ratios" }, ...more,
  });

  // Ticks at 1, 2, 5, 10 … if few decades are shown; else Plotly's own.
  const ticks = (traces) => {
    const ends = traces.flatMap((trace) => [trace.x[0], trace.x.at(-1)]).map(Math.log10);
    const [low, high] = [Math.floor(Math.min(...ends)), Math.ceil(Math.max(...ends))];
    if (high - low > 4) return {};
    const tickvals = Array.from({ length: high - low }, (_, i) => [1, 2, 5].map((k) => k * 10 ** (low + i))).flat();
    return { tickvals, ticktext: tickvals.map((value) => String(Number(value.toPrecision(1)))) };
  };
  // No curve passes left of and above the bar, or right of and below it.
  const label = ([at, below, goal, n, distance]) => {
    const above = Math.max(below, goal) < 0.9 * n;
    return {
      text: `D = ${distance.toFixed(3)}`, x: at, xref: "x", yref: "y", showarrow: false, font: { size: 13 },
      y: (above ? Math.max(below, goal) : Math.min(below, goal)) / n,
      xanchor: above ? "right" : "left", yanchor: above ? "bottom" : "top", xshift: above ? -3 : 3,
    };
  };

  const figure = () => {
    const [one, epoch] = [selection.trajectory, selection.epoch];
    const colour = page.slotColour(page.data.families[cell(one.row, "family")] ?? 0);
    const [ink, muted] = ["--ink", "--muted"].map(page.colour);
    const reference = (kind) => { const found = selection.reference(one, kind); return found && sample(found, embeddedEpochs(found)[0]); };
    const [start, goal] = [reference("fine-tuned"), reference("retain")];
    const others = embeddedEpochs(one).filter((other) => other !== epoch && other > 0);
    const found = gap(one, epoch);
    const traces = [
      start && line(start, "fine-tuned model", { color: page.faded(muted, 0.45), width: 1.5 }),
      ...others.map((other) => line(sample(one, other), `epoch ${other}`, { color: page.faded(colour, 0.22), width: 1 }, { showlegend: false })),
      goal && line(goal, "retain model", { color: ink }),
      line(sample(one, epoch), `${cell(one.row, "method")}, epoch ${epoch}`, { color: colour }),
      found && {
        type: "scatter", mode: "lines+markers", name: "D", x: [10 ** found[0], 10 ** found[0]], y: [found[1] / found[3], found[2] / found[3]],
        line: { color: ink, width: 2, dash: "dot" }, marker: { symbol: "line-ew-open", size: 12, color: ink, line: { width: 2 } },
        hovertemplate: "D = %{text}<extra></extra>", text: [found[4].toFixed(4), found[4].toFixed(4)], meta: { role: "ratios" }, showlegend: false,
      },
    ].filter(Boolean);
    const axis = { zeroline: false, showline: false, ticks: "", automargin: true };
    return {
      data: traces,
      layout: {
        xaxis: { ...axis, type: "log", exponentformat: "power", ...ticks(traces), title: { text: "truth ratio R", standoff: 6 } },
        yaxis: { ...axis, range: [-0.02, 1.04], tickformat: ".0%", title: { text: "questions up to R" } },
        annotations: found ? [label(found)] : [],
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
        margin: { l: 52, r: 12, t: 40, b: 44 }, height: 380, hovermode: "closest", showlegend: true,
        meta: { title: `Truth ratios on the forget set: ${page.runName(one.row)}` },
      },
    };
  };

  const share = (count, n) => `${count} of ${n}`;
  const sentence = () => {
    const found = gap(selection.trajectory, selection.epoch);
    if (!found) return "There are no ratios of the retain model on the same questions to compare with.";
    const [at, below, goal, n, distance, log10] = found;
    const p = log10 > -4 ? (10 ** log10).toPrecision(2) : `10^${page.number(log10, 1)}`;
    const seen = `the test ${log10 < Math.log10(LEVEL) ? "distinguishes" : "does not distinguish"} the two models`;
    return `D = ${distance.toFixed(4)} at R = ${Number((10 ** at).toPrecision(3))}: ${share(below, n)} ratios of this model and ${share(goal, n)} of the retain model are at or below it. ` +
      `n = ${n} questions of each; p = ${p}, ${page.headline[1].label} ${page.number(log10, 2)}: ${seen} at the level of ${LEVEL}.`;
  };

  const show = () => {
    const one = selection.trajectory;
    const embedded = one && hasData(one) && sample(one, selection.epoch);
    byId("ratio-plot").hidden = !embedded;
    byId("ratio-save").hidden = !embedded;
    if (one) selection.fill(byId("ratio-run"), selection.choices(hasData), one);
    if (!embedded) {
      byId("ratio-text").textContent = `This page does not have the ratios of this ${one && !hasData(one) ? "run" : "epoch"}; the records have them.`;
      return;
    }
    byId("ratio-epoch").replaceChildren(...embeddedEpochs(one).map((epoch) => element("option", { value: epoch }, String(epoch))));
    byId("ratio-epoch").value = selection.epoch;
    byId("ratio-text").textContent = `${page.runName(one.row)}, epoch ${selection.epoch}, on ${page.place(one.row)}. ${sentence()}`;
    if (plot) { page.refresh(plot); return; }
    // Computed at each drawing: it depends on the selection and on the colour scheme.
    const drawn = { get data() { return figure().data; }, get layout() { return figure().layout; } };
    plot = page.draw(byId("ratio-plot"), drawn, { name: "truth-ratios" });
  };

  const load = async () => {
    if (data) return;
    data = await page.lazyData("ratios");
    if (!selection.choices(hasData).length) {
      byId("ratio-text").textContent = data.reason ? `Not drawn: ${data.reason}` : "No truth ratios were recorded.";
      byId("ratio-tools").hidden = byId("ratio-save").hidden = byId("ratio-plot").hidden = true;
      return;
    }
    selection.listeners.push(show);
    selection.start(hasData);
  };
  byId("ratio-run").addEventListener("change", (event) => selection.select(selection.of(event.target.value)));
  byId("ratio-epoch").addEventListener("change", (event) => selection.select(selection.trajectory, Number(event.target.value)));
  for (const button of byId("ratio-save").querySelectorAll("button")) {
    button.addEventListener("click", () => page.save(plot, button.dataset.format));
  }
  page.whenSeen("ratios", load);
}
