"""Comparison of two methods: does A forget more than B at equal utility, wherever both ran?

A *contender* is a side of the comparison: the runs of a method, or of one setting of it. Both sides
are measured by the *headline*, which is the two numbers that a benchmark ranks methods by: what is
kept (*utility*) and what is forgotten. If the number of what is forgotten comes from a statistical
test, the test compares *truth ratios*: for each question, how probable wrong answers are compared
with the right one. A *panel* is one model and split.

On each panel, both sides start from their best setting and epoch by the declared rule
(`best_settings.Panel.best`). The side whose best setting keeps more utility is the *keeper*, and
its utility is the *level*. The other side, the *challenger*, takes part with the setting that
forgets most among its settings that keep at least the level less `tolerance`. If that setting keeps
more than the level plus `tolerance`, utilities are not equal: then one side must both keep more and
forget at least as much, otherwise there is no comparison (`match`).

Matched settings are compared question by question, if the headline has a test, and otherwise over
seeds (`compare_match`). The comparison names the differences in training that make it unfair
(`training_differences`).

Under an attack, what a run keeps is that of its plain evaluation, because methods are compared as
they would be published.

Everything is computed from values in memory, except that records read the evaluations of the
compared epochs from disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.analysis.contender import Contender, Pool
from unlearnbench.analysis.setting_order import best_of, merit_of
from unlearnbench.analysis.settings import (
    OnPanel,
    PanelKey,
    Setting,
    headline_of_rows,
    panel_label,
    panel_order,
)
from unlearnbench.analysis.wording import setting_name, share_kept
from unlearnbench.api.benchmark import Headline
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.number_text import float_text
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.summary import first_difference, forget_ratios
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import PairedTest, holm, paired_test
from unlearnbench.stats.t_interval import Interval, t_interval

TOLERANCE = 0.02
"""Most that two settings of equal utility differ in what is kept, by the headline."""
_ROUNDING = 1e-9
"""Added to a tolerance, so that 0.82 − 0.80 is within 0.02 in binary floating point, too."""


@dataclass(frozen=True)
class Side:
    """One setting after one epoch, as compared."""

    name: str
    setting: str
    """Label with hyperparameters."""
    learning_rate: float | None
    """None for a method at inference time."""
    epoch: int
    """Or the number of steps, see `when`."""
    utility: float
    """The headline's number of what is kept; mean over the compared seeds, as is `quality`."""
    quality: float
    """The headline's number of what is forgotten."""
    seeds: tuple[int, ...]
    """Seeds of `runs`, in the same order."""
    runs: tuple[str, ...]
    """Ids of the compared runs. The i-th runs of both sides are a pair."""
    tried: int = 1
    """Number of settings that this one was chosen from."""
    chosen_on: tuple[int, ...] = ()
    """Seeds on which `select` or `tune` chose the setting; empty if none of them did."""
    unit: Unit = Unit.EPOCH
    """What `epoch` counts in its sweep."""

    @property
    def when(self) -> str:
        """`epoch 3`; in a sweep by steps `step 75`."""
        return self.unit.at(self.epoch)


@dataclass(frozen=True)
class PanelComparison(OnPanel):
    """A and B on one model and split."""

    headline: Headline
    """Headline of the benchmark."""
    why_not: str = ""
    """Reason why nothing was compared; all fields below except `advice` are empty then."""
    advice: str = ""
    """What to try at the command line, so that the two can be compared; empty without advice."""
    a: Side | None = None
    b: Side | None = None
    equal_utility: bool = False
    """False if one of them keeps more utility."""
    test: PairedTest | None = None
    """Test of the difference over questions; None if the headline has no test."""
    p_adjusted: float | None = None
    """Holm-adjusted p-value of `test` over the panels; None until all panels were compared."""
    over_seeds: Interval | None = None
    """If the headline has no test: what A has forgotten less what B has forgotten, over the pairs
    of runs. None with a test, and with a single pair."""
    sensitivity: Sensitivity | None = None
    """Which differences `test` can detect; None if that was not asked for."""
    unequal: tuple[str, ...] = ()
    """Clauses on training settings, other than the compared ones, in which the two differ."""

    @property
    def better(self) -> Side | None:
        """The side that forgets significantly more and does not pay for it with utility.

        With a test, p must be at most 0.05 and the interval must not contain 0. Both are required,
        because the test also rejects if two models at the same distance answer differently. Without
        a test, an interval over at least three seeds must not contain 0.
        """
        if self.a is None or self.b is None:
            return None
        a_is_better = self._a_is_better()
        if a_is_better is None:
            return None
        better, worse = (self.a, self.b) if a_is_better else (self.b, self.a)
        keeps_enough = self.equal_utility or better.utility >= worse.utility
        return better if keeps_enough else None

    def _a_is_better(self) -> bool | None:
        """Return whether A forgets more than B; None if the difference is not significant."""
        if self.test is not None:
            is_significant = self.p_adjusted is not None and self.p_adjusted <= SIGNIFICANCE
            if not is_significant or _contains_zero(self.test):
                return None
            # The test compares distances from a model that never saw the forget rows.
            return self.test.high < 0
        interval = self.over_seeds
        if interval is None or interval.is_range or _contains_zero(interval):
            return None
        return self.headline.forgotten.oriented(interval.mean) > 0


def _contains_zero(ends: PairedTest | Interval) -> bool:
    return ends.low <= 0 <= ends.high


@dataclass(frozen=True)
class Comparison:
    """A and B on all panels on which both ran."""

    a: str
    """Name of side A."""
    b: str
    """Name of side B."""
    tolerance: float
    """Most that equal utilities differ."""
    headline: Headline
    panels: tuple[PanelComparison, ...]
    only_one: tuple[str, ...]
    """Sentences on the panels on which one of them did not run."""


# All panels


def compare(a: Contender, b: Contender, tolerance: float = TOLERANCE) -> Comparison:
    """Compare two contenders on every model and split on which both ran.

    Args:
        a: One side.
        b: The other side.
        tolerance: Most that equal utilities differ.

    Raises:
        EvaluationError: If their numbers do not compare: no panel in common, different profiles,
            questions or retain models.
    """
    if a.rows == b.rows:
        raise EvaluationError(f"{a.name} and {b.name} are the same runs: name two that differ")
    _check_rules(a, b)
    panels_of_a, panels_of_b = set(a.panels), set(b.panels)
    common = panels_of_a & panels_of_b
    if not common:
        raise EvaluationError(
            f"{a.name} and {b.name} have no model and split in common: "
            f"{a.name} ran on {_places(panels_of_a)}, {b.name} on {_places(panels_of_b)}"
        )
    compared = [_panel(a, b, key, tolerance) for key in sorted(common, key=panel_order)]
    only_one: list[str] = []
    if panels_of_a - common:
        only_one.append(f"only {a.name} ran on {_places(panels_of_a - common)}")
    if panels_of_b - common:
        only_one.append(f"only {b.name} ran on {_places(panels_of_b - common)}")
    return Comparison(
        a=a.name,
        b=b.name,
        tolerance=tolerance,
        headline=headline_of_rows(a.rows),
        panels=tuple(_with_adjusted_p(compared)),
        only_one=tuple(only_one),
    )


def _with_adjusted_p(compared: Sequence[PanelComparison]) -> list[PanelComparison]:
    """Adjust the p-values of the tested panels for their number (Holm)."""
    p_values = [panel.test.p_value for panel in compared if panel.test is not None]
    # One adjusted value for each tested panel, in the order of the panels.
    adjusted = iter(holm(p_values))
    panels: list[PanelComparison] = []
    for panel in compared:
        if panel.test is None:
            panels.append(panel)
        else:
            panels.append(replace(panel, p_adjusted=next(adjusted)))
    return panels


def _places(panels: set[PanelKey]) -> str:
    """Return `tiny, forget 10 %; tiny, forget 5 %`."""
    return "; ".join(panel_label(*key) for key in sorted(panels, key=panel_order))


def _check_rules(a: Contender, b: Contender) -> None:
    """Check that both sides are ranked by the same numbers, of one profile in one precision.

    Raises:
        EvaluationError: If they are not.
    """
    # The first two columns are the numbers of the headline. The columns of its test follow.
    columns_a = headline_of_rows(a.rows).columns[:2]
    columns_b = headline_of_rows(b.rows).columns[:2]
    if columns_a != columns_b:
        raise EvaluationError(
            f"{a.name} is ranked by {' and '.join(columns_a)}, {b.name} by "
            f"{' and '.join(columns_b)}: they do not compare; run both on the same benchmark, "
            "both with a retain model or both without"
        )
    records_a = [a.records[row.run_id] for row in a.rows]
    records_b = [b.records[row.run_id] for row in b.rows]
    profiles_a = sorted({record.profile for record in records_a})
    profiles_b = sorted({record.profile for record in records_b})
    if profiles_a != profiles_b:
        raise EvaluationError(
            f"{a.name} was evaluated by profile {', '.join(profiles_a)}, {b.name} by "
            f"{', '.join(profiles_b)}: numbers of different profiles do not compare; evaluate "
            "both by the same one"
        )
    for record_a in records_a:
        for record_b in records_b:
            if record_a.panel == record_b.panel:
                check_precision(a.name, record_a.precision, b.name, record_b.precision)


def _panel(a: Contender, b: Contender, key: PanelKey, tolerance: float) -> PanelComparison:
    """Compare two contenders on one panel. On a start model with a fault, nothing is compared."""
    start = a.sweep_panels[key].start
    if start.fault:
        # The fault is a clause, and `why_not` is printed as a sentence.
        why_not = start.fault[0].upper() + start.fault[1:]
        return PanelComparison(*key, start.headline, why_not=why_not)
    matched = match(a, b, key, tolerance)
    return compare_match(a, b, key, matched, tolerance)


# Which settings are compared


@dataclass(frozen=True)
class NoMatch:
    """Why two sides have no settings to compare."""

    reason: str
    advice: str = ""
    """What to do about it on the command line, which a page does not say; empty if nothing."""
    lacks_equal_utility: bool = False
    """Whether both have a usable setting, and only equal utility is missing."""


class Match(NamedTuple):
    """The settings to compare: of equal utility, or one keeps more and forgets at least as much."""

    a: Setting
    b: Setting


class _Candidates(NamedTuple):
    """The settings of one side that keep enough utility to be a best setting."""

    side: Contender
    best: Setting
    """The one that forgets most."""
    usable: Sequence[Setting]
    """All of them, `best` included."""


def match(a: Contender, b: Contender, key: PanelKey, tolerance: float) -> Match | NoMatch:
    """Choose the settings to compare on one panel by the rule of this module.

    Args:
        a: One side.
        b: The other side.
        key: Model and split.
        tolerance: Most that equal utilities differ.

    Returns:
        Why there are none, if there are none.
    """
    candidates_a = _candidates(a, key)
    if isinstance(candidates_a, NoMatch):
        return candidates_a
    candidates_b = _candidates(b, key)
    if isinstance(candidates_b, NoMatch):
        return candidates_b

    a_is_keeper = (candidates_a.best.kept or 0.0) >= (candidates_b.best.kept or 0.0)
    keeper, challenger = candidates_b, candidates_a
    if a_is_keeper:
        keeper, challenger = candidates_a, candidates_b
    setting = _challenging_setting(keeper, challenger, tolerance)
    if setting is None:
        return _unequal_utility(keeper, challenger, key, tolerance)
    if a_is_keeper:
        return Match(a=keeper.best, b=setting)
    return Match(a=setting, b=keeper.best)


def _candidates(side: Contender, key: PanelKey) -> _Candidates | NoMatch:
    """Return the settings of one side that can take part, or why there are none."""
    reason = side.why_no_choice(key)
    if reason:
        return NoMatch(reason)
    # None if the start model was not evaluated. Then no setting is known to keep enough.
    least_kept = side.sweep_panels[key].least_kept
    settings = side.settings(key)
    best = None if least_kept is None else best_of(settings, least_kept)
    if least_kept is not None and best is not None:
        usable: list[Setting] = []
        for setting in settings:
            merit = merit_of(setting)
            if merit is not None and merit.kept >= least_kept:
                usable.append(setting)
        return _Candidates(side, best, usable)

    share = share_kept(side.sweep_panels[key].headline)
    choice = side.choice(key)
    if choice is not None and choice.setting is not None:
        name = setting_name(choice.setting)
        return NoMatch(f"{side.name}'s chosen setting, {name}, does not keep {share}")
    return NoMatch(f"No setting of {side.name} keeps {share}{_without_mean(settings)}")


def _challenging_setting(
    keeper: _Candidates, challenger: _Candidates, tolerance: float
) -> Setting | None:
    """Return the challenger's setting to compare with the keeper's best one.

    Returns:
        None if no setting has equal utility, and no side is at least as good in both numbers.
    """
    level = keeper.best.kept or 0.0
    candidate = best_of(challenger.usable, level - tolerance - _ROUNDING)
    if candidate is not None:
        has_equal_utility = (candidate.kept or 0.0) <= level + tolerance + _ROUNDING
        forgets_less = _forgotten(candidate) < _forgotten(keeper.best)
        if has_equal_utility or not forgets_less:
            return candidate
    # The keeper keeps more. It has to forget at least as much to be compared.
    if _forgotten(keeper.best) < _forgotten(challenger.best):
        return None
    return challenger.best


def _unequal_utility(
    keeper: _Candidates, challenger: _Candidates, key: PanelKey, tolerance: float
) -> NoMatch:
    """Say that the side that forgets more has no setting with as much utility."""
    keeping, lacking = keeper.side.name, challenger.side.name
    panel = challenger.side.sweep_panels[key]
    kept = panel.headline.kept.plain_short
    higher, lower = keeper.best.kept or 0.0, challenger.best.kept or 0.0
    if challenger.side.choice(key) is not None:
        return NoMatch(
            f"{lacking}'s chosen setting forgets more and has less {kept} than "
            f"{keeping}'s best ({lower:.3f} and {higher:.3f}, more than {tolerance:g} apart)",
            "Try a larger --within",
            lacks_equal_utility=True,
        )
    return NoMatch(
        f"{lacking}'s best setting forgets more and has less {kept} than {keeping}'s "
        f"({lower:.3f} and {higher:.3f}), and no setting of {lacking} has as much (within "
        f"{tolerance:g})",
        f"Try a larger --within, or train with more {panel.unit.plural} or learning rates",
        lacks_equal_utility=True,
    )


def _without_mean(settings: Iterable[Setting]) -> str:
    """Return why some settings have no mean, in brackets; empty if all have one."""
    reasons = dict.fromkeys(setting.why_not for setting in settings if setting.why_not)
    return f" (settings without a mean: {'; '.join(reasons)})" if reasons else ""


def _forgotten(setting: Setting) -> float:
    """Return what a setting has forgotten, by the headline, with the sign that larger is better.

    The setting comes from `best_of`, so its number is known.
    """
    return setting.headline.forgotten.oriented(setting.forgotten or 0.0)


# The comparison of two settings


def compare_match(
    a: Contender,
    b: Contender,
    key: PanelKey,
    matched: Match | NoMatch,
    tolerance: float,
    *,
    only_a: bool = False,
    swaps: int | None = None,
) -> PanelComparison:
    """Compare two matched settings on one panel.

    Args:
        a: One side.
        b: The other side.
        key: Model and split.
        matched: What `match` returned.
        tolerance: Most that equal utilities differ.
        only_a: Whether only "A is better" is of interest. B's other settings, which have no part in
            that, are not read then, and the sensitivity of the test is not computed.
        swaps: Number of random swaps of the test. Defaults to that of `paired_test`.

    Raises:
        EvaluationError: As in `compare`.
    """
    headline = headline_of_rows(a.rows)
    if isinstance(matched, NoMatch):
        return PanelComparison(*key, headline, why_not=matched.reason, advice=matched.advice)
    rows_a, rows_b = paired_rows(matched.a, matched.b)
    if rows_a == rows_b:
        why_not = "The best setting of both is the same one"
        return PanelComparison(*key, headline, why_not=why_not)

    pool_a = a.pool(matched.a)
    pool_b = b.pool(matched.b)
    side_a = side_of(a.name, rows_a, pool_a)
    side_b = side_of(b.name, rows_b, pool_b)
    # Settings were matched by means over all of their seeds. The common seeds may be fewer.
    utility_difference = abs(side_a.utility - side_b.utility)
    compared = PanelComparison(
        *key,
        headline,
        a=side_a,
        b=side_b,
        equal_utility=utility_difference <= tolerance + _ROUNDING,
        unequal=training_differences(
            {a.name: a.records[rows_a[0].run_id], b.name: b.records[rows_b[0].run_id]}
        ),
    )
    if headline.forgotten.test is None:
        differences = [
            (row_a.forgotten or 0.0) - (row_b.forgotten or 0.0)
            for row_a, row_b in zip(rows_a, rows_b, strict=True)
        ]
        return replace(compared, over_seeds=t_interval(differences))

    retain = a.retain(key)
    retain_ratios = forget_ratios(retain)
    ratios_a = _ratios(a, rows_a, retain)
    ratios_b = _ratios(b, rows_b, retain)
    _check_retain(retain_ratios, forget_ratios(b.retain(key)), a, b)
    # A best setting profits from the choice among its rivals, for which the test corrects.
    rivals_b = () if only_a else pool_b.rivals
    test = paired_test(
        ratios_a,
        ratios_b,
        retain_ratios,
        others_a=[_ratios(a, rows_of(rival, rows_a), retain) for rival in pool_a.rivals],
        others_b=[_ratios(b, rows_of(rival, rows_b), retain) for rival in rivals_b],
        swaps=swaps,
    )
    return replace(
        compared,
        why_not="" if test else "One of the truth ratios is not a number",
        test=test,
        sensitivity=None if only_a else ks_power(retain_ratios),
    )


def paired_rows(a: Setting, b: Setting) -> tuple[tuple[TableRow, ...], tuple[TableRow, ...]]:
    """Pair the runs of two settings by their common seeds.

    Without a common seed, both sides' runs are paired in the order of their seeds.
    """
    row_of_seed_a, row_of_seed_b = _row_of_seed(a), _row_of_seed(b)
    common = sorted(row_of_seed_a.keys() & row_of_seed_b.keys())
    if common:
        pairs = [(seed, seed) for seed in common]
    else:
        # The side with more seeds leaves its last ones out.
        pairs = list(zip(sorted(row_of_seed_a), sorted(row_of_seed_b), strict=False))
    return (
        tuple(row_of_seed_a[seed] for seed, _ in pairs),
        tuple(row_of_seed_b[seed] for _, seed in pairs),
    )


def _row_of_seed(setting: Setting) -> dict[int, TableRow]:
    """Return the rows of a setting by seed; the first one if a seed has several."""
    return {row.seed: row for row in reversed(setting.rows)}


def rows_of(setting: Setting, chosen: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """Return as many runs of a setting as `chosen` has, of the same seeds if possible.

    Fewer runs are repeated in turn, which hardly changes the uncertainty of their mean D, the
    distance of their truth ratios from the retain model's.
    """
    row_of_seed = _row_of_seed(setting)
    of_same_seeds = [row_of_seed[row.seed] for row in chosen if row.seed in row_of_seed]
    return tuple(islice(cycle(of_same_seeds or setting.rows), len(chosen)))


def side_of(name: str, rows: tuple[TableRow, ...], pool: Pool) -> Side:
    """Describe the compared runs of one setting.

    Args:
        name: Name of the side.
        rows: Rows of the runs, all with a number of what is kept and of what is forgotten.
        pool: What the setting was chosen from.
    """
    first = rows[0]
    return Side(
        name=name,
        setting=first.method,
        learning_rate=first.learning_rate,
        epoch=first.epoch,
        utility=fmean(row.kept or 0.0 for row in rows),
        quality=fmean(row.forgotten or 0.0 for row in rows),
        seeds=tuple(row.seed for row in rows),
        runs=tuple(row.run_id for row in rows),
        tried=pool.tried,
        chosen_on=pool.chosen_on,
        unit=first.unit,
    )


def _ratios(side: Contender, rows: Sequence[TableRow], retain: Evaluation) -> FloatArray:
    """Return the truth ratios [s, n] of s runs on the n questions of the retain model.

    Raises:
        EvaluationError: If a run was asked other questions.
    """
    expected = retain.sets["forget"].questions
    ratios_of_runs: list[FloatArray] = []
    for row in rows:
        evaluation = side.evaluation(row.run_id, row.epoch)
        questions = evaluation.sets["forget"].questions
        if len(questions) != len(expected) or first_difference(questions, expected) is not None:
            raise EvaluationError(
                f"{side.name}: record {row.run_id} has {len(questions)} forget questions, not the "
                f"retain model's {len(expected)}: only answers to the same questions compare; run "
                "both on the same forget split"
            )
        ratios_of_runs.append(forget_ratios(evaluation))
    return np.stack(ratios_of_runs)


def _check_retain(ratios_a: FloatArray, ratios_b: FloatArray, a: Contender, b: Contender) -> None:
    """Check that both sweeps have the same retain model, up to rounding of its evaluation.

    Args:
        ratios_a: Truth ratios [n] of the retain model in A's sweep.
        ratios_b: Truth ratios of the retain model in B's sweep.
        a: One side.
        b: The other side.

    Raises:
        EvaluationError: If the retain models differ.
    """
    has_same_shape = ratios_a.shape == ratios_b.shape
    if not has_same_shape or not np.allclose(ratios_a, ratios_b, rtol=1e-3, equal_nan=True):
        raise EvaluationError(
            f"{a.name} and {b.name} are measured from different retain models: their distances do "
            "not compare; run both with the same models, as one sweep or with the same cache"
        )


# Differences in training


def training_differences(records: Mapping[str, Record]) -> tuple[str, ...]:
    """Describe the settings in which methods differ, a clause each.

    Only hyperparameters that at least half of the methods have count, and the training settings of
    methods that train. Learning rate and epochs are chosen per method, and settings of one method
    are named by their hyperparameters, so these are not reported.

    Args:
        records: A run of each method, by the name to print.

    Returns:
        Clauses such as `training.batch_size is 16 for npo and 32 for ce-u, simnpo`.
    """
    is_one_method = len({record.method for record in records.values()}) == 1
    values_of_setting: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        settings = _training_settings(record)
        if not is_one_method:
            settings |= _hyperparameters(record)
        for setting, value in settings.items():
            text = float_text(value) if isinstance(value, float) else json.dumps(value)
            values_of_setting.setdefault(setting, {})[name] = text
    clauses: list[str] = []
    for setting, value_of_method in sorted(values_of_setting.items()):
        differs = len(set(value_of_method.values())) > 1
        is_common = 2 * len(value_of_method) >= len(records)
        if differs and is_common:
            clauses.append(_difference(setting, value_of_method))
    return tuple(clauses)


def _hyperparameters(record: Record) -> dict[str, Any]:
    """Return the hyperparameters of a run by name; empty if its record does not state them."""
    method: Any = record.spec.get("method") or {}
    return dict(method.get("hyperparameters") or {})


def _training_settings(record: Record) -> dict[str, Any]:
    """Return the settings of training by names such as `training.batch_size`.

    Empty for a method at inference time, which trains nothing.
    """
    if record.learning_rate is None:
        return {}
    training: Any = record.spec.get("training") or {}
    return {f"training.{key}": value for key, value in training.items()}


def _difference(setting: str, value_of_method: Mapping[str, str]) -> str:
    """Return `x is 1 for a and 0 for b, c`; the most frequent value comes last.

    Args:
        setting: Name of the setting.
        value_of_method: Its value as text for each method; at least two different values.
    """
    methods_of_value: dict[str, list[str]] = {}
    for method, value in value_of_method.items():
        methods_of_value.setdefault(value, []).append(method)
    rarest_first = sorted(methods_of_value, key=lambda value: len(methods_of_value[value]))
    phrases = [f"{value} for {', '.join(methods_of_value[value])}" for value in rarest_first]
    return f"{setting} is {'; '.join(phrases[:-1])} and {phrases[-1]}"
