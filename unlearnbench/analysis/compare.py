"""Comparison of two methods: does A forget more than B at equal utility, wherever both ran?

Pure, except that records read the evaluations of the compared epochs from disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unlearnbench.analysis.best_settings import (
    Panel,
    headline_of_rows,
    panel_label,
    panel_order,
    split_kind,
)
from unlearnbench.analysis.equal_utility import (
    TOLERANCE,
    Contender,
    Match,
    Side,
    match,
    paired_rows,
    rows_of,
    side_of,
)
from unlearnbench.analysis.start_models import start_of
from unlearnbench.analysis.training_differences import training_differences
from unlearnbench.api.benchmark import Headline, SplitKey
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.summary import first_difference, forget_ratios
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import PairedTest, holm, paired_test
from unlearnbench.stats.t_interval import Interval, t_interval


@dataclass(frozen=True)
class PanelComparison:
    """A and B on one model and split."""

    model: str
    forget_fraction: SplitKey
    headline: Headline
    """Of the benchmark."""
    why_not: str = ""
    """Reason why nothing was compared; all fields below are empty then."""
    a: Side | None = None
    b: Side | None = None
    equal_utility: bool = False
    """False if one of them keeps more utility."""
    test: PairedTest | None = None
    p_adjusted: float | None = None
    """Holm-adjusted over the panels."""
    over_seeds: Interval | None = None
    """Where the headline has no test: its number of A less that of B, over the pairs of runs."""
    sensitivity: Sensitivity | None = None
    unequal: tuple[str, ...] = ()
    """Training settings, other than the compared ones, in which the two differ."""

    @property
    def better(self) -> Side | None:
        """The side that forgets significantly more and does not pay for it with utility.

        Significantly: p at most 0.05, and an interval without 0. Both are required, because the
        test also rejects if two models at the same distance answer differently. Without a test, an
        interval over at least three seeds that does not contain 0.
        """
        if self.a is None or self.b is None:
            return None
        a_is_better = self._tested() if self.test else self._over_seeds()
        if a_is_better is None:
            return None
        better, worse = (self.a, self.b) if a_is_better else (self.b, self.a)
        return better if self.equal_utility or better.utility >= worse.utility else None

    def _tested(self) -> bool | None:
        """True if A forgets significantly more by the test, False if B does."""
        if self.test is None or self.p_adjusted is None or self.p_adjusted > SIGNIFICANCE:
            return None
        return None if self.test.low <= 0 <= self.test.high else self.test.high < 0

    def _over_seeds(self) -> bool | None:
        """True if A forgets significantly more over seeds, False if B does."""
        found = self.over_seeds
        if found is None or found.is_range or found.low <= 0 <= found.high:
            return None
        return self.headline.forgotten.oriented(found.mean) > 0


@dataclass(frozen=True)
class Comparison:
    """A and B on all panels on which both ran."""

    a: str
    b: str
    tolerance: float
    headline: Headline
    panels: tuple[PanelComparison, ...]
    only_one: tuple[str, ...]
    """Sentences on the panels on which one of them did not run."""


def compare(a: Contender, b: Contender, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two contenders on every model and split on which both ran.

    Raises: EvaluationError if their numbers do not compare: no panel in common, different
    profiles, questions or retain models.
    """
    if a.rows == b.rows:
        raise EvaluationError(f"{a.name} and {b.name} are the same runs: name two that differ")
    _check_profiles(a, b)
    at_a, at_b = ({(r.model, r.forget_fraction) for r in one.rows} for one in (a, b))
    if not at_a & at_b:
        raise EvaluationError(
            f"{a.name} and {b.name} have no model and {split_kind(at_a | at_b)} in common: "
            f"{a.name} ran on {_places(at_a)}, {b.name} on {_places(at_b)}"
        )
    found = [_panel(a, b, place, tolerance) for place in sorted(at_a & at_b, key=panel_order)]
    tested = [i for i, one in enumerate(found) if one.test is not None]
    adjusted = holm([one.test.p_value for one in found if one.test is not None])
    for i, p_value in zip(tested, adjusted, strict=True):
        found[i] = replace(found[i], p_adjusted=p_value)
    alone = [
        f"only {one.name} ran on {_places(places)}"
        for one, places in ((a, at_a - at_b), (b, at_b - at_a))
        if places
    ]
    headline = headline_of_rows(a.rows)
    return Comparison(a.name, b.name, tolerance, headline, tuple(found), tuple(alone))


def _places(places: set[Panel]) -> str:
    return "; ".join(panel_label(*place) for place in sorted(places, key=panel_order))


def _check_profiles(a: Contender, b: Contender) -> None:
    first, second = ({one.records[r.run_id].profile for r in one.rows} for one in (a, b))
    if len(first | second) > 1:
        raise EvaluationError(
            f"{a.name} was evaluated by profile {', '.join(sorted(first))}, {b.name} by "
            f"{', '.join(sorted(second))}: numbers of different profiles do not compare; evaluate "
            "both by the same one"
        )


def _panel(a: Contender, b: Contender, place: Panel, tolerance: float) -> PanelComparison:
    start = start_of(a.sweep, *place)
    if fault := start.fault:
        return PanelComparison(*place, start.headline, why_not=fault[0].upper() + fault[1:])
    return compare_match(a, b, place, match(a, b, place, tolerance))


def compare_match(
    a: Contender,
    b: Contender,
    place: Panel,
    found: Match | str,
    *,
    only_a: bool = False,
    swaps: int | None = None,
) -> PanelComparison:
    """Compare two matched settings on one panel.

    only_a  True if only «A is better» is of interest: then B's other settings, which have no part
            in that, are not read, and the sensitivity of the test is not computed
    swaps   as in `paired_test`
    Raises: EvaluationError as `compare`.
    """
    model, fraction = place
    headline = headline_of_rows(a.rows)
    if isinstance(found, str):
        return PanelComparison(model, fraction, headline, why_not=found)
    setting_a, setting_b, equal_utility = found
    rows_a, rows_b = paired_rows(setting_a, setting_b)
    if rows_a == rows_b:
        why_not = "The best setting of both is the same one"
        return PanelComparison(model, fraction, headline, why_not=why_not)
    pool_a, pool_b = a.pool(setting_a), b.pool(setting_b)
    compared = PanelComparison(
        model,
        fraction,
        headline,
        a=side_of(a.name, rows_a, pool_a),
        b=side_of(b.name, rows_b, pool_b),
        equal_utility=equal_utility,
        unequal=training_differences(
            {a.name: a.records[rows_a[0].run_id], b.name: b.records[rows_b[0].run_id]}
        ),
    )
    if headline.forgotten.test is None:
        pairs = zip(rows_a, rows_b, strict=True)
        numbers = [(one.forgotten or 0.0) - (other.forgotten or 0.0) for one, other in pairs]
        return replace(compared, over_seeds=t_interval(numbers))
    retain = a.retain(model, fraction)
    goal = forget_ratios(retain)
    of_a, of_b = _ratios(a, rows_a, retain), _ratios(b, rows_b, retain)
    _check_retain(goal, forget_ratios(b.retain(model, fraction)), a, b)
    test = paired_test(
        of_a,
        of_b,
        goal,
        others_a=[_ratios(a, rows_of(one, rows_a), retain) for one in pool_a.rivals],
        others_b=[_ratios(b, rows_of(one, rows_b), retain) for one in pool_b.rivals if not only_a],
        swaps=swaps,
    )
    return replace(
        compared,
        why_not="" if test else "One of the truth ratios is not a number",
        test=test,
        sensitivity=None if only_a else ks_power(goal),
    )


def _ratios(side: Contender, rows: Sequence[TableRow], retain: Evaluation) -> FloatArray:
    """[s, n] truth ratios of the runs' epochs on the questions of the retain model."""
    found: list[FloatArray] = []
    expected = retain.sets["forget"].questions
    for row in rows:
        evaluations = side.records[row.run_id].evaluations
        if row.epoch not in evaluations:
            raise EvaluationError(
                f"{side.name}: record {row.run_id} has no evaluation of epoch {row.epoch}, which "
                "the comparison needs; start its sweep again"
            )
        evaluation = evaluations[row.epoch]
        questions = evaluation.sets["forget"].questions
        if evaluation.profile != retain.profile:
            raise EvaluationError(
                f"{side.name}: record {row.run_id} is by profile {evaluation.profile}, the retain "
                f"model by {retain.profile}: numbers of different profiles do not compare"
            )
        check_precision(
            f"{side.name}: record {row.run_id}",
            evaluation.precision,
            "the retain model",
            retain.precision,
        )
        i = first_difference(questions, expected)
        if len(questions) != len(expected) or i is not None:
            what = (
                f"{len(questions)} forget questions, the retain model {len(expected)}"
                if i is None
                else f"as forget question {i} {questions[i][:60]!r}, the retain model "
                f"{expected[i][:60]!r}"
            )
            raise EvaluationError(
                f"{side.name}: record {row.run_id} has {what}: only answers to the same questions "
                "compare; run both on the same forget split"
            )
        found.append(forget_ratios(evaluation))
    return np.stack(found)


def _check_retain(first: FloatArray, second: FloatArray, a: Contender, b: Contender) -> None:
    """Raise unless both sweeps have the same retain model, up to rounding of its evaluation."""
    if first.shape != second.shape or not np.allclose(first, second, rtol=1e-3, equal_nan=True):
        raise EvaluationError(
            f"{a.name} and {b.name} are measured from different retain models: their distances do "
            "not compare; run both with the same models, as one sweep or with the same cache"
        )
