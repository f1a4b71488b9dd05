"""What a method's trials were worth: the best of few and of many, edges of ranges, failures, cost.

Pure. A trial is a setting on the seeds of the choice. Its worth is what it forgot after its best
epoch, of those that keep the utility of `select`, whatever the rule of the choice; a trial that
failed, or kept too little, is worth the start model, which would be kept in its place.
"""

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from unlearnbench.analysis.best_settings import Setting, average_seeds, best_of, panels
from unlearnbench.config.search import SelectSettings
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import expected_best

EDGE = 0.05
"""Share of a range beside its ends in which a choice says that the range is too narrow."""

_CHOICE = ("method", "entry", "model", "forget_fraction", "setting", "learning_rate", "epoch")
_COST = ("tokens_read", "tokens_back")
"""Values that every step reports."""
_TRIALS = ("trials", "failed", *_COST)


def tuned(selection: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The choices of a selection whose trials were counted; one of an earlier version has none."""
    return [choice for choice in (selection or {}).get("choices", []) if choice.get("tuning")]


def to_csv(
    choices: Sequence[Mapping[str, Any]], columns: Sequence[str], unit: Unit = Unit.EPOCH
) -> str:
    """A line for each choice: its trials, and the numbers of it and of the untuned defaults.

    columns  of the headline; both have their mean on the other seeds, and its deviation
    unit     of the sweep, which names the column of the chosen epoch

    `edges` says where in each range the choice is, from 0 to 1; `best_of_3` what the best of three
    trials would be worth.
    """
    most = max(len(choice["tuning"]["best_of"]) for choice in choices)
    kinds, parts = ("reported", "untuned"), ("mean", "standard_deviation")
    numbers = [(kind, name, part) for kind in kinds for name in columns for part in parts]
    best = [f"best_of_{n}" for n in range(1, most + 1)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titles = [unit.value if name == Unit.EPOCH else name for name in _CHOICE]
    writer.writerow((*titles, *_TRIALS, *map("_".join, numbers), "edges", *best))
    for choice in choices:
        tuning = choice["tuning"]
        # Selections of earlier versions have no entries.
        of_choice = {**choice, "entry": choice.get("entry") or choice["method"]}
        writer.writerow(
            (
                *map(of_choice.get, _CHOICE),
                *map(tuning.get, _TRIALS),
                *((choice[kind] or {}).get(name, {}).get(part) for kind, name, part in numbers),
                json.dumps(tuning["edges"], sort_keys=True),
                *tuning["best_of"],
            )
        )
    return text.getvalue()


def summary(
    trials: Sequence[frozenset[str]],
    rows: Sequence[TableRow],
    records: Collection[Record],
    select: SelectSettings,
) -> dict[str, Any]:
    """Trials, failures, worth of the best of n, and cost, as `selection.json` has them.

    The worth of the best of n is empty if the start model lacks a number that it depends on.

    trials  of one entry: the ids of each one's runs, by seed of the choice
    rows    of the table of one model and split, with its start model
    """
    (panel,) = panels(rows)
    start, forgotten = panel.start, panel.headline.forgotten
    by_run: dict[str, list[Setting]] = {}
    for setting in average_seeds(rows):
        if {row.seed for row in setting.rows} == set(select.seeds):
            by_run.setdefault(setting.rows[0].run_id, []).append(setting)
    worth: list[float] = []
    floor = None if start.utility is None else select.utility * start.utility
    for trial in trials:
        if floor is None:
            break
        settings = [item for run in trial for item in by_run.get(run, ())]
        best = best_of(settings, floor)
        value = start.quality if best is None else best.forgotten
        if value is not None:
            worth.append(forgotten.oriented(value))
    if len(worth) < len(trials):
        # The best of the others would not count the trials that kept too little.
        worth = []
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
