"""Which settings of two methods have equal utility, and so may be compared by what they forgot.

What is compared, on each model and fraction: each side's best setting and epoch by the declared
rule (`ranking.best_per_method`). The one of them that keeps more Model Utility sets the level. The
other side takes part with its highest Forget Quality among the settings that keep that level, less
`tolerance`. Where these keep more than the level plus `tolerance`, utilities are not equal: then
only a side that both keeps more and forgets more is compared, and else there is no comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from unlearnbench.errors import EvaluationError, RecordError, did_you_mean
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.ranking import UTILITY_SHARE, Setting, average_seeds, best_of, start_utility
from unlearnbench.records import Record
from unlearnbench.table import Row

UTILITY, QUALITY = "model_utility", "log10_forget_quality"
TOLERANCE = 0.02
"""Model Utility by which two settings of equal utility may differ."""


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

    def settings(self, model: str, fraction: float) -> tuple[Setting, ...]:
        """Its settings on one panel, seeds taken together."""
        here = [r for r in self.rows if (r.model, r.forget_fraction) == (model, fraction)]
        return average_seeds(here)

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


@dataclass(frozen=True)
class Match:
    """The two settings to compare, or why there are none."""

    why_not: str = ""
    a: Setting | None = None
    b: Setting | None = None
    equal_utility: bool = False
    """False: one of them keeps more, and forgets as much or more."""


def find(name: str, told: str, rows: tuple[Row, ...], records: Sequence[Record]) -> Contender:
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
    return Contender(told, tuple(chosen), rows, {one.id: one for one in records})


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
    # At least what the rule asks for: the level may itself lie close above that.
    other = best_of(settings[lower], max(level - tolerance, floors[lower] or 0.0))
    equal = other is not None and _of(other, UTILITY) <= level + tolerance
    if other is None or not (equal or _of(other, QUALITY) >= _of(high, QUALITY)):
        if _of(high, QUALITY) < _of(low, QUALITY):
            return Match(_unequal((a, b)[upper].name, (a, b)[lower].name, high, low, tolerance))
        other = low
    pair = (high, other) if upper == 0 else (other, high)
    return Match("", *pair, equal)


def _unequal(keeps: str, forgets: str, high: Setting, low: Setting, tolerance: float) -> str:
    level = f"{_of(high, UTILITY):.3f}"
    return (
        f"Their utilities do not meet: the best setting of {keeps} keeps {level} and forgets less, "
        f"that of {forgets} keeps {_of(low, UTILITY):.3f} and forgets more, and none of {forgets} "
        f"lies within {tolerance:g} of {level}; more epochs or learning rates may give one"
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


def side_of(name: str, rows: tuple[Row, ...]) -> Side:
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
    )
