"""How long forgetting lasts: a number of memorisation before attacks and under them.

Pure, except that intervals over questions read observations. A setting is compared with the start
model, which has learned the rows to forget, and with the retain model, which never saw them and is
attacked in the same way. What the retain model gains under an attack is the null: an attack that
teaches, or a question that helps, raises both models alike. If a sweep has no retain model, the
whole gain counts as given back, so that lasting is a lower limit: part of the gain may be what the
attack teaches any model. What could be removed is then all that the start model knows.

Terms: a *variant* is an attack at one of its points (`relearning@13`). Its *yardstick* is the
number that it is measured by. A model's number *before* the attack is the one at point `0` of an
attack that trains, and otherwise the plain number on the rows that the attack asked
(`results/asked_rows.py`).

An attack that only samples leaves greedy answers and losses as they are, so that their metrics
cannot move. It is measured by a metric of its samples, and before the attack by the metric of the
greedy answer on the same scale (`Metric.greedy`): expected best ROUGE-L of k samples, and ROUGE-L.

*Lasting* of a setting under one variant is computed in `UnderAttack.shares`. Of several variants
the worst counts. A setting has none

- if it keeps less than `UTILITY_SHARE` of the start model's utility, since a model that produces
  no text any more relearns slowly and has nothing to protect;
- if it has removed less than `LEAST_REMOVED` of what could be removed, since a share of that is
  noise;
- if a variant is missing that its other seeds or other settings have, since the worst of the
  others would claim too much;
- if one of its seeds ended before the epoch, since the mean of the others would hide that seed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Best,
    OnPanel,
    Panel,
    Setting,
    is_evidence,
    mean_of,
    merit_of,
)
from unlearnbench.analysis.question_gains import (
    BeforeAndAfter,
    GainsOfModel,
    QuestionGains,
    gains_of,
    question_gains,
)
from unlearnbench.analysis.relearning_curve import RelearningCurve
from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import RecordError, did_you_mean
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.asked_rows import NumbersBefore, greedy_measures
from unlearnbench.results.attack_variants import (
    attack_of,
    is_before_attack,
    leaves_greedy,
    point_of,
    step_of,
)
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import LEVEL, Interval, interval_of_all

MEMORIZATION = (
    *("extraction_strength", "exact_memorization", "probability", "rouge"),
    *("paraphrased_probability", "choice_accuracy", "option_probability"),
)
"""Metrics of the forget set that attacks are measured by: the first one with a number. Extraction
strength is the most faithful one of Dorna et al. 2025, arXiv:2506.12618, table 2."""
LEAST_REMOVED = 0.25
"""Least share of what the start model knows more than the retain model that a method must have
removed. The share of less that comes back is noise."""
SCORE_BOUNDS = (0.0, 1.0)
"""All comes back, and nothing does. The number itself may lie beyond: noise makes an attack return
more than all, or less than nothing."""
LITTLE = 0.05
"""Share below which nothing comes back that matters."""


def find_variant(name: str, variants: Sequence[str]) -> str:
    """Return the variant of this name, or the only variant of the attack of this name.

    Raises:
        RecordError: If there is no such variant, or if the attack has several. The message names
            the variants that there are.
    """
    points = [variant for variant in variants if name in (variant, attack_of(variant))]
    if name in points or len(points) == 1:
        return name if name in points else points[0]
    if not variants:
        raise RecordError(
            "no run was attacked; name attacks in the configuration (`attacks:`), and start the "
            "sweep again"
        )
    if points:
        raise RecordError(f"{name!r} has several points, {', '.join(points)}: name one")
    near = did_you_mean(name, variants) or ";"
    raise RecordError(f"{name!r}: no run is under it{near} there are {', '.join(variants)}")


# What attacks are measured by


def memorization_column(rows: Sequence[TableRow], attacked: Sequence[TableRow]) -> str | None:
    """Return the column that attacks are measured by: of `MEMORIZATION`, else of the headline.

    If all attacks only sample, it is the greedy answers' column that samples are compared with.

    Returns:
        None if no attacked row has a number of what is forgotten.
    """
    if not attacked:
        return None
    schema = attacked[0].schema
    variants = {row.variant for row in attacked}
    if all(leaves_greedy(variant, attacked) for variant in variants):
        of_variants = (yardstick(schema, "", variant, attacked) for variant in sorted(variants))
        for of_variant in of_variants:
            if of_variant is not None:
                return of_variant.before.name
    forget_set = schema.sets("forget")[:1]
    names = [f"{metric}_{name}" for name in forget_set for metric in MEMORIZATION]
    for column in (*names, schema.headline.forgotten.column):
        if _has_number(rows, column) and _has_number(attacked, column):
            return column
    return None


def _has_number(rows: Iterable[TableRow], column: str) -> bool:
    return any(row.metrics.get(column) is not None for row in rows)


@dataclass(frozen=True)
class Yardstick:
    """The numbers that a variant is measured by: before the attack, and under it."""

    before: MetricColumn
    after: MetricColumn
    """The same as `before`, unless the attack only samples."""

    @property
    def sign(self) -> float:
        """−1 if a smaller number means that more is memorised."""
        return -1.0 if self.after.better == "higher" else 1.0


def yardstick(
    schema: BenchmarkSchema, column: str, variant: str, attacked: Sequence[TableRow]
) -> Yardstick | None:
    """Return the numbers that a variant is measured by.

    Args:
        schema: Benchmark of the rows.
        column: Column that other attacks are measured by.
        variant: Name of the variant.
        attacked: Rows under attacks.

    Returns:
        None if the attack can move no number.
    """
    under = [row for row in attacked if row.variant == variant]
    if not leaves_greedy(variant, under):
        metric = schema.column(column)
        return Yardstick(metric, metric)
    for of_samples, (measure, name) in greedy_measures(schema).items():
        if _has_number(under, of_samples):
            return Yardstick(measure.column(name, "forget"), schema.column(of_samples))
    return None


# One setting


@dataclass(frozen=True)
class Shift:
    """A model's number before an attack and under it."""

    before: float | None
    after: float | None

    @property
    def gain(self) -> float | None:
        """After less before."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class UnderAttack:
    """A setting under one variant, over its seeds."""

    variant: str
    shifts: tuple[Shift, ...]
    """One per seed."""
    retain: Shift
    start: Shift
    bypassed: bool = False
    """True for a method at inference time under an attack that runs the model without it."""
    sign: float = 1.0
    """−1 if a smaller number means that more is memorised."""
    measured: Yardstick | None = None
    """What the numbers are of; None if the attack can move no number. Then there are no numbers."""
    floor: float | None = None
    """Number of a model that has memorised nothing, in place of the retain model's where there is
    no retain model; None if there is one."""
    missing: str = ""
    """Reason why a seed has no number, or the numbers before are unknown; empty if none is."""
    lacks_seeds: bool = False
    """Whether other seeds ended before this epoch, so that no mean is defined."""
    read_questions: Callable[[], QuestionGains | None] = field(
        default=lambda: None, compare=False, repr=False
    )
    """Reads the gains by question; None if there are several seeds, or no observations."""

    @property
    def before(self) -> float | None:
        """Mean over seeds; None if one has no number."""
        return self._mean([shift.before for shift in self.shifts])

    @property
    def after(self) -> float | None:
        """Mean over seeds; None if one has no number."""
        return self._mean([shift.after for shift in self.shifts])

    @property
    def after_interval(self) -> Interval | None:
        """Interval over seeds of the number under the attack."""
        if self.after is None or self.measured is None:
            return None
        return interval_of_all([shift.after for shift in self.shifts], self.measured.after.bounds)

    @property
    def gain(self) -> float | None:
        """Mean gain over seeds."""
        return self._mean([shift.gain for shift in self.shifts])

    def _mean(self, values: Sequence[float | None]) -> float | None:
        return None if self.lacks_seeds else mean_of(values)

    @property
    def null(self) -> float | None:
        """The retain model's own gain."""
        return self.retain.gain

    @property
    def taught(self) -> float | None:
        """What the attack teaches a model that never saw the rows: 0 if the retain model loses.

        A model below the retain model has less to lose, so a loss is not subtracted. Without a
        retain model nothing is known, and nothing is subtracted.
        """
        if self.floor is not None:
            return 0.0
        if self.null is None:
            return None
        return self.sign * max(0.0, self.sign * self.null)

    @property
    def excess(self) -> float | None:
        """Mean gain beyond what the attack teaches."""
        return None if self.gain is None or self.taught is None else self.gain - self.taught

    @property
    def removed(self) -> float | None:
        """Share that the method has removed of what the start model knows more than the retain
        model, (s₀ − m₀) / (s₀ − r₀); None if the start model knows no more.

        Without a retain model, r₀ is `floor`. It is at or below any retain model's number, so that
        the share is a lower limit.
        """
        start, before = self.start.before, self.before
        floor = self.retain.before if self.floor is None else self.floor
        if start is None or before is None or floor is None or self.sign * (start - floor) <= 0:
            return None
        return (start - before) / (start - floor)

    @property
    def removed_little(self) -> bool:
        """Whether too little was removed to measure what comes back."""
        return self.removed is not None and self.removed < LEAST_REMOVED

    @cached_property
    def shares(self) -> tuple[float | None, ...]:
        """Lasting by seed: the share of what was removed that the attack does not give back.

        lasting = 1 − ((m − m₀) − max(0, r − r₀)) / (s₀ − m₀)

        m, r and s are the numbers of the setting, the retain and the start model, at 0 before the
        attack; r − r₀ is 0 if there is no retain model. 1: nothing comes back, or no more than the
        retain model gains. 0: all of it. Not clipped. Of several seeds it is a ratio of means,
        linearised: the mean of these values follows from the means that stand beside it, and their
        spread is that of each seed's own ratio to first order.

        Returns:
            None for each seed if it is undefined.
        """
        undefined = (None,) * len(self.shifts)
        start, mean_before, mean_excess = self.start.before, self.before, self.excess
        taught = self.taught
        if start is None or mean_before is None or mean_excess is None or taught is None:
            return undefined
        if self.removed is None or self.removed_little:
            return undefined
        mean_removed = start - mean_before
        ratio = mean_excess / mean_removed
        lasting: list[float] = []
        for shift in self.shifts:
            given_back = (shift.gain or 0.0) - taught
            removed = start - (shift.before or 0.0)
            lasting.append(1 - ratio - (given_back - ratio * removed) / mean_removed)
        return tuple(lasting)

    @property
    def lasting(self) -> float | None:
        """Mean of `shares` over seeds; None if it is undefined."""
        return mean_of(self.shares)

    @property
    def why_not(self) -> str:
        """Reason why there is no `lasting`; empty if there is one."""
        if self.lasting is not None:
            return ""
        if self.missing:
            return self.missing
        if self.retain.after is None and self.floor is None:
            return f"the retain model was not attacked by {attack_of(self.variant)}"
        if self.start.before is None:
            return "the start model was not evaluated"
        if self.removed_little:
            least = f"less than {100 * LEAST_REMOVED:.0f} %"
            return f"it forgot too little ({least}) to measure recovery"
        return "a number behind it is undefined"

    @property
    def may_give_back_more(self) -> bool:
        """Whether a variant without a number might give back more than those that have one.

        An attack that can move no number does not, and neither does one under which hardly anything
        had been removed, if that is known of all seeds.
        """
        if self.measured is None:
            return False
        return bool(self.missing) or not self.removed_little

    @cached_property
    def questions(self) -> QuestionGains | None:
        """Gains by question of one seed."""
        return self.read_questions()

    @property
    def lasting_interval(self) -> Interval | None:
        """Interval of `lasting` over seeds; of one seed over questions."""
        return self.interval_of_worst(points=1)

    def interval_of_worst(self, points: int) -> Interval | None:
        """Return the interval of `lasting` over seeds; of one seed over questions.

        Over questions, what was removed counts as known, and the level allows for a choice of the
        worst of several points (Bonferroni). The ends lie from 0 to 1, as those of all scores.

        Args:
            points: Number of points of which this one is the worst.
        """
        start, before, lasting = self.start.before, self.before, self.lasting
        if len(self.shares) > 1 or lasting is None or start is None or before is None:
            return interval_of_all(self.shares, SCORE_BOUNDS)
        if self.questions is None or self.questions.excess is None:
            return None
        level = worst_of_level(points)
        ends = self.questions.excess_interval(level)
        if ends is None:
            return None
        removed = self.sign * (start - before)
        spread = float(self.questions.excess.std(ddof=1)) / removed
        low, high = 1 - ends[1] / removed, 1 - ends[0] / removed
        count = self.questions.count
        interval = Interval(lasting, low, high, spread, count, level, over="questions")
        return interval.within(SCORE_BOUNDS)


def worst_of_level(points: int) -> float:
    """Return the level of an interval of the worst of several points (Bonferroni)."""
    return 1 - (1 - LEVEL) / points


@dataclass(frozen=True)
class AttackedSetting:
    """A setting after one epoch, and the same setting under attacks."""

    setting: Setting
    """Its plain numbers."""
    under: tuple[UnderAttack, ...]
    """In the table's order; without points before the first step. Empty if it was not attacked."""
    keeps_utility: bool
    """Whether it keeps `UTILITY_SHARE` of what the start model has, without an attack."""
    curves: tuple[RelearningCurve, ...] = ()
    """By attack; empty if another seed ended before the epoch."""
    not_attacked: str = ""
    """Reason why attacks are missing that other settings had; empty if none is."""
    utility_unknown: str = ""
    """Reason why it is not known whether it keeps utility; empty if it is."""

    @property
    def scored(self) -> tuple[UnderAttack, ...]:
        """The variants with a number of lasting."""
        return tuple(under for under in self.under if under.lasting is not None)

    @property
    def worst(self) -> UnderAttack | None:
        """The variant with the smallest lasting; None if there is no score, see `why_not`.

        Of variants with the same lasting, the first one in the table.
        """
        if self.why_not:
            return None
        least = min(under.lasting or 0.0 for under in self.scored)
        # Equal shares may differ in their last digits, since they are sums in another order.
        return next(under for under in self.scored if (under.lasting or 0.0) <= least + 1e-9)

    @property
    def most_gained(self) -> UnderAttack | None:
        """The variant under which most is gained beyond the retain model; also without a score.

        Without the retain model's gains, the variant under which most is gained.
        """
        known = [under for under in self.under if under.gain is not None]

        def gain(under: UnderAttack) -> float:
            beyond = under.gain if under.excess is None else under.excess
            return under.sign * (beyond or 0.0)

        return max(known, key=gain, default=None)

    @property
    def lasting(self) -> float | None:
        """Lasting under the worst variant."""
        return None if self.worst is None else self.worst.lasting

    @property
    def lasting_interval(self) -> Interval | None:
        """Interval of `lasting` over seeds; of one seed over questions."""
        return None if self.worst is None else self.worst.interval_of_worst(len(self.scored))

    @cached_property
    def why_not(self) -> str:
        """Reason why there is no `lasting`; empty if there is one."""
        when = self.setting.when
        if not self.under:
            return self.not_attacked or f"it was not attacked at {when}"
        if self.utility_unknown:
            return self.utility_unknown
        if not self.keeps_utility:
            return f"it keeps less than {100 * UTILITY_SHARE:.0f} % of utility at {when}"
        if self.not_attacked:
            return self.not_attacked
        if all(
            under.retain.after is None and under.floor is None and not under.missing
            for under in self.under
        ):
            return "the retain model was not attacked"
        unscored = [under for under in self.under if under.lasting is None]
        open_questions = [under for under in unscored if under.may_give_back_more]
        if open_questions:
            return _reasons(open_questions)
        return "" if self.scored else _reasons(unscored)

    @property
    def short_reason(self) -> str:
        """The kind of `why_not` in a few words, for a figure; empty if there is a score."""
        if not self.why_not:
            return ""
        if not self.under:
            return "best setting not attacked"
        if self.utility_unknown:
            return "its utility is not known"
        if not self.keeps_utility:
            return "keeps too little utility"
        if self.not_attacked:
            return "an attack is missing"
        if all(under.removed_little for under in self.under if under.measured is not None):
            return "forgot too little to measure"
        if all(under.retain.after is None and under.floor is None for under in self.under):
            return "the retain model was not attacked"
        return "a number is missing"

    @property
    def bypassed_by(self) -> tuple[str, ...]:
        """Attacks that run the model without the method."""
        bypassed = [attack_of(under.variant) for under in self.under if under.bypassed]
        return tuple(dict.fromkeys(bypassed))

    def at(self, variant: str) -> UnderAttack | None:
        """Return the setting under a variant."""
        return next((under for under in self.under if under.variant == variant), None)

    def worst_point(self, attack: str) -> UnderAttack | None:
        """Return the setting at the point of an attack at which most comes back.

        Returns:
            The last point if no point has a number of lasting; None if the attack did not run.
        """
        points = [under for under in self.under if attack_of(under.variant) == attack]
        scored = [under for under in points if under.lasting is not None]
        if scored:
            return min(scored, key=lambda under: under.lasting or 0.0)
        return points[-1] if points else None

    def only(self, attack: str) -> "AttackedSetting":
        """Return the setting under one attack."""
        under = tuple(under for under in self.under if attack_of(under.variant) == attack)
        curves = tuple(curve for curve in self.curves if curve.attack == attack)
        return replace(self, under=under, curves=curves)

    @property
    def gives_little(self) -> bool:
        """Whether next to nothing comes back, by the interval over seeds.

        One seed cannot show that: an interval over questions is of this one model.
        """
        interval = self.lasting_interval
        return interval is not None and interval.over == "seeds" and 1 - interval.low < LITTLE

    @property
    def comes_back(self) -> bool:
        """Whether the worst attack gives something back, by more than chance.

        Without an interval, the value counts. Of two seeds, the range of values counts.
        """
        lasting, interval = self.lasting, self.lasting_interval
        if lasting is None or self.gives_little:
            return False
        return 1 - lasting > LITTLE if interval is None else interval.high < 1


def _reasons(under: Iterable[UnderAttack]) -> str:
    return "; ".join(dict.fromkeys(item.why_not for item in under))


# All settings of a panel


@dataclass(frozen=True)
class AttackedPanel(OnPanel):
    """The attacked settings of one model and split."""

    column: MetricColumn
    """The memorisation number that attacks are measured by, except those that only sample."""
    variants: tuple[str, ...]
    """In the table's order; without points before the first step."""
    settings: tuple[AttackedSetting, ...]
    """All that were attacked. One that `select` or `tune` has chosen is on its reporting seeds."""
    best: tuple[AttackedSetting, ...]
    """The settings of `Panel.best`, in that order. One that was not attacked has a reason in place
    of a score: another setting's score would not be the method's."""
    without_best: tuple[Best, ...]
    """The methods, or entries, that have no best setting, with the reason."""
    retain: Mapping[str, Shift]
    """The retain model by variant."""
    start: Mapping[str, Shift]
    """The start model by variant."""
    measured: Mapping[str, Yardstick | None]
    """What each variant is measured by; None if the attack can move no number."""
    retain_plain: float | None = None
    """The retain model's number without an attack, over all rows."""
    start_plain: float | None = None
    """The start model's number without an attack, over all rows."""
    chosen_families: frozenset[str] = frozenset()
    """Methods whose settings `select` or `tune` has chosen."""
    has_retain: bool = True
    """Whether the sweep has a retain model."""

    @property
    def attacks(self) -> Mapping[str, tuple[str, ...]]:
        """Variants by attack, for example `{"relearning": ("relearning@1", "relearning@13")}`."""
        variants_of: dict[str, tuple[str, ...]] = {}
        for variant in self.variants:
            attack = attack_of(variant)
            variants_of[attack] = (*variants_of.get(attack, ()), variant)
        return variants_of

    def of(self, setting: Setting) -> AttackedSetting | None:
        """Return a setting under attacks, on the same seeds; None if there is none."""
        runs = {row.run_id for row in setting.rows}
        for item in (*self.best, *self.settings):
            if item.setting == setting and {row.run_id for row in item.setting.rows} == runs:
                return item
        return None

    @cached_property
    def shown(self) -> tuple[AttackedSetting, ...]:
        """The attacked settings whose details are shown: those in `best`.

        For a method without an attacked one there, the best of its attacked settings, or the one
        that keeps most utility if none keeps enough.
        """
        attacked = [setting for setting in self.best if setting.under]
        families = {setting.setting.family for setting in attacked}
        others: dict[str, list[AttackedSetting]] = defaultdict(list)
        for setting in self.settings:
            if setting.setting.family not in families:
                others[setting.setting.family].append(setting)
        return (*attacked, *(max(settings, key=_rank) for settings in others.values()))

    @cached_property
    def most(self) -> AttackedSetting | None:
        """The attacked setting of which most comes back; None if nothing does.

        If `select` or `tune` has chosen a setting of a method, only that one counts.
        """
        best = {item.setting for item in self.best}
        settings = [
            item
            for item in self.settings
            if item.setting in best or item.setting.family not in self.chosen_families
        ]
        scored = [item for item in settings if item.lasting is not None and not item.bypassed_by]
        # Intervals over questions are read from files, so as few as possible are asked for.
        scored.sort(key=lambda item: item.lasting or 0.0)
        return next((item for item in scored if item.comes_back), None)


def _rank(setting: AttackedSetting) -> tuple[bool, float, float, float]:
    """Return a sort key of a method's settings, largest for the best one."""
    forgotten, kept, minus_epoch = merit_of(setting.setting) or (-math.inf, -1.0, 0)
    if setting.keeps_utility:
        return True, forgotten, kept, minus_epoch
    return False, kept, minus_epoch, 0.0


def attacked_panels(
    panels: Sequence[Panel],
    attacked: Sequence[TableRow],
    white_box: Callable[[str], bool] = lambda _: False,
    column: str | None = None,
    before: Iterable[TableRow] = (),
    observed: Callable[[TableRow], Evaluation | None] = lambda _: None,
) -> tuple[AttackedPanel, ...]:
    """Compare every attacked setting with the start and the retain model, by panel.

    Args:
        panels: Panels of the table of plain evaluations, with rows of the start and retain models.
        attacked: `Table.attacked`.
        white_box: Tells by name whether an attack runs the bare weights, without a method at
            inference time.
        column: Memorisation number; defaults to `memorization_column`.
        before: `Table.before`.
        observed: Reads the observations behind a row, for intervals over questions.

    Returns:
        One value for each panel of which a setting was attacked.
    """
    # What a failed run was attacked by says nothing about settings, as in `is_evidence`.
    attacked = [row for row in attacked if row.kind != "run" or is_evidence(row)]
    plain_rows = [row for panel in panels for row in panel.rows]
    column = column or memorization_column(plain_rows, attacked)
    if column is None:
        return ()
    numbers_before = NumbersBefore.of(before)
    found: list[AttackedPanel] = []
    for panel in panels:
        rows = [row for row in attacked if row.panel == panel.panel]
        if any(row.kind == "run" for row in rows):
            comparison = _PanelUnderAttack(panel, rows, white_box, column, numbers_before, observed)
            found.append(comparison.result())
    return tuple(panel for panel in found if panel.settings)


class _PanelUnderAttack:
    """Compares the settings of one panel under attacks with both other models."""

    def __init__(
        self,
        panel: Panel,
        attacked: Sequence[TableRow],
        white_box: Callable[[str], bool],
        column: str,
        numbers_before: NumbersBefore,
        observed: Callable[[TableRow], Evaluation | None],
    ) -> None:
        self.panel = panel
        self.white_box = white_box
        self.column = column
        self.numbers_before = numbers_before
        self.observed = observed
        self.schema = attacked[0].schema
        # Start and retain models have a record for each attack, so that runs decide the order.
        ordered = sorted(attacked, key=lambda row: row.kind != "run")
        names = dict.fromkeys(row.variant for row in ordered)
        self.first_points = {attack_of(name): name for name in names if is_before_attack(name)}
        self.variants = tuple(name for name in names if name not in self.first_points.values())
        # To look up what an attack declares takes long for each row.
        self.steps = {variant: step_of(variant) for variant in self.variants}
        of_runs = {row.variant for row in attacked if row.kind == "run"}
        self.variants_of_runs = tuple(item for item in self.variants if item in of_runs)
        self.measured = {
            variant: yardstick(self.schema, column, variant, attacked) for variant in self.variants
        }
        self.gains_of_retain: dict[str, GainsOfModel | None] = {}
        """By variant, as soon as they are asked for."""
        self.rows_of_kind: dict[str, dict[str, TableRow]] = defaultdict(dict)
        self.rows_of_run: dict[tuple[str, int], dict[str, TableRow]] = defaultdict(dict)
        for row in attacked:
            self.rows_of_kind[row.kind][row.variant] = row
            self.rows_of_run[row.run_id, row.epoch][row.variant] = row

    def result(self) -> AttackedPanel:
        retain_row = self.panel.row("retain")
        best = [
            self._best(item.family, item.setting)
            for item in self.panel.best
            if item.setting is not None
        ]
        settings = [self._setting(setting) for setting in self.panel.settings]
        if self.panel.choices:
            # A choice is shown on its reporting seeds in every view.
            on_reporting_seeds = {item.setting: item for item in best}
            settings = [on_reporting_seeds.get(item.setting, item) for item in settings]
        return AttackedPanel(
            *self.panel.panel,
            column=self.schema.column(self.column),
            variants=self.variants,
            settings=tuple(setting for setting in settings if setting.under),
            best=tuple(best),
            without_best=tuple(best for best in self.panel.best if best.setting is None),
            retain=self.retain,
            start=self.start,
            measured=self.measured,
            retain_plain=None if retain_row is None else retain_row.metrics.get(self.column),
            start_plain=self.panel.at_start(self.column),
            chosen_families=frozenset(choice.family for choice in self.panel.choices),
            has_retain=self.schema.has_retain,
        )

    @cached_property
    def retain(self) -> dict[str, Shift]:
        """The retain model by variant."""
        rows = self.rows_of_kind["retain"]
        plain = self.panel.row("retain")
        return {variant: self._shift(plain, rows, variant) for variant in self.variants}

    @cached_property
    def start(self) -> dict[str, Shift]:
        """The start model by variant; it may have its numbers only in epoch 0 of a run."""
        rows = self.rows_of_kind["fine-tuned"]
        shifts: dict[str, Shift] = {}
        for variant, measured in self.measured.items():
            plain = self.panel.row("fine-tuned")
            if measured is not None:
                plain = self.panel.start_row(measured.before.name) or plain
            shifts[variant] = self._shift(plain, rows, variant)
        return shifts

    def _shift(
        self,
        plain: TableRow | None,
        attacked: Mapping[str, TableRow],
        variant: str,
        *,
        bypassed: bool = False,
    ) -> Shift:
        """Pair a model's number under a variant with its number before the attack.

        Args:
            plain: Row of the model without an attack.
            attacked: Its rows under attacks, by variant.
            variant: Name of the variant.
            bypassed: Whether the attack runs the model without the method.
        """
        measured = self.measured[variant]
        if measured is None:
            return Shift(None, None)
        rows = self._rows(plain, attacked, variant, bypassed=bypassed)
        before = None
        if rows.before is not None:
            numbers = rows.before.metrics
            if not rows.before.variant:
                numbers = self.numbers_before(rows.before, variant)
            before = numbers.get(measured.before.name)
        after = None if rows.after is None else rows.after.metrics.get(measured.after.name)
        return Shift(before, after)

    def _rows(
        self,
        plain: TableRow | None,
        attacked: Mapping[str, TableRow],
        variant: str,
        *,
        bypassed: bool,
    ) -> BeforeAndAfter:
        first = attacked.get(self.first_points.get(attack_of(variant), ""))
        # A method at inference time is gone at the attack's first point already.
        before = plain if first is None or bypassed else first
        return BeforeAndAfter(before, attacked.get(variant))

    def _best(self, family: str, setting: Setting) -> AttackedSetting:
        """Return a method's best setting under attacks, on the seeds that its numbers are of."""
        attacked = self._setting(setting)
        if attacked.under:
            return attacked
        attacked_settings = [
            other
            for other in self.panel.settings
            if other.family == family
            and any(self.rows_of_run.get((row.run_id, row.epoch)) for row in other.rows)
        ]
        epochs = {other.epoch for other in attacked_settings}
        reason = f"it was not attacked at {setting.when}"
        if setting in attacked_settings:
            reason += " (only other seeds of it were)"
        elif setting.epoch in epochs:
            reason += f" (only other settings of {family} were)"
        elif epochs:
            listed = ", ".join(map(str, sorted(epochs)))
            reason += f" (settings of {family} were attacked at {setting.unit.at(listed)})"
        return replace(attacked, not_attacked=reason)

    def _setting(self, setting: Setting) -> AttackedSetting:
        attacked_of_seed = [
            self.rows_of_run.get((row.run_id, row.epoch), {}) for row in setting.rows
        ]
        seen = {variant for rows in attacked_of_seed for variant in rows}
        under = [
            self._under(setting, attacked_of_seed, variant)
            for variant in self.variants
            if variant in seen
        ]
        kept, least = setting.kept, self.panel.least_kept
        unknown = ""
        if least is None:
            unknown = "the start model was not evaluated"
        elif setting.why_not:
            unknown = setting.why_not
        elif kept is None:
            unknown = f"{setting.headline.kept.plain_label} is undefined at {setting.when}"
        # A mean over the other seeds would hide the seed that ended early.
        curves = [] if setting.why_not else _relearning_curves(under, self.steps)
        return AttackedSetting(
            setting,
            tuple(under),
            keeps_utility=kept is not None and least is not None and kept >= least,
            curves=tuple(curves),
            not_attacked=self._not_attacked(setting, seen) if seen else "",
            utility_unknown=unknown,
        )

    def _not_attacked(self, setting: Setting, seen: set[str]) -> str:
        """Name what other settings were attacked by and this one was not; empty if nothing."""
        missing = [variant for variant in self.variants_of_runs if variant not in seen]
        reasons: list[str] = []
        for variant in missing:
            attack, point = attack_of(variant), point_of(variant)
            if any(attack_of(other) == attack for other in seen):
                reasons.append(f"{attack} did not reach {point} at {setting.when}")
            else:
                reasons.append(f"{attack} did not attack it at {setting.when}")
        return "; ".join(dict.fromkeys(reasons))

    def _under(
        self, setting: Setting, attacked_of_seed: Sequence[Mapping[str, TableRow]], variant: str
    ) -> UnderAttack:
        measured = self.measured[variant]
        bypassed = setting.rows[0].at_inference and self.white_box(attack_of(variant))
        shifts = tuple(
            self._shift(plain, rows, variant, bypassed=bypassed)
            for plain, rows in zip(setting.rows, attacked_of_seed, strict=True)
        )
        read_questions: Callable[[], QuestionGains | None] = lambda: None  # noqa: E731
        if measured is not None and len(shifts) == 1 and not setting.why_not:
            rows = self._rows(setting.rows[0], attacked_of_seed[0], variant, bypassed=bypassed)
            read_questions = partial(self._questions, variant, rows)
        return UnderAttack(
            variant,
            shifts,
            self.retain[variant],
            self.start[variant],
            bypassed,
            sign=1.0 if measured is None else measured.sign,
            measured=measured,
            floor=None if measured is None else self._floor(measured),
            missing=self._missing(variant, setting, attacked_of_seed, shifts),
            lacks_seeds=bool(setting.why_not),
            read_questions=read_questions,
        )

    def _floor(self, measured: Yardstick) -> float | None:
        """Return the number of a model that has memorised nothing, if there is no retain model."""
        if self.schema.has_retain:
            return None
        least, most = measured.before.bounds
        nothing = least if measured.sign > 0 else most
        return nothing if math.isfinite(nothing) else None

    def _questions(self, variant: str, rows: BeforeAndAfter) -> QuestionGains | None:
        """Compute the gains by question of one run under a variant."""
        measured = self.measured[variant]
        if measured is None:
            return None
        columns = measured.before.name, measured.after.name
        if variant not in self.gains_of_retain:
            retain = self._rows(
                self.panel.row("retain"), self.rows_of_kind["retain"], variant, bypassed=False
            )
            self.gains_of_retain[variant] = gains_of(*columns, retain, self.observed)
        own = gains_of(*columns, rows, self.observed)
        null = self.gains_of_retain[variant]
        if own is None:
            return None
        if self._floor(measured) is not None:
            null = own._replace(values=np.zeros_like(own.values))
        return question_gains(own, null, measured.sign)

    def _missing(
        self,
        variant: str,
        setting: Setting,
        attacked_of_seed: Sequence[Mapping[str, TableRow]],
        shifts: Sequence[Shift],
    ) -> str:
        """Return the reason why a setting has no number under a variant; empty if none is known."""
        attack, measured = attack_of(variant), self.measured[variant]
        if measured is None:
            return (
                f"{attack} leaves greedy answers as they are, and no metric compares sampled "
                "answers with them"
            )
        for row, attacked in zip(setting.rows, attacked_of_seed, strict=True):
            if variant not in attacked:
                was_attacked = any(attack_of(other) == attack for other in attacked)
                if was_attacked:
                    return (
                        f"{attack} did not reach {point_of(variant)} with seed {row.seed} at "
                        f"{row.when}"
                    )
                return f"{attack} did not attack seed {row.seed} at {row.when}"
        plain = [row.metrics.get(measured.before.name) for row in setting.rows]
        if None not in plain and any(shift.before is None for shift in shifts):
            label = measured.before.label.lower()
            return f"{attack} may leave rows out, and {label} without it is known only for all rows"
        return ""


def _relearning_curves(
    under: Iterable[UnderAttack], steps: Mapping[str, int | None]
) -> list[RelearningCurve]:
    """Return a setting's curve for each attack that is evaluated after two steps or more."""
    by_attack: dict[str, dict[int, UnderAttack]] = defaultdict(dict)
    for item in under:
        step = steps[item.variant]
        if step is not None:
            by_attack[attack_of(item.variant)][step] = item
    return [
        _relearning_curve(attack, by_step)
        for attack, by_step in by_attack.items()
        if len(by_step) >= 2
    ]


def _relearning_curve(attack: str, by_step: Mapping[int, UnderAttack]) -> RelearningCurve:
    steps = sorted(by_step)
    points = [by_step[step] for step in steps]
    seed_count = len(points[0].shifts)
    measured = points[0].measured
    bounds = (-math.inf, math.inf) if measured is None else measured.after.bounds
    return RelearningCurve(
        attack,
        steps=(0, *steps),
        seeds=tuple(_along([point.shifts[i] for point in points]) for i in range(seed_count)),
        retain=_along([point.retain for point in points]),
        start=_along([point.start for point in points]),
        sign=points[0].sign,
        bounds=bounds,
    )


def _along(shifts: Sequence[Shift]) -> tuple[float | None, ...]:
    """Return a model's number before the attack, followed by those at its points."""
    return (shifts[0].before, *(shift.after for shift in shifts))
