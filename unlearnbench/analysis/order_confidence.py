"""Order of the methods on each panel, where it is in doubt, and tests of the leading one.

Pure, except that the evaluations of the compared settings are read from disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from unlearnbench.analysis import text
from unlearnbench.analysis.best_settings import (
    Best,
    OnPanel,
    Panel,
    PanelKey,
    Setting,
    merit_of,
    panel_order,
    shared_places,
)
from unlearnbench.analysis.compare import (
    TOLERANCE,
    Contender,
    PanelComparison,
    compare_match,
    match,
    training_differences,
)
from unlearnbench.api.observations import FloatArray
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.results.records import Record
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import holm
from unlearnbench.stats.pareto_front import hypervolume
from unlearnbench.stats.t_interval import LEVEL, Interval


@dataclass(frozen=True)
class RankedMethod:
    """One method on one panel."""

    method: str
    """Label without hyper-parameters."""
    best: Setting | None
    """None if no setting keeps its utility."""
    place: int | None
    """Place of the best setting, as `shared_places` has it."""
    hypervolume: float | None
    """Hypervolume of its settings and epochs above the start model's corner; None without one."""

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
    sensitivity: Sensitivity | None
    """None where no test is behind the headline, or none has a number."""
    rivals: Rivals | None
    """Tests of the leading method against the others; None without one, or without a test."""
    unequal: tuple[str, ...]
    """Clauses on differences in training between the methods."""

    @property
    def leader(self) -> RankedMethod | None:
        """The first method; None if no setting keeps its utility."""
        return next((method for method in self.methods if method.best is not None), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences on how sure the order is."""
        return text.order_sentences(self)


@dataclass(frozen=True)
class OrderConfidence:
    """Order of the methods of a sweep: on each panel, and by mean rank."""

    panels: tuple[PanelOrder, ...]
    ranks: Ranks


def assess_order(panels: Sequence[Panel], records: Iterable[Record]) -> OrderConfidence:
    """Order the methods on each panel, with tests of the leading one.

    Reads from disk the evaluations of the retain models, of each method's best setting, and of the
    leading method's other settings that were about as good.
    """
    by_id = {record.id: record for record in records}
    orders = tuple(_order(panel, by_id) for panel in panels if panel.best)
    return OrderConfidence(orders, rank_methods([best for panel in panels for best in panel.best]))


def _order(panel: Panel, records: Mapping[str, Record]) -> PanelOrder:
    places = iter(shared_places([item.setting for item in panel.best if item.setting]))
    corner = panel.start.corner
    methods = tuple(
        RankedMethod(
            best.family,
            best.setting,
            next(places) if best.setting else None,
            None if corner is None else hypervolume(_points(panel.settings, best.family), corner),
        )
        for best in panel.best
    )
    compared = {
        method.method: records[method.best.rows[0].run_id] for method in methods if method.best
    }
    return PanelOrder(
        *panel.panel,
        methods=methods,
        sensitivity=_sensitivity(panel, records.values()),
        rivals=rivals(panel, records.values()),
        unequal=training_differences(compared),
    )


def _points(settings: Iterable[Setting], family: str) -> list[tuple[float, float]]:
    """(kept, forgotten) of all settings and epochs of a method, larger is better in both."""
    merits = [merit_of(setting) for setting in settings if setting.family == family]
    return [(merit[1], merit[0]) for merit in merits if merit is not None]


def _sensitivity(panel: Panel, records: Iterable[Record]) -> Sensitivity | None:
    """Sensitivity by the retain model's truth ratios, or else by their number."""
    if panel.headline.forgotten.test is None:
        return None
    retains = (r for r in records if r.kind == "retain" and r.panel == panel.panel)
    # The last one: one that was evaluated under an attack alone has no plain evaluation.
    if (retain := next((r for r in retains if r.evaluations), None)) is not None:
        # A profile of another version has ratios that cannot be computed.
        with suppress(EvaluationError):
            return ks_power(forget_ratios(retain.evaluations[min(retain.evaluations)]))
    questions = _questions(panel)
    return None if questions is None else ks_power(questions)


def _questions(panel: Panel) -> int | None:
    """Number of forget questions behind the headline's test; None where runs differ in it."""
    test = panel.headline.forgotten.test
    values = (row.metrics.get(test.questions) for row in panel.rows) if test else ()
    counts = {int(n) for n in values if n is not None}
    return counts.pop() if len(counts) == 1 else None


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


def rivals(panel: Panel, records: Iterable[Record]) -> Rivals | None:
    """The leading method of a panel and its rivals; None if no setting keeps its utility.

    The leader is tested against each other method as in `compare`: at equal utility, and adjusted
    for the number of its own settings; where the headline has no test, over seeds.
    """
    families = [best.family for best in panel.best if best.setting is not None]
    if not families:
        return None
    current = {record.id: record for record in records if record.panel == panel.panel}
    whole = Contender("", panel.rows, panel.rows, current)  # so that each evaluation is read once
    leader, *others = (
        replace(whole, name=name, rows=tuple(row for row in panel.rows if row.family == name))
        for name in families
    )
    swaps = max(SWAPS, round(2 * len(families) / SIGNIFICANCE))
    tested: dict[str, PanelComparison] = {}
    untested: dict[str, str] = {}
    for other in others:
        try:
            result = match(leader, other, panel.panel, TOLERANCE)
            compared = compare_match(leader, other, panel.panel, result, only_a=True, swaps=swaps)
        except (EvaluationError, RecordError) as error:  # which cannot be read, or do not compare
            untested[other.name] = str(error)
            continue
        if compared.test is None and (compared.over_seeds is None or compared.over_seeds.is_range):
            reason = compared.why_not or "they have fewer than three seeds in common"
            untested[other.name] = reason
        else:
            tested[other.name] = compared
    adjusted = holm([item.test.p_value if item.test else 0.0 for item in tested.values()])
    pairs = zip(tested.items(), adjusted, strict=True)
    apart = [name for (name, item), p in pairs if replace(item, p_adjusted=p).better is item.a]
    return Rivals(
        leader=leader.name,
        same=tuple(name for name in tested if name not in apart),
        apart=tuple(apart),
        untested=untested,
        runner_up=others[0].name if others else "",
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

    panels: tuple[PanelKey, ...]
    ranks: tuple[Rank, ...]
    left_out: tuple[str, ...]
    """Methods that did not run on every panel, whose ranks are not comparable."""
    level: float = LEVEL

    @property
    def summary(self) -> str:
        """Sentences on the data behind the ranks."""
        return text.ranks_summary(self)


def mid_ranks(values: FloatArray) -> FloatArray:
    """[..., k] ranks from 1 for the largest of [..., k]; equal ones share the mean of theirs."""
    from scipy.stats import rankdata  # takes a second to import

    places: FloatArray = rankdata(-values, axis=-1)
    return places


def rank_methods(best: Sequence[Best], level: float = LEVEL) -> Ranks:
    """Rank the methods by what their best settings (`best_per_method`) have forgotten.

    The interval resamples panels, and in each panel the seeds of every setting, if there are
    several (percentiles of 2,000 resamples with a fixed seed; Efron 1979, Ann. Statist. 7, 1-26).
    The settings are fixed, so that it does not include the uncertainty of choosing them. Own code:
    `scipy.stats.bootstrap` has no nested resampling.
    """
    by_panel: dict[PanelKey, dict[str, Best]] = defaultdict(dict)
    for item in best:
        by_panel[item.panel][item.family] = item
    panels = tuple(sorted(by_panel, key=panel_order))
    everyone = sorted({item.family for item in best})
    methods = [m for m in everyone if all(m in by_panel[panel] for panel in panels)]
    left_out = tuple(m for m in everyone if m not in methods)
    if not methods:
        return Ranks(panels, (), left_out, level)
    cells = [[_values(by_panel[panel][m]) for m in methods] for panel in panels]
    places = mid_ranks(
        np.array([[np.mean(v) if len(v) else -np.inf for v in row] for row in cells])
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
    return mid_ranks(np.stack(drawn, axis=1))
