"""How long forgetting lasts: a number of memorisation before attacks and under them.

Pure. A setting is compared with the start model, which has learned the rows to forget, and with the
retain model, which never saw them and is attacked in the same way: its own gain is the null.

knowledge  k = clip((m − r) / (s − r₀), 0, 1): what a model memorises beyond the retain model under
           the same attack (r), by what the start model does without an attack (s − r₀)
lasting    1 − max(0, k − k₀) / (1 − k₀): of what a method removed (1 − k₀), the share that the
           attack does not give back. 1: nothing comes back, or no more than in the retain model; 0:
           all of it. Of several attacks and points the worst one counts.

An attack that is evaluated before its first step (point `0`) has its numbers «before» there, on the
rows that it selects; another one in the plain evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Panel,
    Setting,
    at_start,
    average_seeds,
    merit_of,
    on_panel,
    start_utility,
)
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.metric import MetricColumn
from unlearnbench.results.table import TableRow
from unlearnbench.stats.relearning import (
    area_between,
    largest,
    relearning_robustness,
    steps_to_half,
    symmetric_relearning_robustness,
)
from unlearnbench.stats.t_interval import Interval, t_interval

MEMORIZATION = (
    *("extraction_strength", "exact_memorization", "probability", "rouge"),
    *("paraphrased_probability", "choice_accuracy", "option_probability"),
)
"""Metrics of the forget set that attacks are measured by: the first one with a number. Extraction
strength is the most faithful one of Dorna et al. 2025, arXiv:2506.12618, table 2."""
LEAST_REMOVED = 0.25
"""Least 1 − k₀ of which a share is given: below it, little was removed, and its share is noise."""
START = "0"
"""Point of an attack before its first step."""


def attack_of(variant: str) -> str:
    """`relearning` of `relearning@13`."""
    return variant.partition("@")[0]


def point_of(variant: str) -> str:
    """`13` of `relearning@13`; empty for an attack with one point."""
    return variant.partition("@")[2]


def step_of(variant: str) -> int | None:
    """The optimiser step that a variant is evaluated after, where its point is a whole number."""
    point = point_of(variant)
    return int(point) if point.isdecimal() else None


def memorization_column(rows: Sequence[TableRow], attacked: Sequence[TableRow]) -> str | None:
    """The column that attacks are measured by: of `MEMORIZATION`, else of the headline.

    None where no attacked row has a number of what is forgotten.
    """
    if not attacked:
        return None
    schema = attacked[0].schema
    forget = schema.sets("forget")[:1]
    names = [f"{metric}_{name}" for name in forget for metric in MEMORIZATION]
    for column in (*names, schema.headline.forgotten.column):
        if all(
            any(row.metrics.get(column) is not None for row in some) for some in (rows, attacked)
        ):
            return column
    return None


@dataclass(frozen=True)
class Shift:
    """A model's number before an attack and under it."""

    before: float | None
    after: float | None

    @property
    def gain(self) -> float | None:
        """After less before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class UnderAttack:
    """A setting under one variant, over its seeds."""

    variant: str
    shifts: tuple[Shift, ...]
    """One per seed."""
    retain: Shift
    start: Shift
    bypassed: bool = False
    """True for a method at inference time under an attack that runs the model without it."""
    sign: float = 1.0
    """−1 where a smaller number means that more is memorised."""

    @property
    def before(self) -> float | None:
        """Mean over seeds; None if one has no number."""
        return _mean([one.before for one in self.shifts])

    @property
    def after(self) -> float | None:
        """Mean over seeds; None if one has no number."""
        return _mean([one.after for one in self.shifts])

    @property
    def after_interval(self) -> Interval | None:
        """Interval over seeds of the number under the attack."""
        return _interval([one.after for one in self.shifts])

    @property
    def gain(self) -> float | None:
        """Mean gain over seeds."""
        return _mean([one.gain for one in self.shifts])

    @property
    def gain_interval(self) -> Interval | None:
        """Interval over seeds of the gain."""
        return _interval([one.gain for one in self.shifts])

    @property
    def null(self) -> float | None:
        """The retain model's own gain."""
        return self.retain.gain

    @cached_property
    def shares(self) -> tuple[float | None, ...]:
        """Lasting by seed, see the module; None where it is undefined."""
        return tuple(map(self._share, self.shifts))

    @property
    def lasting(self) -> float | None:
        """Mean of `shares` over seeds; None if one is undefined."""
        return _mean(self.shares)

    @property
    def lasting_interval(self) -> Interval | None:
        """Interval over seeds of `lasting`."""
        return _interval(self.shares)

    @property
    def removed(self) -> float | None:
        """Mean share of the start model's knowledge that the method removed: 1 − k₀."""
        found = [self._knowledge(one.before, self.retain.before) for one in self.shifts]
        return _mean([None if known is None else 1 - known for known in found])

    def _share(self, shift: Shift) -> float | None:
        before = self._knowledge(shift.before, self.retain.before)
        after = self._knowledge(shift.after, self.retain.after)
        if before is None or after is None or 1 - before < LEAST_REMOVED:
            return None
        return 1 - max(0.0, after - before) / (1 - before)

    def _knowledge(self, value: float | None, retain: float | None) -> float | None:
        start, floor = self.start.before, self.retain.before
        if value is None or retain is None or start is None or floor is None:
            return None
        if self.sign * (start - floor) <= 0:
            return None  # the start model has not learned the rows
        return min(1.0, max(0.0, (value - retain) / (start - floor)))


@dataclass(frozen=True)
class RelearningCurve:
    """A setting's number over the steps of an attack that is evaluated at several."""

    attack: str
    steps: tuple[int, ...]
    """From 0, before the attack."""
    seeds: tuple[tuple[float | None, ...], ...]
    """By seed, a number for each step."""
    retain: tuple[float | None, ...]
    start: tuple[float | None, ...]
    """The start model under the same attack."""
    sign: float = 1.0
    """−1 where a smaller number means that more is memorised."""

    @property
    def mean(self) -> tuple[float | None, ...]:
        """Means over seeds."""
        return tuple(_mean(values) for values in zip(*self.seeds, strict=True))

    @property
    def intervals(self) -> tuple[Interval | None, ...]:
        """Intervals over seeds, for each step."""
        return tuple(_interval(values) for values in zip(*self.seeds, strict=True))

    @property
    def area(self) -> float | None:
        """Area between the curves of the setting and the retain model, see `area_between`."""
        u, r, (start, *_) = map(self._oriented, (self.mean, self.retain, self.start))
        return area_between(self.steps, u, r, start)

    @property
    def steps_to_half(self) -> float | None:
        """Steps to half of the start model's number, infinity where it is not reached."""
        found, (start, *_) = self._oriented(self.mean), self._oriented(self.start)
        return steps_to_half(self.steps, found, start)

    @property
    def largest(self) -> float | None:
        """The number at the step where most is memorised."""
        found = largest(self._oriented(self.mean))
        return None if found is None else self.sign * found

    @property
    def robustness(self) -> float | None:
        """open-unlearning's R at the last step."""
        return relearning_robustness(*self._ends())

    @property
    def symmetric_robustness(self) -> float | None:
        """The symmetric form of R at the last step."""
        return symmetric_relearning_robustness(*self._ends())

    def _ends(self) -> tuple[float | None, float | None, float | None, float | None]:
        u, r = self._oriented(self.mean), self._oriented(self.retain)
        return u[0], u[-1], r[0], r[-1]

    def _oriented(self, values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else self.sign * value for value in values]


@dataclass(frozen=True)
class AttackedSetting:
    """A setting after one epoch, and the same under attacks."""

    setting: Setting
    """Its plain numbers."""
    under: tuple[UnderAttack, ...]
    """In the table's order; without points before the first step."""
    keeps_utility: bool
    """True if it keeps `UTILITY_SHARE` of what the start model has, without an attack."""
    curves: tuple[RelearningCurve, ...] = ()

    @property
    def worst(self) -> UnderAttack | None:
        """The variant of the smallest lasting; None without one, and without enough utility.

        A model that produces no text any more relearns slowly, and has nothing to protect.
        """
        found = [(v, i) for i, one in enumerate(self.under) if (v := one.lasting) is not None]
        return self.under[min(found)[1]] if found and self.keeps_utility else None

    @property
    def lasting(self) -> float | None:
        """Lasting under the worst variant."""
        return None if self.worst is None else self.worst.lasting

    @property
    def bypassed_by(self) -> tuple[str, ...]:
        """Attacks that run the model without the method."""
        return tuple(dict.fromkeys(attack_of(one.variant) for one in self.under if one.bypassed))

    @property
    def why_not(self) -> str:
        """Reason why there is no `lasting`; empty if there is one."""
        if self.worst is not None or not self.under:
            return ""
        if not self.keeps_utility:
            return f"less than {100 * UTILITY_SHARE:.0f} % of the start model's utility is kept"
        if all(one.null is None for one in self.under):
            return "the retain model was not attacked"
        if all(one.start.before is None for one in self.under):
            return "the start model was not evaluated"
        removed = [one.removed for one in self.under if one.removed is not None]
        if removed and max(removed) < LEAST_REMOVED:
            return f"less than {100 * LEAST_REMOVED:.0f} % was removed, and could come back"
        return "a number behind it is undefined"

    def at(self, variant: str) -> UnderAttack | None:
        """The setting under a variant."""
        return next((one for one in self.under if one.variant == variant), None)


@dataclass(frozen=True)
class AttackedPanel:
    """The attacked settings of one model and split."""

    model: str
    forget_fraction: SplitKey
    column: MetricColumn
    """The number of memorisation."""
    variants: tuple[str, ...]
    """In the table's order; without points before the first step."""
    settings: tuple[AttackedSetting, ...]
    retain: Mapping[str, Shift]
    """The retain model by variant."""
    start: Mapping[str, Shift]
    """The start model by variant."""

    @property
    def attacks(self) -> Mapping[str, tuple[str, ...]]:
        """Variants by attack."""
        found: dict[str, list[str]] = {}
        for variant in self.variants:
            found.setdefault(attack_of(variant), []).append(variant)
        return {attack: tuple(variants) for attack, variants in found.items()}

    @property
    def best(self) -> tuple[AttackedSetting, ...]:
        """For each method, its best setting among the attacked: by the rule of `best_of`.

        A method's best setting of all, if it was attacked. Without one that keeps enough utility,
        the setting that keeps most.
        """
        by_family: dict[str, list[AttackedSetting]] = {}
        for one in self.settings:
            by_family.setdefault(one.setting.family, []).append(one)
        return tuple(max(several, key=_rank) for several in by_family.values())


def _rank(one: AttackedSetting) -> tuple[bool, tuple[float, ...]]:
    forgotten, kept, epoch = merit_of(one.setting) or (0.0, -1.0, 0)
    return one.keeps_utility, (forgotten, kept, epoch) if one.keeps_utility else (kept, epoch)


def attacked_panels(
    rows: Sequence[TableRow],
    attacked: Sequence[TableRow],
    white_box: Callable[[str], bool] = lambda _: False,
    column: str | None = None,
) -> tuple[AttackedPanel, ...]:
    """Compare every attacked setting with both other models, by model and split.

    rows       the table of plain evaluations, start and retain models included
    attacked   `attack_table` of the same records
    white_box  True for an attack, by name, that runs a model without what is put in front of it
    column     number of memorisation (default: `memorization_column`)
    """
    column = column or memorization_column(rows, attacked)
    if column is None:
        return ()
    places = dict.fromkeys((row.model, row.forget_fraction) for row in attacked)
    found = (_panel(rows, attacked, place, white_box, column) for place in places)
    return tuple(one for one in found if one.settings)


def _panel(
    rows: Sequence[TableRow],
    attacked: Sequence[TableRow],
    place: Panel,
    white_box: Callable[[str], bool],
    column: str,
) -> AttackedPanel:
    here, under = on_panel(rows, place), on_panel(attacked, place)
    # Start and retain models have a record for each attack, so that runs decide the order.
    ordered = dict.fromkeys(row.variant for row in sorted(under, key=lambda r: r.kind != "run"))
    variants = tuple(v for v in ordered if point_of(v) != START)
    retains, starts = (
        {row.variant: row.metrics.get(column) for row in under if row.kind == kind}
        for kind in ("retain", "fine-tuned")
    )
    goals = (row.metrics.get(column) for row in here if row.kind == "retain")
    plain = next(goals, None), at_start(here, *place, column)
    retain, start = (
        {v: _shift(numbers, v, before) for v in variants}
        for numbers, before in zip((retains, starts), plain, strict=True)
    )
    by_run: dict[tuple[str, int], dict[str, float | None]] = {}
    for row in under:
        by_run.setdefault((row.run_id, row.epoch), {})[row.variant] = row.metrics.get(column)
    schema = under[0].schema
    metric = schema.column(column)
    sign = -1.0 if metric.better == "higher" else 1.0
    utility = start_utility(here, *place)
    settings: list[AttackedSetting] = []
    for setting in average_seeds(here):
        of_seeds = [by_run.get((row.run_id, row.epoch), {}) for row in setting.rows]
        seen = {variant for numbers in of_seeds for variant in numbers}
        if not seen:
            continue
        befores = [row.metrics.get(column) for row in setting.rows]
        results: list[UnderAttack] = []
        for variant in (one for one in variants if one in seen):
            # A method at inference time trains nothing, and is gone at the attack's first point.
            bypassed = setting.learning_rate is None and white_box(attack_of(variant))
            shifts = tuple(
                Shift(before, numbers.get(variant))
                if bypassed
                else _shift(numbers, variant, before)
                for numbers, before in zip(of_seeds, befores, strict=True)
            )
            references = retain[variant], start[variant]
            results.append(UnderAttack(variant, shifts, *references, bypassed, sign))
        kept = setting.kept
        able = utility is not None and kept is not None and kept >= UTILITY_SHARE * utility
        settings.append(
            AttackedSetting(setting, tuple(results), able, tuple(_curves(results, sign)))
        )
    return AttackedPanel(*place, metric, variants, tuple(settings), retain, start)


def _shift(numbers: Mapping[str, float | None], variant: str, before: float | None) -> Shift:
    """The numbers of a model under attacks, at one of them; `before`: its plain number."""
    first = numbers.get(f"{attack_of(variant)}@{START}", before)
    return Shift(first, numbers.get(variant))


def _curves(results: Iterable[UnderAttack], sign: float) -> Iterator[RelearningCurve]:
    """The curves of the attacks with two points or more that are steps."""
    by_attack: dict[str, dict[int, UnderAttack]] = {}
    for one in results:
        if (step := step_of(one.variant)) is not None:
            by_attack.setdefault(attack_of(one.variant), {})[step] = one
    for attack, points in by_attack.items():
        steps = sorted(points)
        first, along = points[steps[0]], [points[step] for step in steps]
        if len(steps) < 2:
            continue

        def curve(shifts: Sequence[Shift]) -> tuple[float | None, ...]:
            return (shifts[0].before, *(one.after for one in shifts))

        yield RelearningCurve(
            attack,
            (0, *steps),
            tuple(curve([point.shifts[i] for point in along]) for i in range(len(first.shifts))),
            curve([point.retain for point in along]),
            curve([point.start for point in along]),
            sign,
        )


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return fmean(found) if found and len(found) == len(values) else None


def _interval(values: Sequence[float | None]) -> Interval | None:
    found = [value for value in values if value is not None]
    return t_interval(found) if len(found) == len(values) else None
