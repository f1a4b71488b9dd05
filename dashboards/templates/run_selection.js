// The model and epoch whose answers are shown.
//
// A trajectory is what the reader chooses: a model's rows over epochs. A schedule may depend on the
// number of epochs, so that each number of epochs is trained by a run of its own. Then the runs of
// one setting and seed are one trajectory. It has
//   key   tells trajectories apart
//   row   its first row, for its names
//   kind  "run", "fine-tuned" (the start model) or "retain"
//   runs  a map from epoch to the id of the run that was evaluated after this epoch
{
  const { data, element, cell } = page;

  // ---- Trajectories ----

  const KEY_COLUMNS = ["kind", "model", "forget_fraction", "method", "learning_rate", "seed"];
  const trajectoryByKey = new Map();
  const trajectoryByRun = new Map();

  const keyOfRow = (row) => JSON.stringify(KEY_COLUMNS.map((name) => cell(row, name)));

  for (const row of data.rows) {
    const run = cell(row, "run_id");
    const epoch = cell(row, "epoch");
    let key = trajectoryByRun.get(run)?.key ?? keyOfRow(row);
    // Two runs of one setting and seed that have the same epoch are two trajectories.
    if (trajectoryByKey.get(key)?.runs.has(epoch)) key += run;
    if (!trajectoryByKey.has(key)) {
      trajectoryByKey.set(key, { key, row, kind: cell(row, "kind"), runs: new Map() });
    }
    const trajectory = trajectoryByKey.get(key);
    trajectory.runs.set(epoch, run);
    trajectoryByRun.set(run, trajectory);
  }
  const trajectories = [...trajectoryByKey.values()];

  // ---- Selection ----

  const selection = {
    trajectory: null, // the selected one, or null before the reader has seen any answers
    epoch: null,
    listeners: [], // functions that are called after every selection
  };
  page.selection = selection;

  /** Return the trajectory that a run belongs to, or null. */
  selection.of = (run) => trajectoryByRun.get(run) ?? null;

  /** List the epochs of a trajectory, in ascending order. */
  selection.epochs = (trajectory) => [...trajectory.runs.keys()].sort((a, b) => a - b);

  const lastEpoch = (trajectory) => selection.epochs(trajectory).at(-1);

  selection.lastRun = (trajectory) => trajectory.runs.get(lastEpoch(trajectory));

  /** Return the start ("fine-tuned") or retain model of a trajectory's panel, or null. */
  selection.reference = (trajectory, kind) => {
    const place = page.place(trajectory.row);
    const isReference = (other) => other.kind === kind && page.place(other.row) === place;
    return trajectories.find(isReference) ?? null;
  };

  /** Select a trajectory, at this epoch if it has it, and otherwise at its last one. */
  selection.select = (trajectory, epoch = null) => {
    selection.trajectory = trajectory;
    if (!trajectory) selection.epoch = null;
    else selection.epoch = trajectory.runs.has(epoch) ? epoch : lastEpoch(trajectory);
    selection.listeners.forEach((listener) => listener());
  };

  /**
   * Fill a select element with trajectories, grouped by panel.
   *
   * @param {HTMLSelectElement} select
   * @param {object[]} offered Trajectories. The value of an option is the trajectory's last run.
   * @param {object | null | undefined} chosen The trajectory to select.
   */
  selection.fill = (select, offered, chosen) => {
    const optionOf = (trajectory) =>
      element("option", { value: selection.lastRun(trajectory) }, page.runName(trajectory.row));
    const byPlace = Map.groupBy(offered, (trajectory) => page.place(trajectory.row));
    const groups = [...byPlace].map(([place, ofPlace]) =>
      element("optgroup", { label: place }, ...ofPlace.map(optionOf)));
    select.replaceChildren(...groups);
    select.value = chosen ? selection.lastRun(chosen) : "";
  };

  /**
   * List the trajectories to offer: runs that have data and that the filters show, and the selected
   * one. Start and retain models are offered only if there are no runs.
   *
   * @param {function} hasData Whether there is anything to show of a trajectory.
   */
  selection.choices = (hasData) => {
    const isOffered = (trajectory) =>
      page.showsRow(trajectory.row) || trajectory === selection.trajectory;
    const offered = trajectories.filter((trajectory) => hasData(trajectory) && isOffered(trajectory));
    const runs = offered.filter(({ kind }) => kind === "run");
    return runs.length ? runs : offered;
  };

  /** Select what is selected already, or else the method that forgets most, or else the first choice. */
  selection.start = (hasData) => {
    const choices = selection.choices(hasData);
    const selected = selection.trajectory;
    if (selected && hasData(selected)) {
      selection.select(selected, selection.epoch);
      return;
    }
    const [firstRun, firstEpoch] = data.first ?? [];
    const first = trajectoryByRun.get(firstRun);
    if (choices.includes(first)) selection.select(first, firstEpoch);
    else selection.select(choices[0]);
  };

  let followedCard = null;

  /**
   * Select the run whose card was opened. With new filters, keep the selected run if they show it,
   * and otherwise select the first run that they show.
   */
  selection.follow = () => {
    const isNewCard = page.card && page.card !== followedCard;
    const opened = isNewCard ? selection.of(page.card.run) : null;
    followedCard = page.card;
    if (opened?.kind === "run") {
      selection.select(opened, followedCard.epoch);
      return;
    }
    const selected = selection.trajectory;
    if (!selected) return; // the reader has not seen any answers
    const isShownRun = ({ kind, row }) => kind === "run" && page.showsRow(row);
    const next = page.showsRow(selected.row) ? selected : trajectories.find(isShownRun);
    selection.select(next ?? selected, selection.epoch);
  };
  page.listeners.push(selection.follow);
}
