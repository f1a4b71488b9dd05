"""Comparison of two methods: does A forget more than B at equal utility, wherever both ran?

With the differences in training that make it unfair, and a sweep under one attack in the form of a
plain one, which `compare --under` compares: what a run keeps is that of its plain evaluation,
because methods are compared as they would be published.

Pure, except that records read the evaluations of the compared epochs from disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearnbench.analysis.best_settings import (
    OnPanel,
    PanelKey,
    headline_of_rows,
    panel_label,
    panel_order,
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
from unlearnbench.api.benchmark import Headline
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError, RecordError, did_you_mean
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.summary import first_difference, forget_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import PairedTest, holm, paired_test
from unlearnbench.stats.t_interval import Interval, t_interval

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results


@dataclass(frozen=True)
class PanelComparison(OnPanel):
    """A and B on one model and split."""

    headline: Headline
    """Headline of the benchmark."""
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
        result = self.over_seeds
        if result is None or result.is_range or result.low <= 0 <= result.high:
            return None
        return self.headline.forgotten.oriented(result.mean) > 0


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
    _check_rules(a, b)
    at_a, at_b = ({*item.panels} for item in (a, b))
    if not at_a & at_b:
        raise EvaluationError(
            f"{a.name} and {b.name} have no model and split in common: "
            f"{a.name} ran on {_places(at_a)}, {b.name} on {_places(at_b)}"
        )
    result = [_panel(a, b, key, tolerance) for key in sorted(at_a & at_b, key=panel_order)]
    tested = [i for i, item in enumerate(result) if item.test is not None]
    adjusted = holm([item.test.p_value for item in result if item.test is not None])
    for i, p_value in zip(tested, adjusted, strict=True):
        result[i] = replace(result[i], p_adjusted=p_value)
    alone = [
        f"only {item.name} ran on {_places(places)}"
        for item, places in ((a, at_a - at_b), (b, at_b - at_a))
        if places
    ]
    headline = headline_of_rows(a.rows)
    return Comparison(a.name, b.name, tolerance, headline, tuple(result), tuple(alone))


def _places(places: set[PanelKey]) -> str:
    return "; ".join(panel_label(*location) for location in sorted(places, key=panel_order))


def _check_rules(a: Contender, b: Contender) -> None:
    """Raise unless both sides were evaluated by one profile in one precision."""
    first, second = ([item.records[r.run_id] for r in item.rows] for item in (a, b))
    profiles = [sorted({record.profile for record in some}) for some in (first, second)]
    if profiles[0] != profiles[1]:
        raise EvaluationError(
            f"{a.name} was evaluated by profile {', '.join(profiles[0])}, {b.name} by "
            f"{', '.join(profiles[1])}: numbers of different profiles do not compare; evaluate "
            "both by the same one"
        )
    for item in first:
        for other in second:
            if item.panel == other.panel:
                check_precision(a.name, item.precision, b.name, other.precision)


def _panel(a: Contender, b: Contender, key: PanelKey, tolerance: float) -> PanelComparison:
    start = a.start(key)
    if fault := start.fault:
        return PanelComparison(*key, start.headline, why_not=fault[0].upper() + fault[1:])
    return compare_match(a, b, key, match(a, b, key, tolerance))


def compare_match(
    a: Contender,
    b: Contender,
    key: PanelKey,
    result: Match | str,
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
    headline = headline_of_rows(a.rows)
    if isinstance(result, str):
        return PanelComparison(*key, headline, why_not=result)
    setting_a, setting_b, equal_utility = result
    rows_a, rows_b = paired_rows(setting_a, setting_b)
    if rows_a == rows_b:
        why_not = "The best setting of both is the same one"
        return PanelComparison(*key, headline, why_not=why_not)
    pool_a, pool_b = a.pool(setting_a), b.pool(setting_b)
    compared = PanelComparison(
        *key,
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
        numbers = [(item.forgotten or 0.0) - (other.forgotten or 0.0) for item, other in pairs]
        return replace(compared, over_seeds=t_interval(numbers))
    retain = a.retain(key)
    goal = forget_ratios(retain)
    of_a, of_b = _ratios(a, rows_a, retain), _ratios(b, rows_b, retain)
    _check_retain(goal, forget_ratios(b.retain(key)), a, b)
    test = paired_test(
        of_a,
        of_b,
        goal,
        others_a=[_ratios(a, rows_of(rival, rows_a), retain) for rival in pool_a.rivals],
        others_b=[
            _ratios(b, rows_of(rival, rows_b), retain) for rival in pool_b.rivals if not only_a
        ],
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
    arraies: list[FloatArray] = []
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
        if len(questions) != len(expected) or first_difference(questions, expected) is not None:
            raise EvaluationError(
                f"{side.name}: record {row.run_id} has {len(questions)} forget questions, not the "
                f"retain model's {len(expected)}: only answers to the same questions compare; run "
                "both on the same forget split"
            )
        arraies.append(forget_ratios(evaluation))
    return np.stack(arraies)


def _check_retain(first: FloatArray, second: FloatArray, a: Contender, b: Contender) -> None:
    """Raise unless both sweeps have the same retain model, up to rounding of its evaluation."""
    if first.shape != second.shape or not np.allclose(first, second, rtol=1e-3, equal_nan=True):
        raise EvaluationError(
            f"{a.name} and {b.name} are measured from different retain models: their distances do "
            "not compare; run both with the same models, as one sweep or with the same cache"
        )


def under_attack(results: Results, name: str, location: str) -> tuple[str, Results]:
    """The variant of a name, and results with the runs as they are under it.

    What a run keeps stays that of its plain evaluation. Evaluations are read when they are used.

    name   a variant, or an attack with one variant alone
    location  of the results, in messages
    Raises: RecordError that lists the variants there are.
    """
    variant = _find_variant(name, results.attacked, location)
    plain = {(row.run_id, row.epoch): row for row in results.rows if row.kind == "run"}
    rows = [row for row in results.rows if row.kind != "run"]
    for row in results.attacked:
        part = plain.get((row.run_id, row.epoch))
        if row.variant == variant and part is not None:
            kept = {row.headline.kept.column: part.kept}
            rows.append(replace(part, metrics={**row.metrics, **kept}))
    records: list[Record] = []
    for record in results.records:
        stored = record.attacked_evaluations
        keys = {epoch: (epoch, at) for epoch, at in stored if at == variant}
        records.append(replace(record, evaluations=LazyEvaluations(stored, keys)))
    return variant, replace(results, rows=tuple(rows), records=tuple(records))


def _find_variant(name: str, attacked: Sequence[TableRow], location: str) -> str:
    variants = tuple(dict.fromkeys(row.variant for row in attacked))
    if not variants:
        raise RecordError(
            f"{location}: no run was attacked; name attacks in its configuration (`attacks:`), and "
            "start the sweep again"
        )
    points = [variant for variant in variants if name in (variant, variant.partition("@")[0])]
    if len(points) == 1 or name in points:
        return name if name in points else points[0]
    if points:
        raise RecordError(
            f"{location}: attack {name!r} has several points: {', '.join(points)}; name one"
        )
    raise RecordError(
        f"{location}: no run under {name!r}{did_you_mean(name, variants) or ';'} there are: "
        f"{', '.join(variants)}"
    )


class LazyEvaluations(Mapping[int, Evaluation]):
    """Evaluations of a record by epoch, each read from disk once, when it is used first."""

    def __init__(self, stored: Mapping[Any, Evaluation], keys: Mapping[int, Any]) -> None:
        self._stored, self._keys = stored, keys
        self._read: dict[int, Evaluation] = {}

    def __getitem__(self, epoch: int) -> Evaluation:
        if epoch not in self._read:
            self._read[epoch] = self._stored[self._keys[epoch]]
        return self._read[epoch]

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __contains__(self, epoch: object) -> bool:
        return epoch in self._keys  # the inherited one would read the file

    def __len__(self) -> int:
        return len(self._keys)


def training_differences(records: Mapping[str, Record]) -> tuple[str, ...]:
    """Describe the settings in which these methods differ, a clause each.

    records  a run of each method, by the name to print

    Considers hyper-parameters that at least half of the methods have, and the training settings of
    methods that train. Learning rate and epochs are chosen per method, and settings of one method
    are named by their hyper-parameters, so these are not reported.
    """
    same = len({item.method for item in records.values()}) == 1
    values: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        method: Any = record.spec.get("method") or {}
        settings = {} if same else dict(method.get("hyperparameters") or {})
        if record.learning_rate is not None:
            training: Any = record.spec.get("training") or {}
            settings |= {f"training.{key}": value for key, value in training.items()}
        for key, value in settings.items():
            text = f"{value:g}" if isinstance(value, float) else json.dumps(value)
            values.setdefault(key, {})[name] = text
    return tuple(
        _difference(setting, by_method)
        for setting, by_method in sorted(values.items())
        if len(set(by_method.values())) > 1 and 2 * len(by_method) >= len(records)
    )


def _difference(setting: str, by_method: Mapping[str, str]) -> str:
    """`x is 1 for a and 0 for b, c`; the most frequent value comes last."""
    groups: dict[str, list[str]] = {}
    for name, value in by_method.items():
        groups.setdefault(value, []).append(name)
    parts = [
        f"{value} for {', '.join(groups[value])}"
        for value in sorted(groups, key=lambda v: len(groups[v]))
    ]
    return f"{setting} is {'; '.join(parts[:-1])} and {parts[-1]}"
