"""Which of two methods is better, for every pair of methods of a panel.

The evaluations of the compared settings are read from disk.

A pair is compared as by `unlearnbench compare`: at equal utility, and with a correction for the
number of settings that a method was chosen from. In a table of pairs, the methods are in the order
of the headline. The tests of a method against all methods behind it are one family, whose p-values
are adjusted (Holm). The leading method's family is that of `order_confidence.rivals`, so that the
table and the sentences say the same.

One seed shows what these runs answer to other questions, and not what other seeds would give. That
is why nothing is claimed better if one of the two has fewer than `ENOUGH_SEEDS` seeds, as no such
setting has a place (`setting_order.shared_places`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.compare import TOLERANCE, PanelComparison, compare_match, match
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.method_order import Rivals
from unlearnbench.analysis.order_confidence import contenders_of, swaps_for
from unlearnbench.analysis.settings import OnPanel
from unlearnbench.analysis.wording import counted
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.results.records import Record
from unlearnbench.stats.paired_test import holm
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

MOST_METHODS = 16
"""Most methods that are compared with each other: 120 tests take half a minute of one core for 400
questions, and a larger table cannot be read."""


class Verdict(Enum):
    """How a method compares with another one."""

    BETTER = "better"
    """It forgets more at equal utility, beyond chance."""
    WORSE = "worse"
    """The other one does."""
    UNDECIDED = "undecided"
    """They were compared, and the difference may be chance."""
    INCOMPARABLE = "not comparable"
    """They have no settings of equal utility, or no evaluations that compare."""

    @property
    def mirrored(self) -> Verdict:
        """The verdict on the other method of the pair."""
        other = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
        return other.get(self, self)


@dataclass(frozen=True)
class Pair:
    """A method compared with another one."""

    verdict: Verdict
    reason: str
    """The numbers that the verdict follows from, or why there is no verdict."""


@dataclass(frozen=True)
class PairTable(OnPanel):
    """All pairs of methods of one model and split, as far as the methods keep their utility."""

    methods: tuple[Best, ...]
    """The best methods by the headline, the best one first; at most `MOST_METHODS`."""
    pairs: Mapping[tuple[str, str], Pair]
    """The verdict on the first of two different methods, by the names of both."""
    left_out: int = 0
    """Number of other methods that keep their utility. They come after `methods`."""
    of_leader: Mapping[str, Pair] = field(default_factory=dict[str, Pair])
    """The verdicts on the best method, by the name of the other method. Methods that are left out
    of `pairs` are included."""

    def count(self, verdict: Verdict) -> int:
        """Count the pairs with a verdict, each once; better and worse are the same."""
        verdicts = [pair.verdict for pair in self.pairs.values()]
        if verdict in (Verdict.BETTER, Verdict.WORSE):
            return verdicts.count(verdict)
        return verdicts.count(verdict) // 2


def pair_table(panel: Panel, records: Iterable[Record], rivals: Rivals | None) -> PairTable:
    """Compare every two methods of a panel.

    Args:
        panel: Model and split, from a start model without a fault.
        records: Of the sweep.
        rivals: Tests of the leading method, whose claims are repeated.
    """
    ranked = tuple(best for best in panel.best if best.ranked is not None)
    methods = ranked[:MOST_METHODS]
    sides = contenders_of(panel, records)
    swaps = swaps_for(len(ranked))
    pairs: dict[tuple[str, str], Pair] = {}
    of_leader: dict[str, Pair] = {}
    for number, side in enumerate(sides[:MOST_METHODS]):
        is_leader = number == 0
        # The page says of every method how the first one compares with it, so the leading method is
        # compared with methods beyond `MOST_METHODS`, too.
        last = None if is_leader else MOST_METHODS
        behind = sides[number + 1 : last]
        for other, pair in zip(behind, _family(side, behind, panel, swaps), strict=True):
            if is_leader and rivals is not None:
                pair = _as_rivals(pair, other.name, rivals)
            if is_leader:
                of_leader[other.name] = pair
            pairs[side.name, other.name] = pair
            pairs[other.name, side.name] = replace(pair, verdict=pair.verdict.mirrored)
    shown = {best.name for best in methods}
    return PairTable(
        *panel.panel,
        methods=methods,
        pairs={names: pair for names, pair in pairs.items() if shown.issuperset(names)},
        left_out=len(ranked) - len(methods),
        of_leader=of_leader,
    )


def _family(side: Contender, others: Sequence[Contender], panel: Panel, swaps: int) -> list[Pair]:
    """Compare a method with each of several others, with p-values that are adjusted (Holm)."""
    compared = [_compared(side, other, panel, swaps) for other in others]
    p_values = [
        comparison.test.p_value
        for comparison in compared
        if isinstance(comparison, PanelComparison) and comparison.test is not None
    ]
    adjusted = iter(holm(p_values))
    pairs: list[Pair] = []
    for comparison in compared:
        if isinstance(comparison, Pair):
            pairs.append(comparison)
        elif comparison.test is None:
            pairs.append(_judged(comparison))
        else:
            pairs.append(_judged(replace(comparison, p_adjusted=next(adjusted))))
    return pairs


def _compared(
    side: Contender, other: Contender, panel: Panel, swaps: int
) -> PanelComparison | Pair:
    """Compare two methods.

    Returns:
        The finished pair if they are not comparable.
    """
    try:
        matched = match(side, other, panel.panel, TOLERANCE)
        compared = compare_match(side, other, panel.panel, matched, TOLERANCE, swaps=swaps)
    except (EvaluationError, RecordError) as error:
        return Pair(Verdict.INCOMPARABLE, str(error))
    if compared.a is None or compared.b is None or compared.why_not:
        return Pair(Verdict.INCOMPARABLE, compared.why_not)
    return compared


def _judged(compared: PanelComparison) -> Pair:
    """Judge two settings that were compared."""
    a, b = compared.a, compared.b
    if a is None or b is None:
        return Pair(Verdict.INCOMPARABLE, compared.why_not)
    kept = compared.headline.kept
    utilities = f"{kept.plain_label} {kept.text(a.utility)} and {kept.text(b.utility)}"
    seed_count = min(len(a.seeds), len(b.seeds))
    if seed_count < ENOUGH_SEEDS:
        known = f"with {counted(seed_count, 'seed')} it is not known what others would give"
        return Pair(Verdict.UNDECIDED, f"{utilities}: {known}")
    ends = compared.test or compared.over_seeds
    if ends is None:
        return Pair(Verdict.UNDECIDED, f"{utilities}: there is no interval of the difference")
    forgotten = compared.headline.forgotten
    number = "D" if compared.test else forgotten.name
    digits = 3 if compared.test else forgotten.digits
    low = f"{ends.low:.{digits}f}"
    high = f"{ends.high:.{digits}f}"
    reason = f"{utilities}; difference of {number} between {low} and {high}"
    if compared.p_adjusted is not None:
        reason += f", p = {compared.p_adjusted:.2g}"
    verdict = Verdict.UNDECIDED
    if compared.better is not None:
        verdict = Verdict.BETTER if compared.better is a else Verdict.WORSE
    return Pair(verdict, reason)


def _as_rivals(pair: Pair, name: str, rivals: Rivals) -> Pair:
    """Return the leading method's pair so that it claims no more than the sentences on the order.

    The sentences test only whether the leader is better, with p-values that are adjusted for all
    methods of the panel. A verdict that the other method is better, at equal utility, is left as it
    is, because the sentences do not speak of it.

    Args:
        pair: Verdict on the leading method.
        name: Name of the other method.
        rivals: Tests of the leading method, from which the sentences are made.
    """
    claims_better = pair.verdict is Verdict.BETTER
    if claims_better and name not in rivals.apart:
        return replace(pair, verdict=Verdict.UNDECIDED)
    return pair
