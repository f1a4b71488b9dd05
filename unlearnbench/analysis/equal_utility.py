"""Settings of two methods with equal utility, which may be compared by how much they forgot.

On each model and fraction, both sides start from their best setting and epoch by the declared rule
(`best_settings.Panel.best`). The side whose best keeps more utility is the keeper, and
sets the level. The other one, the challenger, takes part with what forgets most among the settings
that keep at least that level less `tolerance`. If that setting keeps more than the level
plus `tolerance`, utilities are not equal: then one side must both keep more and forget at least as
much, otherwise there is no comparison.

If a sweep's `select` rule chose a side's setting on some seeds, that setting alone takes part, with
its runs on the other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Panel,
    PanelKey,
    Setting,
    Start,
    average_seeds,
    best_of,
    merit_of,
    panel_label,
    panels,
)
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import EvaluationError, RecordError, did_you_mean
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.paired_test import margin

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results

TOLERANCE = 0.02
"""Most that two settings of equal utility differ in what is kept, by the headline."""
_ROUNDING = 1e-9
"""Added to a tolerance, so that 0.82 − 0.80 is within 0.02 in binary floating point, too."""


@dataclass(frozen=True, eq=False)
class Contender:
    """One side of a comparison: some runs of a sweep, and the sweep."""

    name: str
    """As printed."""
    rows: tuple[TableRow, ...]
    """Rows of its runs."""
    sweep: tuple[TableRow, ...]
    """Rows of all records of the sweep, start and retain models included."""
    records: Mapping[str, Record]
    """Records of the sweep by id."""
    selection: Mapping[str, Any] | None = None
    """The sweep's `selection.json`, if it has one."""

    @cached_property
    def panels(self) -> Mapping[PanelKey, Panel]:
        """Its own runs by panel."""
        return {panel.panel: panel for panel in panels(self.rows)}

    @cached_property
    def _sweep_panels(self) -> Mapping[PanelKey, Panel]:
        return {panel.panel: panel for panel in panels(self.sweep)}

    def settings(self, key: PanelKey) -> tuple[Setting, ...]:
        """Its settings on one panel, averaged over seeds; only the chosen one after `select`."""
        panel, choice = self.panels[key], self.choice(key)
        if choice is None:
            return panel.settings
        return average_seeds(row for row in panel.rows if _reported(row, choice))

    def choice(self, key: PanelKey) -> Mapping[str, Any] | None:
        """The choice of `select` on one panel, if it was also run on other seeds."""
        rows = self.panels[key].rows
        families = {row.family for row in rows}
        choices: list[Mapping[str, Any]] = self.selection["choices"] if self.selection else []
        for choice in choices:
            location = (choice["model"], choice["forget_fraction"]), {choice["method"]}
            if location == (key, families) and any(_reported(row, choice) for row in rows):
                return choice
        return None

    def pool(self, chosen: Setting) -> Pool:
        """The settings that `chosen`, one of its own, was chosen from."""
        choice = self.choice(chosen.panel)
        if choice is not None and self.selection is not None:
            return Pool(choice["candidates"], (), tuple(self.selection["chosen_on_seeds"]))
        floor, settings = self.floor(chosen.panel) or 0.0, self.settings(chosen.panel)
        able = [
            (setting, merit) for setting in settings if (merit := merit_of(setting)) is not None
        ]
        close = [item for item, merit in able if merit[1] >= floor and _is_near(item, chosen)]
        return Pool(len(able), tuple(item for item in close if item != chosen))

    def floor(self, key: PanelKey) -> float | None:
        """Least utility on a panel by the declared rule; None without a start model."""
        return self._sweep_panels[key].least_kept

    def start(self, key: PanelKey) -> Start:
        """The start model of a panel."""
        return self._sweep_panels[key].start

    def retain(self, key: PanelKey) -> Evaluation:
        """The retain model's evaluation. Raises: EvaluationError without one."""
        for record in self.records.values():
            if record.kind == "retain" and record.panel == key and record.evaluations:
                return record.evaluations[min(record.evaluations)]
        raise EvaluationError(
            f"{self.name}: no evaluated retain model of {panel_label(*key)}, among the "
            "records: start the sweep again, which evaluates it"
        )


@dataclass(frozen=True)
class Pool:
    """Settings that a side's setting was chosen from."""

    tried: int
    """Number of settings with a result: learning rates × hyper-parameters × epochs."""
    rivals: tuple[Setting, ...]
    """Settings that might be the best over other questions: they keep the required utility, and
    their D, if a test has one, is at most `paired_test.margin` above the chosen one's."""
    chosen_on: tuple[int, ...] = ()
    """Seeds of the choice, if its numbers are of other seeds."""


@dataclass(frozen=True)
class Side:
    """One setting after one epoch, as compared."""

    name: str
    setting: str
    """Label with hyper-parameters."""
    learning_rate: float | None
    epoch: int
    utility: float
    """The headline's number of what is kept; mean over the compared seeds, as is `quality`."""
    quality: float
    """The headline's number of what is forgotten."""
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    tried: int = 1
    """As in `Pool`."""
    chosen_on: tuple[int, ...] = ()
    """As in `Pool`."""


Match = tuple[Setting, Setting, bool]
"""Settings of A and B to compare; True if their utilities are equal, False if one of them keeps
more and forgets at least as much."""


def _reported(row: TableRow, choice: Mapping[str, Any]) -> bool:
    return row.run_id in choice["reported_runs"] and row.epoch == choice["epoch"]


def _is_near(setting: Setting, chosen: Setting) -> bool:
    """True if its D might be the least over other questions, or if D is unknown."""
    test = chosen.headline.forgotten.test
    if test is None:
        return True
    distances = [each.metrics.get(test.distance) for each in (setting, chosen)]
    if distances[0] is None or distances[1] is None:
        return True
    return distances[0] - distances[1] <= margin(int(chosen.metrics.get(test.questions) or 0))


def find_contender(name: str, label: str, results: Results) -> Contender:
    """Find the runs that `name` stands for in a sweep.

    name   a method or a setting's label, each with an optional ` lr RATE`, or a run's id or the
           beginning of one
    label  the side's name in the output
    Raises: RecordError that lists the methods.
    """
    name = " ".join(name.split())
    by_name: dict[str, list[TableRow]] = {}
    ids: set[str] = set()
    for row in (row for row in results.rows if row.kind == "run"):
        rate = "" if row.learning_rate is None else f" lr {row.learning_rate:g}"
        for item in {row.family, row.method, row.family + rate, row.method + rate, row.run_id}:
            by_name.setdefault(item, []).append(row)
        if name and row.run_id.startswith(name):
            ids.add(row.run_id)
    result = by_name.get(name) or (by_name[ids.pop()] if len(ids) == 1 else None)
    if result is None:
        raise RecordError(
            f"{label}: no method, setting or run {name!r}{did_you_mean(name, by_name)}; methods: "
            f"{', '.join(results.families) or 'none has run'}"
        )
    records = {record.id: record for record in results.records}
    return Contender(label, tuple(result), results.rows, records, results.selection)


def with_retain_term(name: str, families: Sequence[str]) -> str:
    """`npo+nll` for `npo`, also before ` lr RATE`, where the method ran in that form alone.

    families  methods as they ran, each with its retain term
    Raises: RecordError with the forms, where there are several.
    """
    method, lr, rate = " ".join(name.split()).partition(" lr ")
    forms = [family for family in families if family.partition("+")[0] == method]
    if method in families or not forms:
        return name
    if len(forms) > 1:
        raise RecordError(f"{name!r} ran in several forms: {', '.join(forms)}; name one of them")
    return forms[0] + lr + rate


@dataclass(frozen=True)
class _Role:
    """A side on one panel: its settings that keep enough utility, and the best one of them."""

    name: str
    settings: tuple[Setting, ...]
    best: Setting

    @property
    def level(self) -> float:
        """The utility that the best setting keeps."""
        return self.best.kept or 0.0

    def at_level(self, level: float, tolerance: float) -> tuple[Setting | None, bool]:
        """The best setting that keeps the level less the tolerance; True if utility is equal."""
        tolerance += _ROUNDING
        result = best_of(self.settings, level - tolerance)
        return result, result is not None and (result.kept or 0.0) <= level + tolerance


def match(a: Contender, b: Contender, key: PanelKey, tolerance: float) -> Match | str:
    """The settings to compare on one panel by the rule of this module, or why there are none."""
    roles: list[_Role] = []
    for side in (a, b):
        floor, settings = side.floor(key), side.settings(key)
        best = None if floor is None else best_of(settings, floor)
        if floor is None or best is None:
            share = f"{100 * UTILITY_SHARE:g} % of the start model's utility"
            return f"No setting of {side.name} keeps {share}"
        able = tuple(s for s in settings if (merit := merit_of(s)) and merit[1] >= floor)
        roles.append(_Role(side.name, able, best))
    turned = roles[0].level < roles[1].level
    keeper, challenger = reversed(roles) if turned else roles
    candidate, equal = challenger.at_level(keeper.level, tolerance)
    forgotten = _forgotten(keeper.best)
    if candidate is None or (not equal and _forgotten(candidate) < forgotten):
        if forgotten < _forgotten(challenger.best):
            return _why_unequal(keeper, challenger, tolerance)
        candidate = challenger.best
    return (candidate, keeper.best, equal) if turned else (keeper.best, candidate, equal)


def _why_unequal(keeper: _Role, challenger: _Role, tolerance: float) -> str:
    level = keeper.level
    gaps = {
        math.ceil(1000 * (abs((setting.kept or 0.0) - level) - _ROUNDING)) / 1000
        for setting in challenger.settings
    }
    # The least tolerance, in steps of 0.001, at which a setting is equal: every one is within the
    # largest gap, so that one is found.
    tried = ((gap, challenger.at_level(level, gap)) for gap in sorted(gaps))
    enough, near = next((gap, item) for gap, (item, equal) in tried if item and equal)
    return (
        f"No setting of {challenger.name} has the utility of {keeper.name}'s best, {level:.3f}, "
        f"within {tolerance:g}: {challenger.name}'s best has {challenger.level:.3f} and forgets "
        f"more. Try --within {enough:g}, which compares {level:.3f} with {near.kept:.3f}; or train "
        "with more epochs or learning rates"
    )


def _forgotten(setting: Setting) -> float:
    """Number of what a setting of `best_of` has forgotten; larger is better."""
    return setting.headline.forgotten.oriented(setting.forgotten or 0.0)


def paired_rows(a: Setting, b: Setting) -> tuple[tuple[TableRow, ...], tuple[TableRow, ...]]:
    """Pair the runs of two settings by their common seeds.

    Without a common seed, both sides' runs are paired in the order of their seeds.
    """
    of_a, of_b = ({row.seed: row for row in reversed(item.rows)} for item in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    pairs = list(zip(*([shared] * 2 if shared else [sorted(of_a), sorted(of_b)]), strict=False))
    return tuple(of_a[item] for item, _ in pairs), tuple(of_b[other] for _, other in pairs)


def rows_of(setting: Setting, chosen: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """Return as many runs of a setting as `chosen` has, of the same seeds if possible.

    Fewer runs are repeated in turn, which hardly changes the uncertainty of their mean D.
    """
    by_seed = {row.seed: row for row in reversed(setting.rows)}
    result = [by_seed[row.seed] for row in chosen if row.seed in by_seed] or list(setting.rows)
    return tuple(islice(cycle(result), len(chosen)))


def side_of(name: str, rows: tuple[TableRow, ...], pool: Pool) -> Side:
    """The side that compares these runs of one setting."""
    first = rows[0]
    return Side(
        name=name,
        setting=first.method,
        learning_rate=first.learning_rate,
        epoch=first.epoch,
        utility=fmean(row.kept or 0.0 for row in rows),
        quality=fmean(row.forgotten or 0.0 for row in rows),
        seeds=tuple(row.seed for row in rows),
        runs=tuple(row.run_id for row in rows),
        tried=pool.tried,
        chosen_on=pool.chosen_on,
    )
