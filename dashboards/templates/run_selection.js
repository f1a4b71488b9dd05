// The run and epoch whose answers are shown. If each number of epochs was trained by a run of its own,
// the runs of one setting and seed are one trajectory here.
{
  const { data, element, cell } = page;
  const KEY = ["kind", "model", "forget_fraction", "method", "learning_rate", "seed"];
  const trajectories = new Map();
  const byRun = new Map();
  for (const row of data.rows) {
    const [run, epoch] = [cell(row, "run_id"), cell(row, "epoch")];
    let key = byRun.get(run)?.key ?? JSON.stringify(KEY.map((name) => cell(row, name)));
    if (trajectories.get(key)?.runs.has(epoch)) key += run; // two runs of one setting and seed
    if (!trajectories.has(key)) trajectories.set(key, { key, row, kind: cell(row, "kind"), runs: new Map() });
    trajectories.get(key).runs.set(epoch, run);
    byRun.set(run, trajectories.get(key));
  }
  const all = [...trajectories.values()];

  const selection = {
    trajectory: null, epoch: null, listeners: [],
    of: (run) => byRun.get(run) ?? null,
    epochs: (one) => [...one.runs.keys()].sort((a, b) => a - b),
    lastRun: (one) => one.runs.get(selection.epochs(one).at(-1)),
    reference: (one, kind) => all.find((other) => other.kind === kind && page.place(one.row) === page.place(other.row)) ?? null,
  };
  // Selects a trajectory and one of its epochs; without an epoch, the last.
  selection.select = (one, epoch = null) => {
    selection.trajectory = one;
    selection.epoch = one && (one.runs.has(epoch) ? epoch : selection.epochs(one).at(-1));
    selection.listeners.forEach((listener) => listener());
  };
  // Fills a <select> with trajectories, grouped by panel.
  selection.fill = (select, offered, chosen) => {
    const groups = [...Map.groupBy(offered, (one) => page.place(one.row))];
    select.replaceChildren(...groups.map(([place, several]) => element("optgroup", { label: place },
      ...several.map((one) => element("option", { value: selection.lastRun(one) }, page.runName(one.row))))));
    select.value = chosen ? selection.lastRun(chosen) : "";
  };
  // Trajectories that have data and pass the filters, and the selected one; start and retain models
  // only if there are no runs.
  selection.choices = (hasData) => {
    const found = all.filter((one) => hasData(one) && (page.showsRow(one.row) || one === selection.trajectory));
    const runs = found.filter((one) => one.kind === "run");
    return runs.length ? runs : found;
  };
  // Starts with what is already selected, else with the method that forgets most.
  selection.start = (hasData) => {
    const [run, epoch] = data.first ?? [];
    const choices = selection.choices(hasData);
    if (selection.trajectory && hasData(selection.trajectory)) selection.select(selection.trajectory, selection.epoch);
    else if (choices.includes(byRun.get(run))) selection.select(byRun.get(run), epoch);
    else selection.select(choices[0]);
  };
  // Follows the reader to a point; with new filters, stays if they allow it.
  let card = null;
  selection.follow = () => {
    const opened = page.card && page.card !== card ? selection.of(page.card.run) : null;
    card = page.card;
    if (opened?.kind === "run") return selection.select(opened, card.epoch);
    if (!selection.trajectory) return null;
    const one = page.showsRow(selection.trajectory.row) ? selection.trajectory : all.find((other) => other.kind === "run" && page.showsRow(other.row));
    return selection.select(one ?? selection.trajectory, selection.epoch);
  };
  page.listeners.push(selection.follow);
  page.selection = selection;
}
