"""Comparison of two methods: does A forget more than B at equal utility, wherever both ran?

With its text for readers without statistics, the differences in training that make it unfair, and
a sweep under one attack in the form of a plain one, which `compare --under` compares: what a run
keeps is that of its plain evaluation, because methods are compared as they would be published; what
it has forgotten is that under the attack.

Pure, except that records read the evaluations of the compared epochs from disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    OnPanel,
    Panel,
    headline_of_rows,
    panel_label,
    panel_order,
    split_kind,
    start_of,
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
from unlearnbench.errors import EvaluationError, RecordError, did_you_mean
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.summary import first_difference, forget_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import POWER, PairedTest, holm, paired_test
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval, t_interval


@dataclass(frozen=True)
class PanelComparison(OnPanel):
    """A and B on one model and split."""

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


def overview(comparison: Comparison) -> str:
    """A sentence that counts the panels won by each side; empty for a single panel."""
    panels = comparison.panels
    if len(panels) < 2:
        return ""
    wins = [
        sum(p.better is not None and p.better.name == name for p in panels)
        for name in (comparison.a, comparison.b)
    ]
    rest = len(panels) - sum(wins)
    kind = split_kind(one.panel for one in panels)
    return (
        f"Of {len(panels)} panels (models × {kind}s), {comparison.a} forgets more on {wins[0]}, "
        f"{comparison.b} on {wins[1]}; {rest} {'is' if rest == 1 else 'are'} undecided."
    )


def verdict(panel: PanelComparison, a: str, b: str, tests: int) -> tuple[str, ...]:
    """The result of one panel: verdict, significance and caveats, a line each.

    tests  number of tested panels, over which p-values are adjusted
    """
    place, a_side, b_side = panel_label(*panel.panel), panel.a, panel.b
    lacks_test = panel.test is None and panel.headline.forgotten.test is not None
    if a_side is None or b_side is None or lacks_test:
        return (f"{place}: {a} and {b} are not compared. {panel.why_not}.",)
    how_sure = _over_seeds(panel) if panel.test is None else _significance(panel, panel.test, tests)
    return (f"{place}: {_claim(panel, a_side, b_side)}", how_sure, *_caveats(panel, a_side, b_side))


def _claim(panel: PanelComparison, a: Side, b: Side) -> str:
    """Which side forgets more, with the numbers: of the test, or of the headline without one."""
    first, second = (b, a) if panel.better is b else (a, b)
    sentence = f"{first.name} forgets more than {second.name}"
    if panel.better is None:
        sentence = f"these runs do not show whether {a.name} or {b.name} forgets more"
    test, metric = panel.test, panel.headline.forgotten
    if test is None:
        numbers = (
            f"{metric.name}: {a.name} {a.quality:.{metric.digits}f}, {b.name} "
            f"{b.quality:.{metric.digits}f}; {metric.better} is better."
        )
    else:
        of_a, of_b = test.distance_a, test.distance_b
        near, far = (of_b, of_a) if first is b else (of_a, of_b)
        numbers = (
            f"{first.name} is at D = {near:.3f}, {second.name} at {far:.3f}; D is the distance of "
            "a model's truth ratios from those of a model that never saw the forget set, 0 at best "
            "and 1 at worst."
        )
    return f"{sentence} {_condition(panel, first, second)}. {numbers}"


def _over_seeds(panel: PanelComparison) -> str:
    found = panel.over_seeds
    if found is None:
        return "One pair of runs gives no interval: run both on at least three seeds."
    digits = panel.headline.forgotten.digits
    return (
        f"The difference of {found.mean:.{digits}f} lies between {found.low:.{digits}f} and "
        f"{found.high:.{digits}f} ({found.name})."
    )


def _condition(panel: PanelComparison, first: Side, second: Side) -> str:
    kept = panel.headline.kept
    utilities = (
        f"{kept.plain_label} {first.utility:.{kept.digits}f} and {second.utility:.{kept.digits}f}"
    )
    if panel.equal_utility:
        return f"at equal {kept.plain_short} ({utilities})"
    if panel.better is not None:
        return f"and keeps more {kept.plain_short} ({utilities})"
    keeper = first if first.utility > second.utility else second
    return f"({utilities}: {keeper.name} keeps more)"


def _significance(panel: PanelComparison, test: PairedTest, tests: int) -> str:
    low, high = test.low, test.high
    if test.difference < 0:
        low, high = -high, -low
    adjusted = panel.p_adjusted if panel.p_adjusted is not None else test.p_value
    holm = f" (Holm-adjusted over {tests} panels)" if tests > 1 else ""
    text = (
        f"The difference of {abs(test.difference):.3f} has p = {adjusted:.2g}{holm} and a "
        f"{100 * test.level:.0f} % interval from {low:.3f} to {high:.3f}, over {test.n} questions "
        f"and {_seeds(test)}."
    )
    if test.seeds > 1:
        same = sum(one * test.difference > 0 for one in test.by_seed)
        text += f" It has the same sign in {same} of {test.seeds} seeds."
    if panel.better is not None:
        return text
    if low <= 0 <= high and adjusted <= SIGNIFICANCE:
        text += " The answers differ, but the interval contains 0."
    return (
        f"{text} A difference of about {test.detectable:.2f} would be detected in "
        f"{100 * POWER:.0f} % of cases; a smaller one may remain undetected."
    )


def _caveats(panel: PanelComparison, a: Side, b: Side) -> tuple[str, ...]:
    test, caveats = panel.test, [*_chosen(panel, a, b)]
    if test is not None and test.seeds < ENOUGH_SEEDS:
        caveats.insert(
            0,
            f"there {'is' if test.seeds == 1 else 'are'} only {_seeds(test)}, and the test "
            "generalizes to other questions, not to other seeds",
        )
    if a.seeds != b.seeds:
        caveats.append("the sides have no seed in common; runs are paired in seed order")
    if panel.unequal:
        caveats.append(f"they are trained differently: {', '.join(panel.unequal)}")
    lines = (f"Caveats: {'; '.join(caveats)}.",) if caveats else ()
    return lines if panel.sensitivity is None else (*lines, panel.sensitivity.summary)


def _chosen(panel: PanelComparison, a: Side, b: Side) -> Iterator[str]:
    """Caveats about choosing settings and comparing them on the same numbers."""
    allows = "p and the interval allow" if panel.test else "the interval does not allow"
    by_numbers = [one for one in (a, b) if not one.chosen_on]
    if any(one.tried > 1 for one in by_numbers):
        counts = ", ".join(f"{one.name}: {one.tried}" for one in by_numbers)
        yield (
            "settings were chosen by the numbers they are compared on, which favours the method "
            f"with more settings tried ({counts}, as learning rates × hyper-parameters × epochs); "
            f"{allows} for that"
        )
    for one in (a, b):
        if one.chosen_on:
            seeds = f"seed{'s' * (len(one.chosen_on) > 1)} {', '.join(map(str, one.chosen_on))}"
            yield (
                f"{one.name} was chosen from {one.tried} settings on {seeds}, and is compared on "
                "other seeds, but over the same questions"
            )


def _seeds(test: PairedTest) -> str:
    return f"{test.seeds} seed{'s' * (test.seeds > 1)}"


def rule(tolerance: float, headline: Headline) -> str:
    """The rule of the comparison, printed below it."""
    kept, forgotten = headline.kept.plain_short, headline.forgotten
    return (
        f"A side's best setting has the {forgotten.best_word} {forgotten.name} among those that "
        f"keep {100 * UTILITY_SHARE:g} % of the fine-tuned model's {kept}. Both sides must have "
        f"about the same {kept} (within {tolerance:g}): the higher {kept} of the two best settings "
        "counts, and the other side takes part with its best setting that reaches it."
    )


def find_variant(name: str, attacked: Sequence[TableRow], place: str) -> str:
    """The variant of a name; an attack's name stands for its variant, if it has only one.

    place  of the rows, in messages
    Raises: RecordError that lists the variants there are.
    """
    variants = tuple(dict.fromkeys(row.variant for row in attacked))
    if name in variants:
        return name
    if not variants:
        raise RecordError(
            f"{place}: no run was attacked; name attacks in its configuration (`attacks:`), and "
            "start the sweep again"
        )
    points = [variant for variant in variants if variant.partition("@")[0] == name]
    if len(points) == 1:
        return points[0]
    if points:
        raise RecordError(
            f"{place}: attack {name!r} has several points: {', '.join(points)}; name one"
        )
    raise RecordError(
        f"{place}: no run under {name!r}{did_you_mean(name, variants) or ';'} there are: "
        f"{', '.join(variants)}"
    )


def rows_under(
    rows: Sequence[TableRow], attacked: Sequence[TableRow], variant: str
) -> tuple[TableRow, ...]:
    """The rows of runs under a variant, and the plain ones of the start and retain models."""
    plain = {(row.run_id, row.epoch): row for row in rows if row.kind == "run"}
    found = [row for row in rows if row.kind != "run"]
    for row in attacked:
        own = plain.get((row.run_id, row.epoch))
        if row.variant == variant and own is not None:
            kept = {row.headline.kept.column: own.kept}
            found.append(replace(own, metrics={**row.metrics, **kept}))
    return tuple(found)


def records_under(records: Sequence[Record], variant: str) -> tuple[Record, ...]:
    """The records with their evaluations under a variant, which are read when they are used."""
    return tuple(
        replace(one, evaluations=_VariantEvaluations(one.attacked_evaluations, variant))
        for one in records
    )


@dataclass(frozen=True)
class _VariantEvaluations(Mapping[int, Evaluation]):
    """Evaluations of a record under one variant, by epoch."""

    every: Mapping[tuple[int, str], Evaluation]
    variant: str

    def __getitem__(self, epoch: int) -> Evaluation:
        return self.every[epoch, self.variant]

    def __iter__(self) -> Iterator[int]:
        return (epoch for epoch, variant in self.every if variant == self.variant)

    def __contains__(self, epoch: object) -> bool:
        return (epoch, self.variant) in self.every  # the inherited one would read the file

    def __len__(self) -> int:
        return sum(1 for _ in self)


def training_differences(records: Mapping[str, Record]) -> tuple[str, ...]:
    """Describe the settings in which these methods differ, a clause each.

    records  a run of each method, by the name to print

    Considers hyper-parameters that at least half of the methods have, and the training settings of
    methods that train. Learning rate and epochs are chosen per method, and settings of one method
    are named by their hyper-parameters, so these are not reported.
    """
    same = len({one.method for one in records.values()}) == 1
    values: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        method: Any = record.spec.get("method") or {}
        if not same:
            _add(values, name, "", method.get("hyperparameters") or {})
        if record.learning_rate is not None:
            _add(values, name, "training.", record.spec.get("training") or {})
    return tuple(
        _sentence(setting, by_method)
        for setting, by_method in sorted(values.items())
        if len(set(by_method.values())) > 1 and 2 * len(by_method) >= len(records)
    )


def _add(
    values: dict[str, dict[str, str]], name: str, prefix: str, settings: Mapping[str, Any]
) -> None:
    for key, value in settings.items():
        text = f"{value:g}" if isinstance(value, float) else json.dumps(value)
        values.setdefault(prefix + key, {})[name] = text


def _sentence(setting: str, by_method: Mapping[str, str]) -> str:
    """`x is 1 for a and 0 for b`; the most frequent value comes last, without its methods."""
    groups: dict[str, list[str]] = {}
    for name, value in by_method.items():
        groups.setdefault(value, []).append(name)
    ordered = sorted(groups.items(), key=lambda pair: len(pair[1]))
    parts = [f"{value} for {', '.join(names)}" for value, names in ordered]
    if len(by_method) > 2 and len(ordered[-1][1]) > 1:
        parts[-1] = f"{ordered[-1][0]} for the other {len(ordered[-1][1])}"
    return f"{setting} is {'; '.join(parts[:-1])} and {parts[-1]}"
