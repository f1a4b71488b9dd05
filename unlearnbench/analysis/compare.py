"""Comparison of two methods: does A forget more than B at equal utility, wherever both ran?

With the differences in training that make it unfair. Under an attack, what a run keeps is that of
its plain evaluation, because methods are compared as they would be published.

Pure, except that records read the evaluations of the compared epochs from disk.

On each model and fraction, both sides start from their best setting and epoch by the declared rule
(`best_settings.Panel.best`). The side whose best keeps more utility is the keeper, and
sets the level. The other one, the challenger, takes part with what forgets most among the settings
that keep at least that level less `tolerance`. If that setting keeps more than the level
plus `tolerance`, utilities are not equal: then one side must both keep more and forget at least as
much, otherwise there is no comparison.

If a sweep's `select` rule chose a side's setting on some seeds, that setting alone takes part, with
its runs on the other seeds. No other setting takes its place, also if it was not attacked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle, islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearnbench.analysis.best_settings import (
    Best,
    EarlyEnd,
    OnPanel,
    Panel,
    PanelKey,
    Setting,
    average_seeds,
    best_of,
    headline_of_rows,
    is_evidence,
    merit_of,
    panel_label,
    panel_order,
    panels,
)
from unlearnbench.analysis.text import setting_name, share_kept
from unlearnbench.api.benchmark import Headline
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError, RecordError, did_you_mean
from unlearnbench.base.number_text import float_text
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.summary import first_difference, forget_ratios
from unlearnbench.results.outcomes import outcome
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import PairedTest, holm, margin, paired_test
from unlearnbench.stats.t_interval import Interval, t_interval

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results

TOLERANCE = 0.02
"""Most that two settings of equal utility differ in what is kept, by the headline."""
_ROUNDING = 1e-9
"""Added to a tolerance, so that 0.82 − 0.80 is within 0.02 in binary floating point, too."""


@dataclass(frozen=True, eq=False)
class Contender:
    """One side of a comparison: some runs of a sweep, and the sweep."""

    name: str
    """As printed."""
    rows: tuple[TableRow, ...]
    """Rows of its runs."""
    sweep: tuple[TableRow, ...]
    """Rows of all records of the sweep, start and retain models included."""
    records: Mapping[str, Record]
    """Records of the sweep by id."""
    chosen: Mapping[PanelKey, tuple[Best, ...]] = field(
        default_factory=dict[PanelKey, tuple[Best, ...]]
    )
    """What `select` or `tune` has chosen for it, one for each of its entries; none for panels
    without a choice."""
    variant: str = ""
    """The attack under which its runs are compared."""
    ends: tuple[EarlyEnd, ...] = ()
    """Runs of the sweep that ended early, and those that the attack lacks at an epoch."""
    _read: dict[tuple[str, int], Evaluation] = field(
        default_factory=dict[tuple[str, int], Evaluation]
    )

    def evaluation(self, run_id: str, epoch: int) -> Evaluation:
        """An evaluation of a record, read once. Raises: EvaluationError where there is none."""
        record, key = self.records[run_id], (run_id, epoch)
        if epoch not in self._epochs(record):
            raise EvaluationError(
                f"{self.name}: record {run_id} has no evaluation of {record.unit.at(epoch)}, which "
                "the comparison needs; start its sweep again"
            )
        if key not in self._read and self.variant:
            self._read[key] = record.attacked_evaluations[epoch, self.variant]
        elif key not in self._read:
            self._read[key] = record.evaluations[epoch]
        return self._read[key]

    def _epochs(self, record: Record) -> list[int]:
        if self.variant:
            return [epoch for epoch, of in record.attacked_evaluations if of == self.variant]
        return [*record.evaluations]

    @property
    def chooses(self) -> bool:
        """Whether its sweep has chosen its setting on some seeds."""
        return any(self.chosen.values())

    @cached_property
    def panels(self) -> Mapping[PanelKey, Panel]:
        """Its own runs by panel."""
        return {panel.panel: panel for panel in panels(self.rows, (), self.ends)}

    @cached_property
    def sweep_panels(self) -> Mapping[PanelKey, Panel]:
        """The panels of the sweep."""
        return {panel.panel: panel for panel in panels(self.sweep, (), self.ends)}

    def settings(self, key: PanelKey) -> tuple[Setting, ...]:
        """Its settings on one panel, averaged over seeds; only the chosen one after `select`."""
        best = self.choice(key)
        if best is None:
            return self.panels[key].settings
        setting = self._under_attack(best)
        return () if isinstance(setting, str) else (setting,)

    def choice(self, key: PanelKey) -> Best | None:
        """The choice of `select` or `tune` on one panel; None without one.

        Of several entries of a method, the choice that is the best on the seeds of the choice.
        """
        chosen = self.chosen.get(key, ())
        return max(chosen, key=_worth, default=None)

    def why_no_choice(self, key: PanelKey) -> str:
        """Why the choice on one panel cannot be compared; empty if it can, and without one."""
        best = self.choice(key)
        if best is None:
            return ""
        setting = self._under_attack(best)
        return setting if isinstance(setting, str) else ""

    def _under_attack(self, best: Best) -> Setting | str:
        """A choice on the seeds that report it, as it is compared; or why there is none."""
        if best.setting is None or best.setting.why_not:
            return f"{self.name} has no numbers to compare: {best.method}: {best.why_not}"
        if not self.variant:
            return best.setting
        rows = {(row.run_id, row.epoch): row for row in self.panels[best.panel].rows}
        attacked = [rows.get((row.run_id, row.epoch)) for row in best.setting.rows]
        without = [
            str(row.seed)
            for row, under in zip(best.setting.rows, attacked, strict=True)
            if under is None
        ]
        if without:
            return (
                f"{self.name}'s chosen setting, {setting_name(best.setting)}, was not evaluated "
                f"under {self.variant} on seeds {', '.join(without)}. No other setting takes its "
                "place"
            )
        (setting,) = average_seeds(row for row in attacked if row is not None)
        return setting

    def pool(self, chosen: Setting) -> Pool:
        """The settings that `chosen`, one of its own, was chosen from."""
        best = self.choice(chosen.panel)
        if best is not None and best.choice is not None:
            choices = (each.choice for each in self.chosen[chosen.panel])
            tried = sum(choice.candidates for choice in choices if choice is not None)
            return Pool(tried, (), best.choice.chosen_on)
        floor, settings = (
            self.sweep_panels[chosen.panel].least_kept or 0.0,
            self.settings(chosen.panel),
        )
        able = [
            (setting, merit) for setting in settings if (merit := merit_of(setting)) is not None
        ]
        close = [item for item, merit in able if merit[1] >= floor and _is_near(item, chosen)]
        return Pool(len(able), tuple(item for item in close if item != chosen))

    def retain(self, key: PanelKey) -> Evaluation:
        """The retain model's evaluation. Raises: EvaluationError without one."""
        for record in self.records.values():
            if record.kind == "retain" and record.panel == key and self._epochs(record):
                return self.evaluation(record.id, min(self._epochs(record)))
        raise EvaluationError(
            f"{self.name}: no evaluated retain model of {panel_label(*key)}, among the "
            "records: start the sweep again, which evaluates it"
        )


@dataclass(frozen=True)
class Pool:
    """Settings that a side's setting was chosen from."""

    tried: int
    """Number of settings with a result: learning rates × hyper-parameters × epochs."""
    rivals: tuple[Setting, ...]
    """Settings that might be the best over other questions: they keep the required utility, and
    their D, if a test has one, is at most `paired_test.margin` above the chosen one's."""
    chosen_on: tuple[int, ...] = ()
    """Seeds of the choice, if its numbers are of other seeds."""


@dataclass(frozen=True)
class Side:
    """One setting after one epoch, as compared."""

    name: str
    setting: str
    """Label with hyper-parameters."""
    learning_rate: float | None
    epoch: int
    """Or the number of steps, see `when`."""
    utility: float
    """The headline's number of what is kept; mean over the compared seeds, as is `quality`."""
    quality: float
    """The headline's number of what is forgotten."""
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    tried: int = 1
    """As in `Pool`."""
    chosen_on: tuple[int, ...] = ()
    """As in `Pool`."""
    unit: Unit = Unit.EPOCH
    """What `epoch` counts in its sweep."""

    @property
    def when(self) -> str:
        """`epoch 3`; in a sweep by steps `step 75`."""
        return self.unit.at(self.epoch)


@dataclass(frozen=True)
class NoMatch:
    """Why two sides have no settings to compare."""

    reason: str
    advice: str = ""
    """What to do about it on the command line, which a page does not say; empty if nothing."""
    lacks_equal_utility: bool = False
    """Whether both have a usable setting, and only equal utility is missing."""


Match = tuple[Setting, Setting]
"""Settings of A and B to compare: of equal utility, or one keeps more and forgets at least as
much."""


def _worth(best: Best) -> tuple[float, ...]:
    """Sort key of the choices of one method, see `Choice.worth`."""
    return () if best.choice is None else best.choice.worth


def chosen_for(panel: Panel, run_ids: Collection[str]) -> tuple[Best, ...]:
    """The choices on a panel that some runs stand for.

    Runs stand for a choice if they report it, or if they are all trials that it was made from. For
    example, `npo lr 1e-05` may be a trial that was not chosen, and is then compared as it is.
    """
    evaluated = {row.run_id for row in panel.rows}
    chosen: list[Best] = []
    for best in panel.best:
        if best.choice is None:
            continue
        trials = best.choice.trials & evaluated
        has_all_trials = bool(trials) and trials <= set(run_ids)
        if has_all_trials or not best.choice.runs.isdisjoint(run_ids):
            chosen.append(best)
    return tuple(chosen)


def _is_near(setting: Setting, chosen: Setting) -> bool:
    """True if its D might be the least over other questions, or if D is unknown."""
    test = chosen.headline.forgotten.test
    if test is None:
        return True
    distances = [each.metrics.get(test.distance) for each in (setting, chosen)]
    if distances[0] is None or distances[1] is None:
        return True
    return distances[0] - distances[1] <= margin(int(chosen.metrics.get(test.questions) or 0))


def find_contender(name: str, label: str, results: Results, variant: str = "") -> Contender:
    """Find the runs that `name` stands for in a sweep.

    name     a method or a setting's label, each with an optional ` lr RATE`, or a run's id or the
             beginning of one
    label    the side's name in the output
    variant  of the attack under which they are compared; what a run keeps stays that of its plain
             evaluation
    Raises: RecordError that lists the methods.
    """
    name = " ".join(name.split())
    by_name: dict[str, set[str]] = {}
    ids: set[str] = set()
    for row in (row for row in results.rows if row.kind == "run"):
        rate = "" if row.learning_rate is None else f" lr {float_text(row.learning_rate)}"
        for item in {row.family, row.method, row.family + rate, row.method + rate, row.run_id}:
            by_name.setdefault(item, set()).add(row.run_id)
        if name and row.run_id.startswith(name):
            ids.add(row.run_id)
    for panel in results.panels:
        for best in panel.best:
            if best.choice is not None and best.label:
                by_name.setdefault(best.name, set()).update(best.choice.trials | best.choice.runs)
    run_ids = by_name.get(name) or (ids if len(ids) == 1 else None)
    if run_ids is None:
        lost = [outcome(record) for record in results.without_result if _is_called(record, name)]
        if lost:
            raise RecordError(
                f"{label}: no run of {name!r} was evaluated: {'; '.join(map(str, lost))}"
            )
        raise RecordError(
            f"{label}: no method, setting or run {name!r}{did_you_mean(name, by_name) or ';'} "
            f"methods: {', '.join(results.families) or 'none was evaluated'}"
        )
    rows = _under(results, variant) if variant else results.rows
    own = tuple(row for row in rows if row.kind == "run" and row.run_id in run_ids)
    if not own:
        raise RecordError(f"{label}: no run of {name!r} was evaluated under {variant}")
    records = {record.id: record for record in results.records}
    chosen = {panel.panel: chosen_for(panel, run_ids) for panel in results.panels}
    ends = results.ends
    if variant:
        ends = (*ends, *_not_attacked(results, variant))
    is_one_run = name in run_ids or name not in by_name
    if is_one_run:
        # It stands for itself, whatever became of the other seeds of its setting.
        ends = tuple(end for end in ends if end.run_id in run_ids)
    return Contender(label, own, rows, records, chosen, variant, ends)


def _is_called(record: Record, name: str) -> bool:
    """Whether `name` stands for a run without a row, as in `find_contender`."""
    rate = "" if record.learning_rate is None else f" lr {float_text(record.learning_rate)}"
    return name in (record.method, record.method + rate) or record.id.startswith(name or " ")


def _under(results: Results, variant: str) -> tuple[TableRow, ...]:
    """The rows with the runs as they are under an attack, but for what they keep."""
    plain = {(row.run_id, row.epoch): row for row in results.rows if row.kind == "run"}
    rows = [row for row in results.rows if row.kind != "run"]
    for row in results.attacked:
        part = plain.get((row.run_id, row.epoch))
        if row.variant == variant and part is not None:
            kept = {row.headline.kept.column: part.kept}
            rows.append(replace(row, metrics={**row.metrics, **kept}))
    return tuple(rows)


def _not_attacked(results: Results, variant: str) -> Iterator[EarlyEnd]:
    """Yield the runs that an attack lacks at an epoch at which it has other runs of their setting.

    A mean over the other seeds would hide them. Failed runs say nothing about their setting.
    """
    runs = [row for row in results.rows if is_evidence(row)]
    attacked = {(row.run_id, row.epoch) for row in results.attacked if row.variant == variant}
    settings = {
        (*row.place_of_setting, row.epoch) for row in runs if (row.run_id, row.epoch) in attacked
    }
    for row in runs:
        if (*row.place_of_setting, row.epoch) in settings and (
            row.run_id,
            row.epoch,
        ) not in attacked:
            yield EarlyEnd(
                row.run_id,
                (*row.panel, row.family, row.learning_rate, row.setting_id),
                row.seed,
                due=frozenset({row.epoch}),
                last=row.epoch - 1,
                text=f"{variant} did not attack seed {row.seed} at {row.when}",
            )


def with_retain_term(name: str, families: Sequence[str]) -> str:
    """`npo+nll` for `npo`, also before ` lr RATE`, where the method ran in that form alone.

    families  methods as they ran, each with its retain term. A method whose runs all failed is one
              of them: the numbers of another form would be taken for its own.
    Raises: RecordError with the forms, where there are several.
    """
    method, lr, rate = " ".join(name.split()).partition(" lr ")
    forms = [family for family in families if family.partition("+")[0] == method]
    if method in families or not forms:
        return name
    if len(forms) > 1:
        raise RecordError(f"{name!r} ran in several forms: {', '.join(forms)}; name one of them")
    return forms[0] + lr + rate


def match(a: Contender, b: Contender, key: PanelKey, tolerance: float) -> Match | NoMatch:
    """The settings to compare on one panel by the rule of this module, or why there are none."""
    able: list[list[Setting]] = []
    bests: list[Setting] = []
    for side in (a, b):
        if reason := side.why_no_choice(key):
            return NoMatch(reason)
        floor, settings = side.sweep_panels[key].least_kept, side.settings(key)
        best = None if floor is None else best_of(settings, floor)
        if floor is None or best is None:
            share = share_kept(side.sweep_panels[key].headline)
            if (choice := side.choice(key)) is not None and choice.setting is not None:
                name = setting_name(choice.setting)
                return NoMatch(f"{side.name}'s chosen setting, {name}, does not keep {share}")
            return NoMatch(f"No setting of {side.name} keeps {share}{_without_mean(settings)}")
        able.append([s for s in settings if (merit := merit_of(s)) and merit[1] >= floor])
        bests.append(best)
    first, second = (best.kept or 0.0 for best in bests)
    level, keeper = max(first, second), int(first < second)
    best, other = bests[keeper], bests[1 - keeper]
    candidate = best_of(able[1 - keeper], level - tolerance - _ROUNDING)
    equal = candidate is not None and (candidate.kept or 0.0) <= level + tolerance + _ROUNDING
    if candidate is None or (not equal and _forgotten(candidate) < _forgotten(best)):
        if _forgotten(best) < _forgotten(other):
            keeping, lacking = (a, b) if keeper == 0 else (b, a)
            return _unequal_utility(keeping, lacking, key, (level, other.kept or 0.0), tolerance)
        candidate = other
    return (best, candidate) if keeper == 0 else (candidate, best)


def _unequal_utility(
    keeping: Contender,
    lacking: Contender,
    key: PanelKey,
    utilities: tuple[float, float],
    tolerance: float,
) -> NoMatch:
    """Say that the side that forgets more has no setting with as much utility.

    Args:
        keeping: The side whose best setting has more utility.
        lacking: The side whose best setting forgets more.
        key: Model and split.
        utilities: Of the two best settings, in this order.
        tolerance: Most that equal utilities differ.
    """
    panel = lacking.sweep_panels[key]
    kept = panel.headline.kept.plain_short
    higher, lower = utilities
    if lacking.choice(key) is not None:
        return NoMatch(
            f"{lacking.name}'s chosen setting forgets more and has less {kept} than "
            f"{keeping.name}'s best ({lower:.3f} and {higher:.3f}, more than {tolerance:g} apart)",
            "Try a larger --within",
            lacks_equal_utility=True,
        )
    return NoMatch(
        f"{lacking.name}'s best setting forgets more and has less {kept} than {keeping.name}'s "
        f"({lower:.3f} and {higher:.3f}), and no setting of {lacking.name} has as much (within "
        f"{tolerance:g})",
        f"Try a larger --within, or train with more {panel.unit.plural} or learning rates",
        lacks_equal_utility=True,
    )


def _without_mean(settings: Iterable[Setting]) -> str:
    """Why some settings have no mean, in brackets; empty if all have one."""
    reasons = dict.fromkeys(setting.why_not for setting in settings if setting.why_not)
    return f" (settings without a mean: {'; '.join(reasons)})" if reasons else ""


def _forgotten(setting: Setting) -> float:
    """Number of what a setting of `best_of` has forgotten; larger is better."""
    return setting.headline.forgotten.oriented(setting.forgotten or 0.0)


def paired_rows(a: Setting, b: Setting) -> tuple[tuple[TableRow, ...], tuple[TableRow, ...]]:
    """Pair the runs of two settings by their common seeds.

    Without a common seed, both sides' runs are paired in the order of their seeds.
    """
    of_a, of_b = ({row.seed: row for row in reversed(item.rows)} for item in (a, b))
    shared = sorted(of_a.keys() & of_b.keys())
    pairs = list(zip(*([shared] * 2 if shared else [sorted(of_a), sorted(of_b)]), strict=False))
    return tuple(of_a[item] for item, _ in pairs), tuple(of_b[other] for _, other in pairs)


def rows_of(setting: Setting, chosen: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """Return as many runs of a setting as `chosen` has, of the same seeds if possible.

    Fewer runs are repeated in turn, which hardly changes the uncertainty of their mean D.
    """
    by_seed = {row.seed: row for row in reversed(setting.rows)}
    result = [by_seed[row.seed] for row in chosen if row.seed in by_seed] or list(setting.rows)
    return tuple(islice(cycle(result), len(chosen)))


def side_of(name: str, rows: tuple[TableRow, ...], pool: Pool) -> Side:
    """The side that compares these runs of one setting."""
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


@dataclass(frozen=True)
class PanelComparison(OnPanel):
    """A and B on one model and split."""

    headline: Headline
    """Headline of the benchmark."""
    why_not: str = ""
    """Reason why nothing was compared; all fields below but `advice` are empty then."""
    advice: str = ""
    """What to try at the command line, so that the two can be compared; empty without advice."""
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
        ends = self.test or self.over_seeds
        if self.a is None or self.b is None or ends is None or ends.low <= 0 <= ends.high:
            return None
        if isinstance(ends, Interval):
            decided, a_is_better = (
                not ends.is_range,
                self.headline.forgotten.oriented(ends.mean) > 0,
            )
        else:
            decided = self.p_adjusted is not None and self.p_adjusted <= SIGNIFICANCE
            a_is_better = ends.high < 0
        better, worse = (self.a, self.b) if a_is_better else (self.b, self.a)
        keeps = self.equal_utility or better.utility >= worse.utility
        return better if decided and keeps else None


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
    """Raise unless both sides are ranked by the same numbers, of one profile in one precision."""
    headlines = [headline_of_rows(item.rows).columns[:2] for item in (a, b)]
    if headlines[0] != headlines[1]:
        raise EvaluationError(
            f"{a.name} is ranked by {' and '.join(headlines[0])}, {b.name} by "
            f"{' and '.join(headlines[1])}: they do not compare; run both on the same benchmark, "
            "both with a retain model or both without"
        )
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
    start = a.sweep_panels[key].start
    if fault := start.fault:
        return PanelComparison(*key, start.headline, why_not=fault[0].upper() + fault[1:])
    return compare_match(a, b, key, match(a, b, key, tolerance), tolerance)


def compare_match(
    a: Contender,
    b: Contender,
    key: PanelKey,
    result: Match | NoMatch,
    tolerance: float,
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
    if isinstance(result, NoMatch):
        return PanelComparison(*key, headline, why_not=result.reason, advice=result.advice)
    setting_a, setting_b = result
    rows_a, rows_b = paired_rows(setting_a, setting_b)
    if rows_a == rows_b:
        why_not = "The best setting of both is the same one"
        return PanelComparison(*key, headline, why_not=why_not)
    pool_a, pool_b = a.pool(setting_a), b.pool(setting_b)
    side_a, side_b = side_of(a.name, rows_a, pool_a), side_of(b.name, rows_b, pool_b)
    compared = PanelComparison(
        *key,
        headline,
        a=side_a,
        b=side_b,
        # Of the common seeds: the settings were matched by the means over all of theirs.
        equal_utility=abs(side_a.utility - side_b.utility) <= tolerance + _ROUNDING,
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
        evaluation = side.evaluation(row.run_id, row.epoch)
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
            text = float_text(value) if isinstance(value, float) else json.dumps(value)
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
