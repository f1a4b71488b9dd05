"""What `select` and `tune` choose, and on which runs the choice is reported.

Sources: docs/tutorials/tune-fairly.md, and the descriptions of `select` in the configuration. Each
method, or each entry of a search with trials, has a choice: by runs on the seeds of the choice, of
settings that have a number for each of these seeds. It is reported on the other seeds, by the runs
that differ from the chosen ones only in their seed, at the chosen epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.oracle.means import Setting, SettingsOfRuns
from tests.oracle.places import Judge
from tests.oracle.rows import Row


@dataclass(frozen=True)
class Choice:
    """A method's or an entry's choice on one panel."""

    method: str
    entry: str
    candidates: int
    """Settings with all seeds of the choice, however many epochs they were evaluated after."""
    chosen: Setting | None
    reported: Setting | None
    """The chosen setting on the other seeds; None if no row of them exists."""
    worth: tuple[float, ...] = ()
    """What choices of one method are ordered by, larger is better: the spanned area if the rule is
    `hypervolume`, then what was forgotten and kept on the seeds of the choice."""


def choices_of_panel(
    rows: Sequence[Row], settings: SettingsOfRuns, plan: Mapping[str, Any], judge: Judge
) -> list[Choice]:
    """Return the choices on a panel, in any order.

    Args:
        rows: Plain rows of runs on the panel.
        settings: Of all runs.
        plan: Content of `plan.json`.
        judge: Of the panel.
    """
    select = plan["config"]["select"]
    choosing = {*select["seeds"]}
    if _has_trials_to_go(settings, plan, choosing):
        methods = {row.record.method for row in rows}
        return [Choice(method, method, 0, None, None) for method in sorted(methods)]
    entries = _entries(plan)
    groups: dict[tuple[str, str], list[Setting]] = defaultdict(list)
    on_seeds_of_choice = [row for row in rows if row.record.seed in choosing]
    for setting in settings.of(on_seeds_of_choice, choosing):
        run = setting.rows[0].record
        for entry in entries.get(run.id) or [run.method]:
            groups[run.method, entry].append(setting)

    reporting = {*plan["config"]["seeds"]} - choosing
    on_other_seeds = settings.of([row for row in rows if row.record.seed in reporting], reporting)
    found: list[Choice] = []
    for (method, entry), of_entry in groups.items():
        complete = [
            setting
            for setting in of_entry
            if judge.merit(setting) is not None and {*setting.seeds} == choosing
        ]
        chosen = _choose(complete, select, judge)
        reported = None
        if chosen is not None:
            for setting in on_other_seeds:
                if (setting.text, setting.epoch) == (chosen.text, chosen.epoch):
                    reported = setting
        candidates = len({setting.text for setting in complete})
        worth = () if chosen is None else _worth(chosen, complete, select, judge)
        found.append(Choice(method, entry, candidates, chosen, reported, worth))
    # A method may have rows on the reporting seeds only, if its trials failed.
    with_choice = {choice.method for choice in found}
    for method in sorted({setting.method for setting in on_other_seeds} - with_choice):
        found.append(Choice(method, method, 0, None, None))
    return found


def _has_trials_to_go(
    settings: SettingsOfRuns, plan: Mapping[str, Any], choosing: set[int]
) -> bool:
    """Whether a trial has no record yet, so that nothing is chosen: it might be the best."""
    recorded = {run.id for run in settings.runs}
    trials = {run["id"] for run in plan["runs"] if run["spec"]["seed"] in choosing}
    return bool(trials - recorded) or plan.get("unknown_runs", 0) > 0


def _entries(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the entries whose trial a run is, by its id; nothing for a plain grid."""
    if plan["config"]["search"]["trials"] is None:
        return {}
    return {run["id"]: list(run.get("trial", {}).get("entries", {})) for run in plan["runs"]}


def _choose(settings: Sequence[Setting], select: Mapping[str, Any], judge: Judge) -> Setting | None:
    """Return the chosen setting at its epoch, by one of two rules.

    `forget-quality`: it forgets most of those that keep the share `utility`. `hypervolume`: its
    epochs span the largest area above `reference`, and of them the epoch that spans most by itself.
    """
    if select["rule"] == "forget-quality":
        if judge.start_kept is None:
            return None
        return judge.best(settings, select["utility"] * judge.start_kept)
    corner = _corner(select, judge)
    if corner is None or not settings:
        return None
    spanned: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for setting in settings:
        spanned[setting.text].append(_point(setting, judge))

    def merit(setting: Setting) -> tuple[Any, ...]:
        area = hypervolume(spanned[setting.text], corner)
        own_area = hypervolume([_point(setting, judge)], corner)
        return area, own_area, judge.merit(setting), setting.order_in_tables

    best = max(settings, key=merit)
    return best if merit(best)[0] > 0 else None


def _worth(
    chosen: Setting, settings: Sequence[Setting], select: Mapping[str, Any], judge: Judge
) -> tuple[float, ...]:
    kept, forgotten = _point(chosen, judge)
    area = 0.0
    corner = _corner(select, judge)
    if select["rule"] == "hypervolume" and corner is not None:
        points = [_point(setting, judge) for setting in settings if setting.text == chosen.text]
        area = hypervolume(points, corner)
    return area, forgotten, kept


def _corner(select: Mapping[str, Any], judge: Judge) -> tuple[float, float] | None:
    """Return the reference point; by default nothing is kept, and no more forgotten than before."""
    sign = judge.headline.sign
    if select.get("reference") is not None:
        kept, forgotten = select["reference"]
        return kept, sign * forgotten
    return None if judge.start_forgotten is None else (0.0, sign * judge.start_forgotten)


def _point(setting: Setting, judge: Judge) -> tuple[float, float]:
    merit = judge.merit(setting)
    assert merit is not None
    return merit[1], merit[0]


def hypervolume(points: Sequence[tuple[float, float]], corner: tuple[float, float]) -> float:
    """Return the area of the union of the rectangles between a corner and points above it."""
    inside = [(x - corner[0], y - corner[1]) for x, y in points]
    inside = [(x, y) for x, y in inside if x > 0 and y > 0]
    # Strips between neighbouring x are as high as the highest point to their right.
    edges = sorted({0.0, *(x for x, _ in inside)})
    area = 0.0
    for left, right in pairwise(edges):
        area += (right - left) * max(y for x, y in inside if x >= right)
    return area
