"""Whether A forgets more than B at equal utility, wherever both ran. Pure but for the records,
which read the evaluations of the compared epochs from disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.metrics import first_difference, forget_ratios
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.result import Evaluation, FloatArray
from unlearnbench.matching import (
    TOLERANCE,
    Contender,
    Match,
    Side,
    match,
    paired_rows,
    rows_of,
    side_of,
)
from unlearnbench.paired import Paired, holm, paired_test
from unlearnbench.power import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.starts import start_of
from unlearnbench.table import Row
from unlearnbench.unequal import unequal


@dataclass(frozen=True)
class PanelComparison:
    """A and B on one model and forget fraction."""

    model: str
    forget_fraction: float
    why_not: str = ""
    """Why nothing was compared; everything below is None then."""
    a: Side | None = None
    b: Side | None = None
    equal_utility: bool = False
    """False: one keeps more, and forgets more or as much."""
    test: Paired | None = None
    p_adjusted: float | None = None
    """By Holm, over the panels."""
    sensitivity: Sensitivity | None = None
    unequal: tuple[str, ...] = ()
    """Settings, other than those that are compared, in which the two differ."""

    @property
    def better(self) -> Side | None:
        """The side that forgets more beyond chance, and does not pay for it with utility.

        Beyond chance: p at most 0.05, and an interval without 0. Both are asked for: the test
        alone also rejects where two models at one distance answer differently.
        """
        if self.test is None or self.a is None or self.b is None:
            return None
        if self.p_adjusted is None or self.p_adjusted > SIGNIFICANCE:
            return None
        if self.test.low <= 0 <= self.test.high:
            return None
        better, worse = (self.a, self.b) if self.test.high < 0 else (self.b, self.a)
        return better if self.equal_utility or better.utility >= worse.utility else None


@dataclass(frozen=True)
class Comparison:
    """A and B wherever both ran."""

    a: str
    b: str
    tolerance: float
    panels: tuple[PanelComparison, ...]
    only_one: tuple[str, ...]
    """Panels on which one of them did not run, in words."""


def compare(a: Contender, b: Contender, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two contenders on every model and fraction that both ran on.

    Raises: EvaluationError where their numbers do not compare (no panel in common, other profiles,
    other questions, other retain models), with the reason.
    """
    if a.rows == b.rows:
        raise EvaluationError(f"{a.name} and {b.name} are the same runs: name two that differ")
    _check_profiles(a, b)
    at_a, at_b = ({(r.model, r.forget_fraction) for r in one.rows} for one in (a, b))
    if not at_a & at_b:
        raise EvaluationError(
            f"{a.name} and {b.name} have no model and forget fraction in common: {a.name} ran on "
            f"{_places(at_a)}, {b.name} on {_places(at_b)}"
        )
    found = [_panel(a, b, *place, tolerance) for place in sorted(at_a & at_b)]
    tested = [i for i, one in enumerate(found) if one.test is not None]
    adjusted = holm([one.test.p_value for one in found if one.test is not None])
    for i, p_value in zip(tested, adjusted, strict=True):
        found[i] = replace(found[i], p_adjusted=p_value)
    alone = [
        f"only {one.name} ran on {_places(places)}"
        for one, places in ((a, at_a - at_b), (b, at_b - at_a))
        if places
    ]
    return Comparison(a.name, b.name, tolerance, tuple(found), tuple(alone))


def _places(places: set[tuple[str, float]]) -> str:
    return "; ".join(f"{model}, forget {100 * part:g} %" for model, part in sorted(places))


def _check_profiles(a: Contender, b: Contender) -> None:
    first, second = ({one.records[r.run_id].profile for r in one.rows} for one in (a, b))
    if len(first | second) > 1:
        raise EvaluationError(
            f"{a.name} was evaluated by profile {', '.join(sorted(first))}, {b.name} by "
            f"{', '.join(sorted(second))}: numbers of different profiles do not compare; evaluate "
            "both by the same one"
        )


def _panel(
    a: Contender, b: Contender, model: str, fraction: float, tolerance: float
) -> PanelComparison:
    if fault := start_of(a.sweep, model, fraction).fault:
        return PanelComparison(model, fraction, why_not=fault[0].upper() + fault[1:])
    return compare_match(a, b, (model, fraction), match(a, b, (model, fraction), tolerance))


def compare_match(
    a: Contender,
    b: Contender,
    place: tuple[str, float],
    found: Match,
    *,
    only_a: bool = False,
    swaps: int | None = None,
) -> PanelComparison:
    """Compare what was matched, on one model and fraction.

    only_a  asks for nothing but whether A is better: what B was chosen from, which has no part in
            that, is not read, nor what Forget Quality by itself could tell
    swaps   as in `paired_test`
    Raises: EvaluationError as `compare`.
    """
    model, fraction = place
    if found.a is None or found.b is None:
        return PanelComparison(model, fraction, why_not=found.why_not)
    rows_a, rows_b = paired_rows(found.a, found.b)
    if rows_a == rows_b:
        return PanelComparison(model, fraction, why_not="The best setting of both is the same one")
    retain = a.retain(model, fraction)
    goal = forget_ratios(retain)
    of_a, of_b = _ratios(a, rows_a, retain), _ratios(b, rows_b, retain)
    _check_retain(goal, forget_ratios(b.retain(model, fraction)), a, b)
    pool_a, pool_b = a.pool(found.a), b.pool(found.b)
    test = paired_test(
        of_a,
        of_b,
        goal,
        others_a=[_ratios(a, rows_of(one, rows_a), retain) for one in pool_a.rivals],
        others_b=[_ratios(b, rows_of(one, rows_b), retain) for one in pool_b.rivals if not only_a],
        swaps=swaps,
    )
    return PanelComparison(
        model,
        fraction,
        why_not="" if test else "One of the truth ratios is not a number",
        a=side_of(a.name, rows_a, pool_a),
        b=side_of(b.name, rows_b, pool_b),
        equal_utility=found.equal_utility,
        test=test,
        sensitivity=None if only_a else ks_power(goal),
        unequal=unequal(
            {
                a.name: a.records[rows_a[0].run_id],
                b.name: b.records[rows_b[0].run_id],
            }
        ),
    )


def _ratios(side: Contender, rows: Sequence[Row], retain: Evaluation) -> FloatArray:
    """[s, n] truth ratios of the runs' epochs, at the questions that the retain model has."""
    found: list[FloatArray] = []
    asked = retain.sets["forget"].questions
    for row in rows:
        evaluations = side.records[row.run_id].evaluations
        if row.epoch not in evaluations:
            raise EvaluationError(
                f"{side.name}: record {row.run_id} has no answers of epoch {row.epoch}, which the "
                "comparison needs; start its sweep again"
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
        i = first_difference(questions, asked)
        if len(questions) != len(asked) or i is not None:
            what = (
                f"{len(questions)} forget questions, the retain model {len(asked)}"
                if i is None
                else f"as forget question {i} {questions[i][:60]!r}, the retain model "
                f"{asked[i][:60]!r}"
            )
            raise EvaluationError(
                f"{side.name}: record {row.run_id} has {what}: only answers to the same questions "
                "compare; run both on the same forget split"
            )
        found.append(forget_ratios(evaluation))
    return np.stack(found)


def _check_retain(first: FloatArray, second: FloatArray, a: Contender, b: Contender) -> None:
    """Of two sweeps; one model that was evaluated twice may differ in its last digits."""
    if first.shape != second.shape or not np.allclose(first, second, rtol=1e-3, equal_nan=True):
        raise EvaluationError(
            f"{a.name} and {b.name} are measured from different retain models: their distances do "
            "not compare; run both with the same models, as one sweep or with the same cache"
        )
