// The run and epoch that truth ratios and answers show. If each number of epochs was trained by a run
// of its own, the runs of one setting and seed are one trajectory here.
{
  const { data, element, cell } = page;
  const KEY = ["kind", "model", "forget_fraction", "method", "learning_rate", "seed"];
  const trajectories = new Map();
  const byRun = new Map();
  for (const row of data.rows) {
    const run = cell(row, "run_id");
    const epoch = cell(row, "epoch");
    let key = byRun.get(run)?.key ?? JSON.stringify(KEY.map((name) => cell(row, name)));
    if (trajectories.get(key)?.runs.has(epoch)) key += run; // two runs of one setting and seed
    if (!trajectories.has(key)) trajectories.set(key, { key, row, kind: cell(row, "kind"), runs: new Map() });
    trajectories.get(key).runs.set(epoch, run);
    byRun.set(run, trajectories.get(key));
  }
  const all = [...trajectories.values()];
  const samePanel = (one, other) =>
    ["model", "forget_fraction"].every((name) => cell(one.row, name) === cell(other.row, name));
  const passesFilters = ({ kind, row }) => page.showsRow(row) && (kind !== "run"
    || (page.shows(cell(row, "family"), page.rate(cell(row, "learning_rate")), cell(row, "method")) && page.showsSeed(cell(row, "seed"))));

  const selection = {
    trajectory: null, epoch: null, listeners: [],
    of: (run) => byRun.get(run) ?? null,
    epochs: (one) => [...one.runs.keys()].sort((a, b) => a - b),
    lastRun: (one) => one.runs.get(selection.epochs(one).at(-1)),
    reference: (one, kind) => all.find((other) => other.kind === kind && samePanel(one, other)) ?? null,
  };
  // Selects a trajectory and one of its epochs; without an epoch, the last.
  selection.select = (one, epoch = null) => {
    selection.trajectory = one;
    selection.epoch = one && (one.runs.has(epoch) ? epoch : selection.epochs(one).at(-1));
    selection.listeners.forEach((listener) => listener());
  };
  // Fills a <select> with trajectories, grouped by panel.
  selection.fill = (select, offered, chosen) => {
    const groups = new Map();
    for (const one of offered) {
      const place = page.place(one.row);
      if (!groups.has(place)) groups.set(place, element("optgroup", { label: place }));
      groups.get(place).append(element("option", { value: selection.lastRun(one) }, page.runName(one.row)));
    }
    select.replaceChildren(...groups.values());
    select.value = chosen ? selection.lastRun(chosen) : "";
  };
  // Trajectories that have data and pass the filters, and the selected one; start and retain models
  // only if there are no runs.
  selection.choices = (hasData) => {
    const found = all.filter((one) => hasData(one) && (passesFilters(one) || one === selection.trajectory));
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
    const one = passesFilters(selection.trajectory) ? selection.trajectory : all.find((other) => other.kind === "run" && passesFilters(other));
    return selection.select(one ?? selection.trajectory, selection.epoch);
  };
  page.listeners.push(selection.follow);
  page.selection = selection;
}
