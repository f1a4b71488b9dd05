"""Order of the methods on each panel, where it is in doubt, and tests of the leading one.

Pure, except that the evaluations of the compared settings are read from disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from unlearnbench.analysis.best_settings import (
    Best,
    OnPanel,
    Panel,
    Setting,
    average_seeds,
    best_first,
    best_per_method,
    headline_of_rows,
    merit_of,
    on_panel,
    panel_order,
    shared_places,
    split_kind,
    start_corner,
)
from unlearnbench.analysis.compare import PanelComparison, compare_match, training_differences
from unlearnbench.analysis.equal_utility import TOLERANCE, Contender, match
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.errors import EvaluationError, RecordError
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, critical_count, ks_power
from unlearnbench.stats.paired_test import holm
from unlearnbench.stats.pareto_front import hypervolume
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, LEVEL, Interval


@dataclass(frozen=True)
class RankedMethod:
    """One method on one panel."""

    method: str
    """Label without hyper-parameters."""
    best: Setting | None
    """None if no setting keeps its utility."""
    place: int | None
    """Of the best setting, as `shared_places` has it."""
    hypervolume: float | None
    """Of all its settings and epochs above the start model's corner; None without one."""

    @property
    def forgotten(self) -> float | None:
        """The headline's number of the best setting, by which methods are ordered."""
        return None if self.best is None else self.best.forgotten

    @property
    def interval(self) -> Interval | None:
        """Interval of `forgotten` over seeds; None for one seed."""
        if self.best is None:
            return None
        return self.best.interval(self.best.headline.forgotten.column)

    @property
    def seeds(self) -> int:
        """Number of seeds of the best setting."""
        return 0 if self.best is None else len({row.seed for row in self.best.rows})


@dataclass(frozen=True)
class PanelOrder(OnPanel):
    """Order of the methods on one model and split."""

    methods: tuple[RankedMethod, ...]
    """Best first, by what the best setting has forgotten; methods without one come last."""
    warnings: tuple[str, ...]
    """Sentences on neighbours that might change places, and on methods without a best setting."""
    sensitivity: Sensitivity | None
    """None where no test is behind the headline, or none has a number."""
    rivals: Rivals | None
    """Tests of the leading method against the others; None without one, or without a test."""
    unequal: tuple[str, ...]
    """Sentences on differences in training between the methods."""


@dataclass(frozen=True)
class OrderConfidence:
    """Order of the methods of a sweep: on each panel, and by mean rank."""

    panels: tuple[PanelOrder, ...]
    ranks: Ranks


def assess_order(rows: Sequence[TableRow], records: Iterable[Record]) -> OrderConfidence:
    """Order the methods on each panel, with tests of the leading one.

    Reads from disk the evaluations of the retain models, of each method's best setting, and of the
    leading method's other settings that were about as good.
    """
    by_id = {one.id: one for one in records}
    retains = {(r.model, r.forget_fraction): r for r in by_id.values() if r.kind == "retain"}
    best = best_per_method(rows)
    panels: list[PanelOrder] = []
    for place in dict.fromkeys(one.panel for one in best):
        here = on_panel(rows, place)
        corner, settings = start_corner(here, *place), average_seeds(here)
        ordered = sorted(
            (one for one in best if one.panel == place),
            key=lambda one: best_first(one.setting, one.family),
        )
        places = iter(shared_places([one.setting for one in ordered if one.setting]))
        methods = [
            RankedMethod(
                one.family,
                one.setting,
                next(places) if one.setting else None,
                None if corner is None else hypervolume(_points(settings, one.family), corner),
            )
            for one in ordered
        ]
        compared = {one.method: by_id[one.best.rows[0].run_id] for one in methods if one.best}
        unequal = training_differences(compared)
        panels.append(
            PanelOrder(
                *place,
                methods=tuple(methods),
                warnings=tuple(_warnings(methods)),
                sensitivity=_sensitivity(here, retains.get(place)),
                rivals=rivals(here, by_id.values(), *place),
                unequal=tuple(f"Trained differently: {one}." for one in unequal),
            )
        )
    return OrderConfidence(tuple(panels), rank_methods(best))


def _warnings(methods: Sequence[RankedMethod]) -> Iterator[str]:
    placed = [one for one in methods if one.best is not None]
    few = [one for one in placed if one.seeds < ENOUGH_SEEDS]
    if few:
        one = max(each.seeds for each in few) == 1
        seeds = "one seed" if one else "fewer than three seeds"
        names = ", ".join(each.method + ("" if one else f" ({each.seeds})") for each in few)
        where = "" if len(few) == len(placed) else f" for {names}"
        rests, them = ("This order rests", "it") if placed[1:] else ("These numbers rest", "them")
        yield f"{rests} on {seeds}{where}: other seeds may change {them}."
    places = groupby(placed, key=lambda one: one.place)
    shared = [" and ".join(one.method for one in some) for _, some in places]
    if len(few) < len(placed) and (shared := [names for names in shared if " and " in names]):
        yield f"Not better beyond chance over seeds, so of one place: {'; '.join(shared)}."
    if without := [one.method for one in methods if one.best is None]:
        yield f"Last because no setting keeps its utility: {', '.join(without)}."


def _points(settings: Iterable[Setting], family: str) -> list[tuple[float, float]]:
    """(kept, forgotten) of all settings and epochs of a method, larger is better in both."""
    merits = [merit_of(one) for one in settings if one.family == family]
    return [(merit[1], merit[0]) for merit in merits if merit is not None]


def _sensitivity(rows: Sequence[TableRow], retain: Record | None) -> Sensitivity | None:
    """Sensitivity by the retain model's truth ratios, or else by their number."""
    test = headline_of_rows(rows).forgotten.test
    if test is None:
        return None
    if retain is not None and retain.evaluations:
        first = min(retain.evaluations)
        try:
            return ks_power(forget_ratios(retain.evaluations[first]))
        except EvaluationError:  # a profile of another version, whose ratios cannot be computed
            pass
    counts = {int(n) for row in rows if (n := row.metrics.get(test.questions)) is not None}
    return ks_power(counts.pop()) if len(counts) == 1 else None


SWAPS = 999
"""Swaps drawn per test; more if the adjustment for many tests needs a smaller least p."""


@dataclass(frozen=True)
class Rivals:
    """The leading method of a panel and its tests against the others; methods by their family."""

    leader: str
    """Method whose best setting has forgotten most, by the headline."""
    same: tuple[str, ...]
    """Methods than which it does not forget significantly more; ordered by the headline, as all."""
    apart: tuple[str, ...]
    """Methods that forget significantly less, Holm-adjusted over all tests."""
    untested: Mapping[str, str]
    """Reasons by method without a test: no equal utility, or unreadable evaluations."""
    runner_up: str
    """The first of the other methods by the headline; empty without one."""
    near_retain: tuple[str, ...]
    """Methods whose best setting's D is below `resolution`, the leader included."""
    questions: int | None
    """Number of forget questions."""
    resolution: float | None
    """Least D at which the headline's test distinguishes a model from the retain model."""
    measure: str
    """Name of the headline's number: `Forget Quality`."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The comparison in sentences."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        tests = len(self.same) + len(self.apart)
        how = (
            f"paired test{'s' * (tests > 1)} over {self.questions} questions at equal utility, p "
            "adjusted after Holm and for the number of settings tried"
            if self.questions
            else "over seeds, at equal utility"
        )
        if self.same:
            yield (
                f"{self.leader} leads, but does not forget significantly more than "
                f"{_count(self.same)}: {', '.join(self.same)} ({how})."
            )
        elif tests:
            yield f"{self.leader} forgets more than {_count(self.apart)} tested ({how})."
        if self.untested:
            name, reason = next(iter(self.untested.items()))
            yield f"Not tested against {self.leader}: {', '.join(self.untested)}. {name}: {reason}."
        leading = (self.leader, *self.same)
        near = [one for one in leading if one in self.near_retain]
        if near and self.resolution is not None:
            what = (
                f"{leading[0]} lies"
                if len(leading) == 1
                else f"All {len(leading)} of them lie"
                if len(near) == len(leading)
                else f"Of them, {', '.join(near)} lie{'s' * (len(near) == 1)}"
            )
            yield (
                f"{what} too close to the retain model for {self.questions} questions to tell "
                f"apart by {self.measure} (D below {self.resolution:.3g})."
            )


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} method{'s' * (len(names) != 1)}"


class _CachedEvaluations(dict[int, Any]):
    """Evaluations that are read from disk at most once."""

    def __init__(self, stored: Mapping[int, Evaluation]) -> None:
        super().__init__(dict.fromkeys(stored))
        self._stored = stored

    def __getitem__(self, epoch: int) -> Evaluation:
        if self.get(epoch) is None:
            self[epoch] = self._stored[epoch]
        found: Evaluation = super().__getitem__(epoch)
        return found


def rivals(
    rows: Sequence[TableRow], records: Iterable[Record], model: str, split: SplitKey
) -> Rivals | None:
    """The leading method of a panel and its rivals; None if no setting keeps its utility.

    The leader is tested against each other method as in `compare`: at equal utility, and adjusted
    for the number of its own settings; where the headline has no test, over seeds.
    """
    place = model, split
    here = on_panel(rows, place)
    best = [one.setting for one in best_per_method(here) if one.setting is not None]
    forgotten = headline_of_rows(here).forgotten
    test = forgotten.test
    if not best:
        return None
    best.sort(key=lambda one: best_first(one, one.family))
    cached = {
        one.id: replace(one, evaluations=_CachedEvaluations(one.evaluations))
        for one in records
        if (one.model, one.forget_fraction) == place
    }
    own = [tuple(r for r in here if r.kind == "run" and r.family == one.family) for one in best]
    leader, *others = (Contender(runs[0].family, runs, here, cached) for runs in own)
    swaps = max(SWAPS, round(2 * len(best) / SIGNIFICANCE))
    tested: dict[str, PanelComparison] = {}
    untested: dict[str, str] = {}
    for other in others:
        try:
            found = match(leader, other, place, TOLERANCE)
            panel = compare_match(leader, other, place, found, only_a=True, swaps=swaps)
        except (EvaluationError, RecordError) as error:  # which cannot be read, or do not compare
            untested[other.name] = str(error)
            continue
        if panel.test is None and (panel.over_seeds is None or panel.over_seeds.is_range):
            untested[other.name] = panel.why_not or "they have fewer than three seeds in common"
        else:
            tested[other.name] = panel
    adjusted = holm([one.test.p_value if one.test else 0.0 for one in tested.values()])
    pairs = zip(tested.items(), adjusted, strict=True)
    apart = [name for (name, one), p in pairs if replace(one, p_adjusted=p).better is one.a]
    values = (row.metrics.get(test.questions) for row in here) if test else ()
    counts = {int(n) for n in values if n is not None}
    questions = counts.pop() if len(counts) == 1 else None
    critical = critical_count(questions) if questions else None
    resolution = critical / questions if critical and questions else None
    near = [
        one.family
        for one in best
        if test
        and resolution
        and (d := one.metrics.get(test.distance)) is not None
        and d < resolution
    ]
    return Rivals(
        leader=leader.name,
        same=tuple(name for name in tested if name not in apart),
        apart=tuple(apart),
        untested=untested,
        runner_up=others[0].name if others else "",
        near_retain=tuple(near),
        measure=test.label if test else forgotten.name,
        questions=questions,
        resolution=resolution,
    )


RESAMPLES = 2_000


@dataclass(frozen=True)
class Rank:
    """Mean rank of a method; 1 is the best."""

    method: str
    """Label without hyper-parameters."""
    mean: float
    low: float | None
    """Interval of the mean; None for one panel with one seed, which cannot be resampled."""
    high: float | None
    places: tuple[float, ...]
    """Rank on each of `Ranks.panels`; two methods that tie share the mean of their ranks."""
    without: int
    """Number of panels on which no setting keeps its utility; the method ranks last there."""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of the methods that ran on every panel, best first."""

    panels: tuple[Panel, ...]
    ranks: tuple[Rank, ...]
    left_out: tuple[str, ...]
    """Methods that did not run on every panel, whose ranks are not comparable."""
    level: float = LEVEL

    @property
    def summary(self) -> str:
        """Sentences on the data behind the ranks."""
        count, kind = len(self.panels), split_kind(self.panels)
        what = f"{count} panels (models × {kind}s)"
        if count < 2:
            what = f"one panel: they hold for this model and {kind} only"
        text = f"Ranks of {len(self.ranks)} methods by their best settings, from {what}."
        last = [one for one in self.ranks if one.without]
        if last:
            named = ", ".join(
                one.method + (f" ({one.without} of {count})" if count > 1 else "") for one in last
            )
            text += f" Last because no setting keeps its utility: {named}."
        if self.left_out:
            text += f" Left out because not run on every panel: {', '.join(self.left_out)}."
        return text


def mid_ranks(values: Sequence[float | None]) -> tuple[float, ...]:
    """Ranks from 1 for the largest; equal values share the mean of their ranks, None is last."""
    finite = np.array([-np.inf if v is None else v for v in values], dtype=np.float64)
    return tuple(_places(finite).tolist())


def _places(values: FloatArray) -> FloatArray:
    """[..., k] mid-ranks of [..., k] values, 1 for the largest."""
    higher = (values[..., None, :] > values[..., :, None]).sum(axis=-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    places: FloatArray = higher + (equal + 1) / 2
    return places


def rank_methods(best: Sequence[Best], level: float = LEVEL) -> Ranks:
    """Rank the methods by what their best settings (`best_per_method`) have forgotten.

    The interval resamples panels, and in each panel the seeds of every setting, if there are
    several (percentiles of 2,000 resamples with a fixed seed; Efron 1979, Ann. Statist. 7, 1-26).
    The settings are fixed, so that it does not include the uncertainty of choosing them. Own code:
    `scipy.stats.bootstrap` has no nested resampling.
    """
    by_panel: dict[Panel, dict[str, Best]] = defaultdict(dict)
    for one in best:
        by_panel[one.panel][one.family] = one
    panels = tuple(sorted(by_panel, key=panel_order))
    everyone = sorted({one.family for one in best})
    methods = [m for m in everyone if all(m in by_panel[panel] for panel in panels)]
    left_out = tuple(m for m in everyone if m not in methods)
    if not methods:
        return Ranks(panels, (), left_out, level)
    cells = [[_values(by_panel[panel][m]) for m in methods] for panel in panels]
    places = np.array(
        [mid_ranks([float(np.mean(v)) if len(v) else None for v in row]) for row in cells]
    )
    low, high = _interval(cells, level)
    ranks = [
        Rank(
            method=method,
            mean=float(places[:, i].mean()),
            low=None if low is None else float(low[i]),
            high=None if high is None else float(high[i]),
            places=tuple(places[:, i].tolist()),
            without=sum(len(row[i]) == 0 for row in cells),
        )
        for i, method in enumerate(methods)
    ]
    return Ranks(panels, tuple(sorted(ranks, key=lambda r: (r.mean, r.method))), left_out, level)


def _values(best: Best) -> FloatArray:
    """[seeds] what is forgotten, larger is better; empty without a setting."""
    rows = () if best.setting is None else best.setting.rows
    return np.array(
        [row.headline.forgotten.oriented(v) for row in rows if (v := row.forgotten) is not None]
    )


def _interval(
    cells: Sequence[Sequence[FloatArray]], level: float
) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """[k] lower and upper ends of the mean ranks; None if there is nothing to resample."""
    if len(cells) < 2 and all(len(values) < 2 for row in cells for values in row):
        return None, None
    rng = np.random.default_rng(0)
    by_panel = np.stack([_drawn_places(row, rng) for row in cells])  # [panels, RESAMPLES, k]
    picks = rng.integers(0, len(cells), (len(cells), RESAMPLES))
    means = by_panel[picks, np.arange(RESAMPLES)].mean(axis=0)  # [RESAMPLES, k]
    low, high = np.quantile(
        means, [(1 - level) / 2, (1 + level) / 2], axis=0, method="inverted_cdf"
    )
    return low, high


def _drawn_places(row: Sequence[FloatArray], rng: np.random.Generator) -> FloatArray:
    """[RESAMPLES, k] ranks on one panel, with seeds drawn with replacement."""
    drawn = [
        values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
        if len(values)
        else np.full(RESAMPLES, -np.inf)
        for values in row
    ]
    return _places(np.stack(drawn, axis=1))
