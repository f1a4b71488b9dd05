"""Order of the methods on each panel, where it is in doubt, and tests of the leading one.

Pure, except that the evaluations of the compared settings are read from disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from unlearnbench.analysis import text
from unlearnbench.analysis.across import Standing, standings
from unlearnbench.analysis.best_settings import (
    Best,
    OnPanel,
    Panel,
    Setting,
    average_seeds,
    merit_of,
)
from unlearnbench.analysis.compare import (
    TOLERANCE,
    Contender,
    Match,
    NoMatch,
    PanelComparison,
    compare_match,
    match,
    training_differences,
)
from unlearnbench.analysis.over_questions import sensitivity_of_test
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import holm
from unlearnbench.stats.pareto_front import hypervolume
from unlearnbench.stats.t_interval import ENOUGH_SEEDS


@dataclass(frozen=True)
class RankedMethod:
    """One method on one panel."""

    method: str
    """Label without hyper-parameters; the entry's name if several entries have choices."""
    best: Setting | None
    """None if no setting keeps its utility."""
    place: int | None
    """Place of the best setting, as `shared_places` has it; None without one, and for a setting of
    too few seeds."""
    hypervolume: float | None
    """Hypervolume of its settings and epochs above the start model's corner; None without one. If
    `select` or `tune` has chosen a setting, of the epochs of its runs on the other seeds."""
    why_not: str = ""
    """Why there is no best setting."""
    lost: str = ""
    """As in `Best`."""
    chosen_on: tuple[int, ...] = ()
    """Seeds that the setting was chosen on; empty if it is the best by the page's rule."""

    @property
    def forgotten(self) -> float | None:
        """The headline's number of the best setting, by which methods are ordered."""
        return None if self.best is None else self.best.forgotten

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
    ranks: tuple[Standing, ...]
    """Over the panels; methods that lack one stand at the end."""

    @property
    def summary(self) -> str:
        """Sentences on the data behind the ranks."""
        return text.ranks_summary(self)


def assess_order(panels: Sequence[Panel], records: Iterable[Record]) -> OrderConfidence:
    """Order the methods on each panel, with tests of the leading one.

    Reads from disk the evaluations of the retain models, of each method's best setting, and of the
    leading method's other settings that were about as good.
    """
    by_id = {record.id: record for record in records}
    with_runs = [panel for panel in panels if panel.best]
    orders = tuple(_order(panel, by_id) for panel in with_runs)
    return OrderConfidence(orders, standings({panel.place: panel.best for panel in with_runs}))


def _order(panel: Panel, records: Mapping[str, Record]) -> PanelOrder:
    corner = panel.start.corner
    methods = tuple(
        RankedMethod(
            best.name,
            best.ranked,
            place,
            None if corner is None else hypervolume(_points(panel, best), corner),
            best.why_not,
            best.lost,
            () if best.choice is None else best.choice.chosen_on,
        )
        for best, place in zip(panel.best, panel.places, strict=True)
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


def _points(panel: Panel, best: Best) -> list[tuple[float, float]]:
    """(kept, forgotten) of all settings and epochs of a method, larger is better in both."""
    choice = best.choice
    if choice is None:
        settings = [item for item in panel.judged if item.family == best.family]
    else:
        rows = (row for row in panel.rows if row.run_id in choice.runs)
        ends = (end for end in panel.ends if end.run_id in choice.runs)
        settings = [*average_seeds(rows, ends)]
    merits = [merit_of(setting) for setting in settings]
    return [(merit[1], merit[0]) for merit in merits if merit is not None]


def _sensitivity(panel: Panel, records: Iterable[Record]) -> Sensitivity | None:
    """Sensitivity by the retain model's truth ratios, or else by their number."""
    if panel.headline.forgotten.test is None:
        return None
    retains = (r for r in records if r.kind == "retain" and r.panel == panel.panel)
    # The last one: one that was evaluated under an attack alone has no plain evaluation.
    retain = next((r for r in retains if r.evaluations), None)
    if retain is not None:
        evaluation = retain.evaluations[min(retain.evaluations)]
        sensitivity = sensitivity_of_test(panel.headline, evaluation)
        if sensitivity is not None:
            return sensitivity
    return None if panel.questions is None else ks_power(panel.questions)


SWAPS = 999
"""Swaps drawn per test; more if the adjustment for many tests needs a smaller least p."""


def _rows_of(panel: Panel, best: Best) -> tuple[TableRow, ...]:
    """List the rows of a method: for a best setting by the page's rule, only what it judges."""
    rows = (row for row in panel.rows if row.family == best.family)
    if best.choice is not None:
        return tuple(rows)
    return tuple(row for row in rows if row.run_id not in panel.choosing_runs)


class Untested(Enum):
    """Why the leading method was not tested against another one."""

    NO_EQUAL_UTILITY = "no equal utility"
    """The other one has more utility than any setting of the leading method, and forgets less."""
    FEW_SEEDS = "few seeds"
    """The headline has no test, and the two have fewer than three seeds in common."""
    UNREADABLE = "unreadable"
    """Evaluations cannot be read, or do not compare."""


@dataclass(frozen=True)
class Rivals:
    """The leading method of a panel and its tests against the others; methods by their family."""

    leader: str
    """Method, or entry, whose best setting has forgotten most, by the headline."""
    same: tuple[str, ...]
    """Methods than which it does not forget significantly more; ordered by the headline, as all."""
    apart: tuple[str, ...]
    """Methods that forget significantly less, Holm-adjusted over all tests."""
    untested: Mapping[str, str]
    """Reasons by method without a test: no equal utility, or unreadable evaluations."""
    runner_up: str
    """The first of the other methods by the headline; empty without one."""
    kinds: Mapping[str, Untested] = field(default_factory=dict[str, Untested])
    """The reasons of `untested` as values."""
    few_seeds: frozenset[str] = frozenset()
    """Methods that were compared on fewer than three seeds. Their test is over questions, so
    nothing is known of other seeds, and nothing is claimed even if they are in `apart`."""


def contenders_of(panel: Panel, records: Iterable[Record]) -> list[Contender]:
    """List the methods of a panel that keep their utility as sides of comparisons, best first."""
    current = {record.id: record for record in records if record.panel == panel.panel}
    # One for all methods, so that each evaluation is read once.
    whole = Contender("", panel.rows, panel.rows, current, ends=panel.ends)
    return [
        replace(
            whole,
            name=best.name,
            rows=_rows_of(panel, best),
            chosen={} if best.choice is None else {panel.panel: (best,)},
        )
        for best in panel.best
        if best.ranked is not None
    ]


def swaps_for(method_count: int) -> int:
    """Number of swaps with which p-values of so many methods can be significant if adjusted."""
    return max(SWAPS, round(2 * method_count / SIGNIFICANCE))


def rivals(panel: Panel, records: Iterable[Record]) -> Rivals | None:
    """The leading method of a panel and its rivals; None if no setting keeps its utility.

    The leader is tested against each other method as in `compare`: at equal utility, and adjusted
    for the number of its own settings; where the headline has no test, over seeds.
    """
    contenders = contenders_of(panel, records)
    if not contenders:
        return None
    leader, *others = contenders
    swaps = swaps_for(len(contenders))
    tested: dict[str, PanelComparison] = {}
    untested: dict[str, str] = {}
    kinds: dict[str, Untested] = {}
    for other in others:
        try:
            result = match(leader, other, panel.panel, TOLERANCE)
            compared = compare_match(
                leader, other, panel.panel, result, TOLERANCE, only_a=True, swaps=swaps
            )
        except (EvaluationError, RecordError) as error:  # which cannot be read, or do not compare
            untested[other.name] = str(error)
            kinds[other.name] = Untested.UNREADABLE
            continue
        if compared.test is None and (compared.over_seeds is None or compared.over_seeds.is_range):
            reason = compared.why_not or "they have fewer than three seeds in common"
            untested[other.name] = reason
            kinds[other.name] = _kind_of(result, compared)
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
        kinds=kinds,
        few_seeds=frozenset(name for name, item in tested.items() if _has_few_seeds(item)),
    )


def _has_few_seeds(compared: PanelComparison) -> bool:
    """Whether one of two compared settings has fewer than three seeds."""
    sides = [side for side in (compared.a, compared.b) if side is not None]
    return any(len(side.seeds) < ENOUGH_SEEDS for side in sides)


def _kind_of(result: Match | NoMatch, compared: PanelComparison) -> Untested:
    """Return why two methods without a test were not tested."""
    if isinstance(result, NoMatch) and result.lacks_equal_utility:
        return Untested.NO_EQUAL_UTILITY
    return Untested.UNREADABLE if compared.why_not else Untested.FEW_SEEDS
