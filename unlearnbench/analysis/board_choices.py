"""Choices of `select` and `tune` on a leaderboard, which has lines of many sweeps and no plans.

A *choice* is the setting that a rule has chosen for one entry of a configuration, on one model and
split. The rule looks at *trials*: runs of all settings on the seeds of the choice. Runs of the
chosen setting on other seeds *report* it. A line of a leaderboard is the record of one run.

Each line states the choices that its run was a trial of, or reports (`choices_by_run`). A board
puts these statements together again (`choices_on_board`).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from unlearnbench.analysis.best_settings import Choice
from unlearnbench.results.records import Record

CHOICES = "choices"
"""Key of the choices in the provenance of a line of a leaderboard."""
_TRIES = "tries"
"""Key of the choices that a run was a trial of."""
_REPORTS = "reports"
"""Key of the choices that a run reports."""
_DESCRIPTION = ("family", "entry", "label", "epoch", "candidates", "why_not")
"""Fields of a choice that a line of a leaderboard has as they are."""


def choices_by_run(choices: Iterable[Choice]) -> dict[str, dict[str, Any]]:
    """Return what the lines of a leaderboard have to say about the choices of a sweep.

    Returns:
        By run and then by id of the sweep: the sweep's name, and the choices that the run was a
        trial of or reports.
    """
    statements: dict[str, dict[str, Any]] = defaultdict(dict)
    for choice in choices:
        description: dict[str, Any] = {name: getattr(choice, name) for name in _DESCRIPTION}
        # JSON has no tuples.
        description["chosen_on"] = list(choice.chosen_on)
        description["worth"] = list(choice.worth)
        # A run without a part in any choice is listed, too: it tells which runs a sweep has.
        for run_id in choice.sweep_runs:
            of_sweep = statements[run_id].setdefault(
                choice.sweep_id, {"sweep": choice.sweep, _TRIES: [], _REPORTS: []}
            )
            if run_id in choice.trials:
                of_sweep[_TRIES].append(description)
            if run_id in choice.runs:
                of_sweep[_REPORTS].append(description)
    return dict(statements)


def choices_on_board(records: Iterable[Record]) -> tuple[Choice, ...]:
    """Return the choices that the lines of a leaderboard state, see `choices_by_run`."""
    runs_of_sweep: dict[str, set[str]] = defaultdict(set)
    trials_of_choice: dict[str, set[str]] = defaultdict(set)
    reporting_runs_of_choice: dict[str, set[str]] = defaultdict(set)
    choices: dict[str, Choice] = {}
    for record in records:
        for sweep_id, statement in record.provenance.get(CHOICES, {}).items():
            runs_of_sweep[sweep_id].add(record.id)
            for stated in statement[_TRIES]:
                trials_of_choice[_key(stated, record, sweep_id)].add(record.id)
            for stated in statement[_REPORTS]:
                reporting_runs_of_choice[_key(stated, record, sweep_id)].add(record.id)
            for stated in (*statement[_TRIES], *statement[_REPORTS]):
                key = _key(stated, record, sweep_id)
                choice = _stated_choice(stated, record, statement["sweep"], sweep_id)
                # A line that was exported earlier may not know the choice yet.
                is_newer = key in choices and choices[key].why_not and not choice.why_not
                if key not in choices or is_newer:
                    choices[key] = choice

    with_runs: list[Choice] = []
    for key, choice in sorted(choices.items()):
        with_runs.append(
            replace(
                choice,
                runs=frozenset(reporting_runs_of_choice[key]),
                trials=frozenset(trials_of_choice[key]),
                sweep_runs=frozenset(runs_of_sweep[choice.sweep_id]),
            )
        )
    return tuple(with_runs)


def _key(stated: Mapping[str, Any], record: Record, sweep_id: str) -> str:
    """Return what tells a choice apart from the others of a board."""
    return json.dumps([sweep_id, *record.panel, stated["family"], stated["entry"]])


def _stated_choice(stated: Mapping[str, Any], record: Record, sweep: str, sweep_id: str) -> Choice:
    """Return a choice that a line states, without its runs."""
    return Choice(
        *record.panel,
        **{name: stated[name] for name in _DESCRIPTION},
        chosen_on=tuple(stated["chosen_on"]),
        worth=tuple(stated["worth"]),
        runs=frozenset(),
        trials=frozenset(),
        sweep=sweep,
        sweep_id=sweep_id,
    )
