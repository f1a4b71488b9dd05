// The run that the reader looks at, in every section that shows one. Where each epoch count was
// trained by a run of its own, the runs of one setting and seed are one trajectory here.
{
  const { data, element, cell } = page;
  const KEY = ["kind", "model", "forget_fraction", "method", "learning_rate", "seed"];
  const all = new Map();
  const byRun = new Map();
  for (const row of data.rows) {
    const run = cell(row, "run_id");
    const epoch = cell(row, "epoch");
    let key = byRun.get(run)?.key ?? JSON.stringify(KEY.map((name) => cell(row, name)));
    if (all.get(key)?.runs.has(epoch)) key += run; // two runs of one setting and seed
    if (!all.has(key)) all.set(key, { key, row, kind: cell(row, "kind"), runs: new Map() });
    all.get(key).runs.set(epoch, run);
    byRun.set(run, all.get(key));
  }
  const same = (one, other) =>
    ["model", "forget_fraction"].every((name) => cell(one.row, name) === cell(other.row, name));

  const reader = {
    all, same, now: null, epoch: null, listeners: [],
    of: (run) => byRun.get(run) ?? null,
    name: (one) => one.runs.get(reader.epochs(one).at(-1)), // the run of its last epoch
    epochs: (one) => [...one.runs.keys()].sort((a, b) => a - b),
    where: (one) => `${cell(one.row, "model")}, forget ${page.percent(cell(one.row, "forget_fraction"))}`,
    anchor: (one, kind) => [...all.values()].find((other) => other.kind === kind && same(one, other)) ?? null,
    shown: (one) => one.kind !== "run"
      || (page.shows(cell(one.row, "family"), page.rate(cell(one.row, "learning_rate")), cell(one.row, "method"))
        && (page.filters.seed ?? cell(one.row, "seed")) === cell(one.row, "seed")),
    row: (one, epoch) => data.rows.find((row) => cell(row, "run_id") === one.runs.get(epoch) && cell(row, "epoch") === epoch) ?? null,
  };
  // Turn to a trajectory, and one of its epochs (without one: the last).
  reader.turn = (one, epoch = null) => {
    reader.now = one;
    reader.epoch = one && (one.runs.has(epoch) ? epoch : reader.epochs(one).at(-1));
    reader.listeners.forEach((listener) => listener());
  };
  // Options of a select, grouped by model and fraction; anchors stand in it only alone.
  reader.fill = (select, wanted, chosen, none = null) => {
    const groups = new Map();
    for (const one of wanted) {
      const where = reader.where(one);
      if (!groups.has(where)) groups.set(where, element("optgroup", { label: where }));
      groups.get(where).append(element("option", { value: reader.name(one) }, page.runName(one.row)));
    }
    select.replaceChildren(...(none === null ? [] : [element("option", { value: "" }, none)]), ...groups.values());
    select.value = chosen ? reader.name(chosen) : "";
  };
  // What a select offers under the present filters; the run looked at stays on offer.
  reader.offered = (holds) => {
    const there = [...all.values()].filter((one) => holds(one) && (reader.shown(one) || one === reader.now));
    const runs = there.filter((one) => one.kind === "run");
    return runs.length ? runs : there;
  };
  // Where one begins: with what the reader has turned to, else the method that forgets most.
  reader.begin = (holds) => {
    const [run, epoch] = data.first ?? [];
    const first = reader.offered(holds);
    if (reader.now && holds(reader.now)) reader.turn(reader.now, reader.epoch);
    else if (first.includes(byRun.get(run))) reader.turn(byRun.get(run), epoch);
    else reader.turn(first[0]);
  };
  // After a change: follow the reader to a point; else stay, or go where the filters still lead.
  let card = null;
  page.listeners.push(() => {
    const picked = page.card && page.card !== card ? reader.of(page.card.run) : null;
    card = page.card;
    if (picked?.kind === "run") return reader.turn(picked, card.epoch);
    if (!reader.now) return null;
    const one = reader.shown(reader.now) ? reader.now : [...all.values()].find((other) => other.kind === "run" && reader.shown(other));
    return reader.turn(one ?? reader.now, reader.epoch);
  });
  page.reader = reader;
}
