"""What a method's trials were worth: the best of few and of many, edges of ranges, failures, cost.

Pure. A trial is a setting on the seeds of the choice. Its worth is what the chosen epoch forgot, by
the rule of the choice; a trial that failed, or kept too little, is worth the start model, which
would be kept in its place.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from unlearnbench.analysis.best_settings import Setting, average_seeds, best_of, panels
from unlearnbench.config.search import Range, SelectSettings
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import expected_best

EDGE = 0.05
"""Share of a range beside its ends in which a choice says that the range is too narrow."""

_COST = ("tokens_read", "tokens_back")
"""Values that every step reports."""


def shares(values: Mapping[str, Any], axes: Mapping[str, Any]) -> dict[str, float]:
    """Where chosen values are in their ranges, from 0 to 1, by axis."""
    return {
        name: axis.share(float(values[name]))
        for name, axis in axes.items()
        if isinstance(axis, Range) and values.get(name) is not None
    }


def summary(
    trials: Sequence[frozenset[str]],
    rows: Sequence[TableRow],
    records: Collection[Record],
    select: SelectSettings,
) -> dict[str, Any]:
    """Trials, failures, worth of the best of n, and cost, as `selection.json` has them.

    trials  of one entry: the ids of each one's runs, by seed of the choice
    rows    of the table of one model and split, with its start model
    """
    (panel,) = panels(rows)
    start, forgotten = panel.start, panel.headline.forgotten
    by_run: dict[str, list[Setting]] = {}
    for setting in average_seeds(rows):
        by_run.setdefault(setting.rows[0].run_id, []).append(setting)
    floor = select.utility * (start.utility or 0.0)
    worth: list[float] = []
    for trial in trials:
        best = best_of([item for run in trial for item in by_run.get(run, ())], floor)
        value = start.quality if best is None else best.forgotten
        if value is not None:
            worth.append(forgotten.oriented(value))
    worths, ids = np.array(worth), {run for trial in trials for run in trial}
    tried = [record for record in records if record.id in ids]
    lost = {record.id for record in tried if record.status in ("failed", "collapsed")}
    steps = [step for record in tried for step in record.steps]
    return {
        "trials": len(trials),
        "failed": sum(not lost.isdisjoint(trial) for trial in trials),
        "best_of": [
            forgotten.oriented(float(expected_best(worths, n + 1))) for n in range(len(worth))
        ],
        **{name: int(sum(step.reported.get(name, 0.0) for step in steps)) for name in _COST},
    }
