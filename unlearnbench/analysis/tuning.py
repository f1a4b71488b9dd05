"""What a method's trials were worth: the best of few and of many, edges of ranges, failures, cost.

A *trial* is a setting on the seeds of the choice. Its *worth* is what it forgot after its best
epoch, among the epochs that keep the utility of `select`, whatever the rule of the choice. A trial
that failed, or kept too little, is worth as much as the start model, which would be kept in its
place.
"""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.analysis.best_settings import Panel, panels
from unlearnbench.analysis.setting_order import best_of
from unlearnbench.analysis.settings import Setting, average_seeds
from unlearnbench.config.search import SelectSettings
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import expected_best

EDGE = 0.05
"""Share of a range at each of its ends. A choice within it says that the range is too narrow."""

_CHOICE = ("method", "entry", "model", "forget_fraction", "setting", "learning_rate", "epoch")
"""Columns of `tuning.csv` on the choice."""
_COST = ("tokens_read", "tokens_back")
"""Values that every step reports: tokens of forward passes, and tokens of backward passes."""
_TRIALS = ("trials", "failed", *_COST)
"""Columns of `tuning.csv` on its trials."""


class _ReportColumn(NamedTuple):
    """A column of `tuning.csv` with a number of the choice, or of the untuned defaults.

    The name of the column joins the three parts, for example `reported_model_utility_mean`.
    """

    subject: str
    """`reported` for the choice, `untuned` for the defaults, both on the other seeds."""
    metric: str
    """Column of the headline."""
    statistic: str
    """`mean` or `standard_deviation`, over seeds."""

    def number(self, choice: Mapping[str, Any]) -> float | None:
        """Return the number of a choice; None if it is unknown, or the defaults were not tried."""
        report = choice[self.subject] or {}
        number: float | None = report.get(self.metric, {}).get(self.statistic)
        return number


def tuned(selection: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """List the choices of a selection whose trials were counted.

    A selection of an earlier version has none.
    """
    if selection is None:
        return []
    return [choice for choice in selection.get("choices", []) if choice.get("tuning")]


def to_csv(
    choices: Sequence[Mapping[str, Any]], columns: Sequence[str], unit: Unit = Unit.EPOCH
) -> str:
    """Return the text of `tuning.csv`: a line for each choice.

    A line has the choice, its trials, and the numbers of the choice and of the untuned defaults on
    the other seeds. `edges` says where in each range the choice is, from 0 to 1. `best_of_3` is
    what the best of three trials is expected to be worth.

    Args:
        choices: From `tuned`.
        columns: Columns of the headline. Their mean and deviation over seeds are given.
        unit: Unit of the sweep, which names the column of the chosen epoch.
    """
    most_trials = max(len(choice["tuning"]["best_of"]) for choice in choices)
    report_columns = [
        _ReportColumn(subject, metric, statistic)
        for subject in ("reported", "untuned")
        for metric in columns
        for statistic in ("mean", "standard_deviation")
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *(unit.value if name == Unit.EPOCH else name for name in _CHOICE),
            *_TRIALS,
            *("_".join(column) for column in report_columns),
            "edges",
            *(f"best_of_{count}" for count in range(1, most_trials + 1)),
        ]
    )
    for choice in choices:
        tuning = choice["tuning"]
        # Selections of earlier versions have no entries.
        values_of_choice = {**choice, "entry": choice.get("entry") or choice["method"]}
        writer.writerow(
            [
                *(values_of_choice.get(name) for name in _CHOICE),
                *(tuning.get(name) for name in _TRIALS),
                *(column.number(choice) for column in report_columns),
                json.dumps(tuning["edges"], sort_keys=True),
                *tuning["best_of"],
            ]
        )
    return text.getvalue()


def summary(
    trials: Sequence[frozenset[str]],
    rows: Sequence[TableRow],
    records: Collection[Record],
    select: SelectSettings,
) -> dict[str, Any]:
    """Return trials, failures, worth of the best of n, and cost, as in `selection.json`.

    Args:
        trials: For each trial of one entry, the ids of its runs on the seeds of the choice.
        rows: Rows of the table of one model and split, with its start model.
        records: The records of the table.
        select: The rule of the choice.
    """
    (panel,) = panels(rows)
    worths = _worths(trials, panel, rows, select)
    run_ids = {run_id for trial in trials for run_id in trial}
    tried = [record for record in records if record.id in run_ids]
    lost = {record.id for record in tried if record.status in ("failed", "collapsed")}
    return {
        "trials": len(trials),
        "failed": sum(not lost.isdisjoint(trial) for trial in trials),
        "best_of": _expected_best(worths, panel),
        **_cost(tried),
    }


def _worths(
    trials: Sequence[frozenset[str]],
    panel: Panel,
    rows: Sequence[TableRow],
    select: SelectSettings,
) -> list[float]:
    """Return the worth of each trial, larger is better.

    Returns:
        Empty if the worth of a trial is unknown, because the start model lacks a number. The best
        of the other trials would not count the trials that kept too little.
    """
    start = panel.start
    if start.utility is None:
        return []
    least_kept = select.utility * start.utility
    settings_of_run: dict[str, list[Setting]] = defaultdict(list)
    for setting in average_seeds(rows):
        has_all_seeds = {row.seed for row in setting.rows} == set(select.seeds)
        if has_all_seeds:
            settings_of_run[setting.rows[0].run_id].append(setting)
    worths: list[float] = []
    for trial in trials:
        settings = [setting for run_id in trial for setting in settings_of_run.get(run_id, ())]
        best = best_of(settings, least_kept)
        forgotten = start.quality if best is None else best.forgotten
        if forgotten is None:
            return []
        worths.append(panel.headline.forgotten.oriented(forgotten))
    return worths


def _expected_best(worths: Sequence[float], panel: Panel) -> list[float]:
    """Return the expected worth of the best of 1, 2, … trials, as a number of the headline."""
    oriented = panel.headline.forgotten.oriented
    values = np.array(worths)
    # To orient a number twice gives the number again.
    return [oriented(float(expected_best(values, count))) for count in range(1, len(worths) + 1)]


def _cost(records: Iterable[Record]) -> dict[str, int]:
    """Add up the tokens of the forward and backward passes of runs, by `_COST`."""
    steps = [step for record in records for step in record.steps]
    return {name: int(sum(step.reported.get(name, 0.0) for step in steps)) for name in _COST}
