"""Which settings of two methods have equal utility, and so may be compared by what they forgot.

What is compared, on each model and fraction: each side's best setting and epoch by the declared
rule (`ranking.best_per_method`). The one of them that keeps more Model Utility sets the level. The
other side takes part with its highest Forget Quality among the settings that keep that level, less
`tolerance`. Where these keep more than the level plus `tolerance`, utilities are not equal: then
only a side that both keeps more and forgets more is compared, and else there is no comparison.

Where a sweep's `select` rule chose a side's setting on some seeds, that setting takes part with its
runs on the other seeds, and with no other setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean
from typing import Any

from unlearnbench.errors import EvaluationError, RecordError, did_you_mean
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.paired import margin
from unlearnbench.ranking import (
    UTILITY_SHARE,
    Setting,
    average_seeds,
    best_of,
    merit_of,
    start_utility,
)
from unlearnbench.records import Record
from unlearnbench.table import Row

UTILITY, QUALITY, DISTANCE = "model_utility", "log10_forget_quality", "ks_statistic"
TOLERANCE = 0.02
"""Model Utility by which two settings of equal utility may differ."""
_ROUNDING = 1e-9
"""A tolerance written as a decimal takes in a difference of that many digits."""


@dataclass(frozen=True)
class Contender:
    """One side: some runs of a sweep, and the sweep they are from."""

    name: str
    """As it is told."""
    rows: tuple[Row, ...]
    """Of its runs."""
    sweep: tuple[Row, ...]
    """Of all records of its sweep, among them the models that runs are measured against."""
    records: Mapping[str, Record]
    """The sweep's, by id."""
    selection: Mapping[str, Any] | None = None
    """The sweep's `selection.json`, if it has one."""

    def settings(self, model: str, fraction: float) -> tuple[Setting, ...]:
        """Its settings on one panel, seeds taken together; one, where it was chosen apart."""
        here = [r for r in self.rows if (r.model, r.forget_fraction) == (model, fraction)]
        choice = self.choice(model, fraction)
        if choice is not None:
            here = [row for row in here if _reported(row, choice)]
        return average_seeds(here)

    def choice(self, model: str, fraction: float) -> Mapping[str, Any] | None:
        """What `select` chose for it on one panel, where it has runs on seeds of no choice."""
        here = [r for r in self.rows if (r.model, r.forget_fraction) == (model, fraction)]
        families = {row.family for row in here}
        for choice in () if self.selection is None else self.selection["choices"]:
            place = choice["model"], choice["forget_fraction"], {choice["method"]}
            if place == (model, fraction, families) and any(_reported(r, choice) for r in here):
                found: Mapping[str, Any] = choice
                return found
        return None

    def pool(self, chosen: Setting) -> Pool:
        """What `chosen`, one of its settings, was chosen from."""
        place = chosen.model, chosen.forget_fraction
        choice = self.choice(*place)
        if choice is not None and self.selection is not None:
            return Pool(choice["candidates"], (), tuple(self.selection["chosen_on_seeds"]))
        floor, settings = self.floor(*place) or 0.0, self.settings(*place)
        able = [(one, merit) for one in settings if (merit := merit_of(one)) is not None]
        close = [one for one, merit in able if merit[1] >= floor and _is_near(one, chosen)]
        return Pool(len(able), tuple(one for one in close if one != chosen))

    def floor(self, model: str, fraction: float) -> float | None:
        """The utility that the declared rule asks for on a panel."""
        start = start_utility(self.sweep, model, fraction)
        return None if start is None else UTILITY_SHARE * start

    def retain(self, model: str, fraction: float) -> Evaluation:
        """The retain model's evaluation. Raises: EvaluationError without one."""
        for one in self.records.values():
            place = one.kind, one.model, one.forget_fraction
            if place == ("retain", model, fraction) and one.evaluations:
                return one.evaluations[min(one.evaluations)]
        raise EvaluationError(
            f"{self.name}: no evaluated retain model of {model}, forget {100 * fraction:g} %, "
            "among the records: start the sweep again, which makes what is missing"
        )


@dataclass(frozen=True)
class Pool:
    """What a side's setting was chosen from."""

    tried: int
    """Settings with a number: learning rates × hyper-parameters × epochs."""
    rivals: tuple[Setting, ...]
    """Those that might be its best over other questions: they keep the utility that the rule asks
    for, and their D is within `paired.margin` of the chosen one's, or less."""
    chosen_on: tuple[int, ...] = ()
    """Seeds that it was chosen on, where its numbers are of others."""


@dataclass(frozen=True)
class Side:
    """One setting after one epoch, as it takes part."""

    name: str
    setting: str
    """Label with hyper-parameters."""
    learning_rate: float | None
    epoch: int
    utility: float
    """Mean over the seeds that take part, as is the next one."""
    quality: float
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    tried: int = 1
    """Settings and epochs that it was chosen from."""
    chosen_on: tuple[int, ...] = ()
    """Seeds that it was chosen on, where its numbers are of others."""


@dataclass(frozen=True)
class Match:
    """The two settings to compare, or why there are none."""

    why_not: str = ""
    a: Setting | None = None
    b: Setting | None = None
    equal_utility: bool = False
    """False: one of them keeps more, and forgets as much or more."""


def _reported(row: Row, choice: Mapping[str, Any]) -> bool:
    return row.run_id in choice["reported_runs"] and row.epoch == choice["epoch"]


def _is_near(one: Setting, chosen: Setting) -> bool:
    """Whether its D might be the least over other questions; so, too, where D is unknown."""
    distances = [each.metrics[DISTANCE] for each in (one, chosen)]
    if distances[0] is None or distances[1] is None:
        return True
    return distances[0] - distances[1] <= margin(int(chosen.metrics["ks_n"] or 0))


def find(
    name: str,
    told: str,
    rows: tuple[Row, ...],
    records: Sequence[Record],
    selection: Mapping[str, Any] | None = None,
) -> Contender:
    """The side that `name` stands for in a sweep.

    name  a method, a setting's label, either with ` lr RATE` behind it, or a run's id or its start
    told  how the side is to be called
    Raises: RecordError with the names that there are.
    """
    wanted = " ".join(name.split())
    known: dict[str, list[Row]] = {}
    for row in (row for row in rows if row.kind == "run"):
        rate = "" if row.learning_rate is None else f" lr {row.learning_rate:g}"
        for one in {row.family, row.method, row.family + rate, row.method + rate, row.run_id}:
            known.setdefault(one, []).append(row)
    ids = {row.run_id for row in rows if row.kind == "run" and row.run_id.startswith(wanted)}
    chosen = known.get(wanted) or (known[ids.pop()] if len(ids) == 1 and wanted else None)
    if chosen is None:
        families = sorted({row.family for row in rows if row.kind == "run"})
        raise RecordError(
            f"{told}: no method, setting or run {name!r}{did_you_mean(wanted, known)}; methods: "
            f"{', '.join(families) or 'none has run'}"
        )
    return Contender(told, tuple(chosen), rows, {one.id: one for one in records}, selection)


def match(a: Contender, b: Contender, place: tuple[str, float], tolerance: float) -> Match:
    """The settings of A and B to compare on one model and fraction, by this module's rule."""
    floors = [one.floor(*place) for one in (a, b)]
    settings = [one.settings(*place) for one in (a, b)]
    best: list[Setting] = []
    for one, floor, own in zip((a, b), floors, settings, strict=True):
        found = None if floor is None else best_of(own, floor)
        if found is None:
            share = f"{100 * UTILITY_SHARE:g} % of the fine-tuned model's utility"
            return Match(f"No setting of {one.name} keeps {share}")
        best.append(found)
    upper = 0 if _of(best[0], UTILITY) >= _of(best[1], UTILITY) else 1
    lower = 1 - upper
    high, low = best[upper], best[lower]
    level = _of(high, UTILITY)
    floor = floors[lower] or 0.0
    other, equal = _at_level(settings[lower], level, tolerance, floor)
    if other is None or not (equal or _of(other, QUALITY) >= _of(high, QUALITY)):
        if _of(high, QUALITY) < _of(low, QUALITY):
            names = (a, b)[upper].name, (a, b)[lower].name
            enough = _enough(settings[lower], level, floor)
            return Match(_unequal(*names, level, low, tolerance, enough))
        other = low
    pair = (high, other) if upper == 0 else (other, high)
    return Match("", *pair, equal)


def _at_level(
    settings: Sequence[Setting], level: float, tolerance: float, floor: float
) -> tuple[Setting | None, bool]:
    """The best that keeps the level, less the tolerance, and whether it keeps no more than that."""
    tolerance += _ROUNDING
    # At least what the rule asks for: the level may itself lie close above that.
    found = best_of(settings, max(level - tolerance, floor))
    return found, found is not None and _of(found, UTILITY) <= level + tolerance


def _enough(settings: Sequence[Setting], level: float, floor: float) -> tuple[float, float]:
    """The least tolerance, in steps of 0.001, at which some setting has the level; its utility."""
    gaps = {
        math.ceil(1000 * (abs(merit[1] - level) - _ROUNDING)) / 1000
        for one in settings
        if (merit := merit_of(one)) is not None and merit[1] >= floor
    }
    # At the largest of them, every setting has the level.
    tried = ((gap, _at_level(settings, level, gap, floor)) for gap in sorted(gaps))
    return next((gap, _of(one, UTILITY)) for gap, (one, equal) in tried if one and equal)


def _unequal(
    keeps: str,
    forgets: str,
    level: float,
    low: Setting,
    tolerance: float,
    enough: tuple[float, float],
) -> str:
    within, other = enough
    return (
        f"No setting of {forgets} has the utility of {keeps}'s best, {level:.3f}, within "
        f"{tolerance:g}: {forgets}'s best has {_of(low, UTILITY):.3f} and forgets more. "
        f"Try --within {within:g}, which compares {level:.3f} with {other:.3f}; or train with more "
        "epochs or learning rates"
    )


def _of(setting: Setting, metric: str) -> float:
    """A number that `best_of` has made sure of."""
    value = setting.metrics[metric]
    return 0.0 if value is None else value


def paired_rows(a: Setting, b: Setting) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """The runs of two settings, side by side: those of the seeds that both have.

    Without a seed in common, the first of the one with the first of the other, and so on.
    """
    of_a, of_b = ({row.seed: row for row in reversed(one.rows)} for one in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    pairs = list(zip(*([shared] * 2 if shared else [sorted(of_a), sorted(of_b)]), strict=False))
    return tuple(of_a[one] for one, _ in pairs), tuple(of_b[other] for _, other in pairs)


def rows_of(setting: Setting, chosen: Sequence[Row]) -> tuple[Row, ...]:
    """Runs of a setting, as many as of the chosen one: of its seeds where they are there.

    With fewer, they take turns, which leaves the mean of their Ds about as uncertain as it is.
    """
    by_seed = {row.seed: row for row in reversed(setting.rows)}
    found = [by_seed[row.seed] for row in chosen if row.seed in by_seed] or list(setting.rows)
    return tuple(islice(cycle(found), len(chosen)))


def side_of(name: str, rows: tuple[Row, ...], pool: Pool) -> Side:
    """How runs of one setting take part."""
    first = rows[0]
    return Side(
        name=name,
        setting=first.method,
        learning_rate=first.learning_rate,
        epoch=first.epoch,
        utility=fmean(row.metrics[UTILITY] or 0.0 for row in rows),
        quality=fmean(row.metrics[QUALITY] or 0.0 for row in rows),
        seeds=tuple(row.seed for row in rows),
        runs=tuple(row.run_id for row in rows),
        tried=pool.tried,
        chosen_on=pool.chosen_on,
    )
