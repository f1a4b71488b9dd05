"""Best settings of methods: averages over seeds, the start model, and the rule of choice.

The rows of a table are grouped by model and split (`panels`). In each `Panel`, runs that differ
only in their seed are averaged to settings (`average_seeds`), and each method gets its best setting
(`Panel.best`). The rule behind every "best" is stated there and nowhere else. In a sweep with
`select` or `tune`, a method's best is the setting that was chosen on some seeds, with its runs on
the other seeds. `selection.py` makes these choices.

Everything is computed from rows in memory.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from statistics import fmean
from typing import Any

from unlearnbench.api.benchmark import (
    Headline,
    SplitKey,
    split_order,
    split_percent,
)
from unlearnbench.config.profiles import UNLEARNBENCH
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.evaluation.start_check import StartCheck
from unlearnbench.evaluation.word_check import MOST_ANSWERS
from unlearnbench.results.records import Record
from unlearnbench.results.run_settings import run_settings
from unlearnbench.results.table import Numbers, TableRow
from unlearnbench.stats.pareto_front import pareto_front
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval, interval_of_all, is_above

UTILITY_SHARE = 0.8
"""Share of the start model's utility that a setting must keep to be a method's best."""
COLLAPSE_SHARE = 0.5
"""Below this share of the start model's utility a model counts as collapsed."""

PanelKey = tuple[str, SplitKey]
"""Model and split."""
Merit = tuple[float, float, int]
"""(forgotten, kept, −epoch): the larger, the better the setting. `forgotten` is the headline's
number as `HeadlineMetric.oriented`, `kept` is the headline's number as it is."""


def panel_label(model: str, split: SplitKey) -> str:
    """Return `tiny, forget 10 %`."""
    return f"{model}, {split_percent(split)}"


@dataclass(frozen=True)
class OnPanel:
    """Model and split that a value belongs to."""

    model: str
    forget_fraction: SplitKey

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(*self.panel)

    @property
    def panel(self) -> PanelKey:
        """Model and split."""
        return self.model, self.forget_fraction


def panel_order(panel: PanelKey) -> tuple[str, tuple[bool, SplitKey]]:
    """Return a sort key of panels."""
    return panel[0], split_order(panel[1])


def headline_of_rows(rows: Iterable[TableRow]) -> Headline:
    """Return the headline that all rows of a table share."""
    return next((row.headline for row in rows), None) or default_headline()


def unit_of_rows(rows: Iterable[TableRow]) -> Unit:
    """Return what all rows of a table count their moments in: epochs, or steps."""
    return next((row.unit for row in rows), Unit.EPOCH)


@dataclass(frozen=True, eq=False)
class Setting(OnPanel):
    """One setting after one epoch (or some steps), averaged over its seeds."""

    method: str
    family: str
    learning_rate: float | None
    epoch: int
    rows: tuple[TableRow, ...]
    """One per seed."""
    metrics: Mapping[str, float | None]
    """Means; None if any seed has no number: a collapsed seed must not disappear in a mean."""
    why_not: str = ""
    """Why no mean is defined although there are rows: another seed ended before this epoch."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def headline(self) -> Headline:
        """Headline of the benchmark."""
        return headline_of_rows(self.rows)

    @property
    def unit(self) -> Unit:
        """What `epoch` counts: epochs, or steps in a sweep by steps."""
        return unit_of_rows(self.rows)

    @property
    def when(self) -> str:
        """`epoch 3`; in a sweep by steps `step 75`."""
        return self.unit.at(self.epoch)

    @property
    def kept(self) -> float | None:
        """Mean of what is kept, by the headline."""
        return self.metrics.get(self.headline.kept.column)

    @property
    def forgotten(self) -> float | None:
        """Mean of what is forgotten, by the headline."""
        return self.metrics.get(self.headline.forgotten.column)

    @property
    def key(self) -> tuple[str, SplitKey, str, float | None, str, int]:
        """Identity of the setting within a table."""
        setting_id = self.rows[0].setting_id if self.rows else ""
        return (*self.panel, self.method, self.learning_rate, setting_id, self.epoch)

    @property
    def trajectory(self) -> tuple[str, SplitKey, str, float | None, str]:
        """What all epochs of the setting share. Labels of several tables may be equal."""
        return self.key[:-1]

    def spread(self, metric: str) -> tuple[float, float] | None:
        """Return the smallest and largest value over seeds; None for fewer than two numbers."""
        values = list(self.by_seed(metric).values())
        return (min(values), max(values)) if len(values) > 1 else None

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the number of each seed that has one.

        The result is empty if another seed of the setting ended before this epoch, see `why_not`.
        """
        if self.why_not:
            return {}
        numbers: dict[int, float] = {}
        for row in self.rows:
            value = row.metrics[metric]
            if value is not None:
                numbers[row.seed] = value
        return numbers

    def interval(self, metric: str) -> Interval | None:
        """Return the mean's t interval over seeds, within the bounds of the metric.

        Returns:
            None for one seed, and if a seed has no number.
        """
        if self.why_not or not self.rows:
            return None
        bounds = self.rows[0].schema.column(metric).bounds
        return interval_of_all([row.metrics[metric] for row in self.rows], bounds)


@dataclass(frozen=True)
class EarlyEnd:
    """A run that ended early, and has no number after some epoch."""

    run_id: str
    setting: tuple[str, SplitKey, str, float | None, str]
    """Model, split, method, learning rate and `TableRow.setting_id`."""
    seed: int
    due: frozenset[int]
    """Epochs after which the run would have been evaluated; empty if that is not known."""
    last: int
    """The last epoch at which the run has a number; 0 without one."""
    text: str
    """What happened, in a sentence: `seed 2 collapsed at epoch 3`."""

    def lacks(self, epoch: int) -> bool:
        """Whether the run has no number at an epoch because it ended early."""
        return epoch > self.last and (not self.due or epoch in self.due)


def early_ends(records: Iterable[Record], rows: Iterable[TableRow]) -> tuple[EarlyEnd, ...]:
    """List the runs that collapsed, were stopped by a search, or ran out of patience.

    A run that failed is not listed. It says nothing about its setting, and is tried again.

    Args:
        records: All records of a table.
        rows: The rows of the table.
    """
    records = list(records)
    ended = [record for record in records if record.kind == "run" and _how_ended(record)]
    if not ended:
        return ()
    setting_ids = {row.run_id: row.setting_id for row in rows if row.kind == "run"}
    if any(record.id not in setting_ids for record in ended):
        # A run that collapsed before its first evaluation has no row.
        setting_ids |= {id_: settings.id for id_, settings in run_settings(records).items()}
    ends: list[EarlyEnd] = []
    for record in ended:
        last = max((result.epoch for result in record.epochs), default=0)
        due = frozenset(record.spec.get("evaluate_at") or ())
        setting = (*record.panel, record.method, record.learning_rate, setting_ids[record.id])
        how = _how_ended(record)
        ends.append(EarlyEnd(record.id, setting, record.seed, due, last, how))
    return tuple(ends)


def _how_ended(record: Record) -> str:
    """Return what ended a run early: `seed 2 collapsed at epoch 3`; empty if nothing did."""
    unit = record.unit
    last = max((result.epoch for result in record.epochs), default=0)
    if record.status == "collapsed":
        # The last step may be in an epoch that was not evaluated any more.
        begun = max((step.moment(unit) for step in record.steps), default=0)
        return f"seed {record.seed} collapsed at {unit.at(max(last, begun, 1))}"
    if record.status == "stopped":
        return f"seed {record.seed} was stopped by the search after {unit.at(last)}"
    if record.ended:
        return f"seed {record.seed} ran out of patience after {unit.at(last)}"
    return ""


@dataclass(frozen=True)
class Choice(OnPanel):
    """What `select` or `tune` has chosen for a method on one model and split, or why nothing."""

    family: str
    """Method with its retain term, without hyperparameters."""
    entry: str
    """Name of the entry whose trials it was chosen from; the method's, unless several entries of
    the method have choices."""
    label: str
    """Label of the chosen setting; the entry's name if nothing was chosen."""
    epoch: int | None
    """The chosen epoch."""
    runs: frozenset[str]
    """Ids of the runs of the chosen setting on the seeds that report it."""
    trials: frozenset[str]
    """Ids of the runs that it was chosen from."""
    chosen_on: tuple[int, ...]
    """Seeds of the choice."""
    candidates: int = 0
    """Number of settings that have numbers for all seeds of the choice."""
    worth: tuple[float, ...] = ()
    """Sort key on the seeds of the choice, largest for the best entry of a method."""
    why_not: str = ""
    """Why nothing was chosen, or why the choice has no runs."""
    has_moved: bool = False
    """Whether the sweep ran another choice on the seeds that report it. A choice moves if the
    numbers that it was made by change, for example with the code of a metric."""
    sweep: str = ""
    """Name of the sweep."""
    sweep_id: str = ""
    """Hash that tells the sweep apart from others of its name on a leaderboard."""
    sweep_runs: frozenset[str] = frozenset()
    """Ids of all runs of the sweep. The page's own rule does not apply to them."""
    unit: Unit = Unit.EPOCH
    """What `epoch` counts: epochs, or steps in a sweep by steps."""


@dataclass(frozen=True)
class Best(OnPanel):
    """A method's best setting on one model and split."""

    method: str
    """Label of the setting; the method's without one."""
    family: str
    setting: Setting | None
    """None if no setting keeps the utility, and for a choice that has no numbers."""
    label: str = ""
    """Name of the entry, if several of a method have a best setting; empty otherwise."""
    keeps: bool = True
    """Whether it keeps enough utility. A choice may keep less on the seeds that report it, and then
    has no place among the methods."""
    why_not: str = ""
    """Why there is no setting, or why it has no number or no place; empty if it has both."""
    choice: Choice | None = None
    """The choice that it is of; None if it is the best by the page's rule."""
    lost: str = ""
    """Which seeds ended early, if they left the method without a best setting; empty otherwise."""

    @property
    def ranked(self) -> Setting | None:
        """The setting if it has a place among the methods."""
        return self.setting if self.keeps else None

    @property
    def name(self) -> str:
        """What tells it apart from the others of its panel: the method, or the entry."""
        return self.label or self.family


def is_evidence(row: TableRow) -> bool:
    """Whether a row of a run says something about the run's setting.

    A run that failed says nothing, also at epochs that it had reached: it is tried again.
    """
    return row.kind == "run" and row.status != "failed"


def average_seeds(rows: Iterable[TableRow], ends: Iterable[EarlyEnd] = ()) -> tuple[Setting, ...]:
    """Average the runs that differ only in their seed.

    Args:
        rows: Rows of a table. Rows of start and retain models and of failed runs are left out.
        ends: Runs that ended early. A setting has no mean at an epoch that one of its seeds did not
            reach, since the mean of the others would hide the seed.

    Returns:
        A setting for each epoch, in the table's order.
    """
    ends_of_setting: dict[tuple[Any, ...], list[EarlyEnd]] = defaultdict(list)
    for end in ends:
        ends_of_setting[end.setting].append(end)

    def place(row: TableRow) -> tuple[Any, ...]:
        return (*row.place_of_setting, row.epoch)

    runs = [row for row in rows if is_evidence(row)]
    runs.sort(key=lambda row: (*place(row), row.seed, row.run_id))
    settings: list[Setting] = []
    for _, group in groupby(runs, key=place):
        members = tuple(group)
        first = members[0]
        setting = (*first.panel, first.family, first.learning_rate, first.setting_id)
        why_not = _missing_seeds(members, ends_of_setting.get(setting, ()))
        settings.append(
            Setting(
                model=first.model,
                forget_fraction=first.forget_fraction,
                method=first.method,
                family=first.family,
                learning_rate=first.learning_rate,
                epoch=first.epoch,
                rows=members,
                metrics=_means(members, is_defined=not why_not),
                why_not=why_not,
            )
        )
    return tuple(settings)


def _missing_seeds(rows: Sequence[TableRow], ends: Sequence[EarlyEnd]) -> str:
    """Return which other seeds of a setting ended before the rows' epoch; empty if none did."""
    seeds = {row.seed for row in rows}
    epoch = rows[0].epoch
    missing = [end for end in ends if end.seed not in seeds and end.lacks(epoch)]
    missing.sort(key=lambda end: end.seed)
    return "; ".join(dict.fromkeys(end.text for end in missing))


def _means(rows: Sequence[TableRow], *, is_defined: bool) -> Mapping[str, float | None]:
    """Average each number over the rows of a setting; None for each if no mean is defined."""
    if not is_defined:
        return Numbers(dict.fromkeys(rows[0].metrics))
    if len(rows) == 1:
        return rows[0].metrics
    return Numbers({name: mean_of([row.metrics[name] for row in rows]) for name in rows[0].metrics})


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is missing, or if there are no values."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def best_of(settings: Sequence[Setting], utility: float) -> Setting | None:
    """Return the setting after epoch 0 that forgets most and keeps at least `utility`.

    Both are numbers of the headline. Ties go to the higher utility, then to the earlier epoch, and
    then to the last setting in the given order.
    """
    best: Setting | None = None
    best_merit: Merit | None = None
    for setting in settings:
        merit = merit_of(setting)
        if merit is None:
            continue
        _, kept, _ = merit
        if kept >= utility and (best_merit is None or merit >= best_merit):
            best, best_merit = setting, merit
    return best


def merit_of(setting: Setting) -> Merit | None:
    """Return a sort key of settings, largest for the best; None at epoch 0 and without a number."""
    forgotten, kept = setting.forgotten, setting.kept
    if setting.epoch == 0 or forgotten is None or kept is None:
        return None
    return setting.headline.forgotten.oriented(forgotten), kept, -setting.epoch


def best_first(setting: Setting | None, family: str) -> tuple[float, float, int, str]:
    """Return a sort key of methods in every view: the criterion of `best_of`, then the name."""
    merit = None if setting is None else merit_of(setting)
    forgotten, kept, minus_epoch = merit or (-math.inf, 0.0, 0)
    return -forgotten, -kept, -minus_epoch, family


def shared_places(settings: Sequence[Setting]) -> tuple[int | None, ...]:
    """Return the places of settings that stand best first, by what they have forgotten.

    A setting has a place of its own if the first one of the place before is better beyond chance
    (`is_above`); otherwise it shares that place.

    Returns:
        None for a setting with numbers of fewer than `ENOUGH_SEEDS` seeds. Nothing can be shown to
        be better or worse beyond chance than such a setting, and a shared place would read as a
        tie. The others are counted without it.
    """
    places: list[int | None] = []
    first_of_place: dict[int, float] = {}
    place = 0
    count = 0
    for setting in settings:
        metric = setting.headline.forgotten
        by_seed = setting.by_seed(metric.column)
        if len(by_seed) < ENOUGH_SEEDS:
            places.append(None)
            continue
        count += 1
        oriented = {seed: metric.oriented(value) for seed, value in by_seed.items()}
        if count == 1 or is_above(first_of_place, oriented):
            place = count
            first_of_place = oriented
        places.append(place)
    return tuple(places)


@dataclass(frozen=True)
class Start(OnPanel):
    """The model that the runs of one model and split begin from."""

    utility: float | None
    """The headline's number of what is kept; None if the model was not evaluated."""
    quality: float | None
    """The headline's number of what is forgotten; None if the model was not evaluated, and if the
    number needs a retain model and there is none."""
    headline: Headline
    """Headline of the benchmark."""
    uncounted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of true answers by set whose words the profile does not count."""
    check: StartCheck | None = None
    """What it knew of the rows; None if nothing was measured."""

    @property
    def corner(self) -> tuple[float, float] | None:
        """Reference point of hypervolumes: (0, `quality` as `HeadlineMetric.oriented`).

        A point above it keeps something and has forgotten something.
        """
        if self.quality is None:
            return None
        return 0.0, self.headline.forgotten.oriented(self.quality)

    @property
    def stops(self) -> bool:
        """Whether a sweep stops before the first run from this model, see `start_check`."""
        return self.check is not None and not self.check.passes

    @property
    def doubt(self) -> str:
        """Why it is not sure that this model has learned the forget rows; empty if it is."""
        return "" if self.check is None else self.check.doubt

    @property
    def fault(self) -> str:
        """Reason why runs from this model show nothing about methods; empty if there is none.

        A model that knows nothing has no utility to keep, so every setting keeps it. A model that
        the test does not distinguish from the retain model passes it without any unlearning. Both
        also follow from what `start_check` measures, which is more exact if it is known.
        """
        profile_fault = self._profile_fault()
        if profile_fault:
            return profile_fault
        if self.check is not None and self.check.fault:
            return self.check.fault
        if self.utility is not None and not self._has_utility:
            least = self.headline.least_kept or 0.0
            below = f", below {least:g}" if least else ""
            return (
                f"the start model knows nothing: its {self.headline.kept.plain_label} is "
                f"{self.utility:.2f}{below}, so that there is nothing "
                "to keep and nothing to forget. Prepare it with more epochs or at another learning "
                "rate (the model's preparation), or name one that has learned the data (fine_tuned)"
            )
        test = self.headline.forgotten.test
        if self.quality is not None and test and self.quality > math.log10(test.level):
            return (
                f"the start model has nothing left to forget: before any unlearning its "
                f"{test.label} is p = {p_value(self.quality)}, above {test.level:g}, as of a model "
                "that never saw the forget set. Train it longer on the data, or evaluate more "
                "forget questions"
            )
        return ""

    @property
    def _has_utility(self) -> bool:
        """Whether there is utility to keep, as far as known."""
        if self.utility is None:
            return True
        return self.utility > 0 and self.utility >= (self.headline.least_kept or 0.0)

    def _profile_fault(self) -> str:
        """Say that a number is small only because the profile does not count the answers' words.

        Empty if it counts them, or if no number is small.
        """
        if max(self.uncounted.values(), default=0.0) < MOST_ANSWERS:
            return ""
        if self.utility is not None and not self._has_utility:
            number = f"{self.headline.kept.plain_label} is {self.utility:.2f}"
        elif self.check is not None and self.check.answered and not self.check.has_answers:
            number = f"ROUGE on retain rows is {self.check.answered.start:.2f}"
        else:
            return ""
        sets = ", ".join(self.uncounted)
        return (
            f"the evaluation profile does not count the answers' words: {number} because "
            "the profile counts only words of a-z and 0-9, and the true answers of "
            f"{sets} are mostly in other scripts. Set evaluation.profile to "
            f"{UNLEARNBENCH.name} and run again"
        )

    def unmoved(self, quality: float | None) -> bool:
        """Return whether a setting with this number has forgotten no more than the start model."""
        if quality is None or self.quality is None:
            return False
        oriented = self.headline.forgotten.oriented
        return oriented(quality) <= oriented(self.quality)


@dataclass(frozen=True, eq=False)
class Panel(OnPanel):
    """The rows of one model and split, and what follows from them, each computed once."""

    rows: tuple[TableRow, ...]
    choices: tuple[Choice, ...] = ()
    """What `select` or `tune` has chosen here; empty without such a rule."""
    ends: tuple[EarlyEnd, ...] = ()
    """Runs that ended early."""

    @cached_property
    def headline(self) -> Headline:
        """The two numbers that methods are ranked by."""
        return headline_of_rows(self.rows)

    @property
    def unit(self) -> Unit:
        """What its moments are counted in: epochs, or steps in a sweep by steps."""
        return unit_of_rows(self.rows)

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting after each epoch, averaged over all its seeds."""
        return average_seeds(self.rows, self.ends)

    @cached_property
    def start(self) -> Start:
        """The start model of the runs."""
        kept, forgotten = self.headline.kept.column, self.headline.forgotten.column
        numbers = self.at_start(kept), self.at_start(forgotten)
        row = self.start_row(kept)
        uncounted = {} if row is None else row.uncounted
        checks = (row.start_check for row in self.rows)
        check = next((check for check in checks if check is not None), None)
        return Start(*self.panel, *numbers, self.headline, uncounted, check)

    @cached_property
    def questions(self) -> int | None:
        """Number of forget questions of the headline's test.

        None if the headline has no test, and if the number differs between rows.
        """
        test = self.headline.forgotten.test
        if test is None:
            return None
        numbers = [row.metrics.get(test.questions) for row in self.rows]
        counts = {int(number) for number in numbers if number is not None}
        return counts.pop() if len(counts) == 1 else None

    @property
    def least_kept(self) -> float | None:
        """The utility that a method's best setting must keep; None without a start model."""
        return None if self.start.utility is None else UTILITY_SHARE * self.start.utility

    @cached_property
    def front(self) -> tuple[Setting, ...]:
        """Settings after epoch 0 that no other setting beats in both numbers, by what they keep.

        They are ordered by their utility, see `pareto_front`.
        """
        oriented = self.headline.forgotten.oriented
        moved: list[Setting] = []
        points: list[tuple[float, float]] = []
        for setting in self.settings:
            kept, forgotten = setting.kept, setting.forgotten
            if setting.epoch > 0 and kept is not None and forgotten is not None:
                moved.append(setting)
                points.append((kept, oriented(forgotten)))
        return tuple(moved[place] for place in pareto_front(points))

    @property
    def collapse_below(self) -> float | None:
        """Utility below which a model counts as collapsed; None if the start model has a fault."""
        utility = None if self.start.fault else self.start.utility
        return None if utility is None else COLLAPSE_SHARE * utility

    def has_collapsed(self, setting: Setting) -> bool:
        """Whether a setting keeps too little for its other number to mean anything."""
        kept = setting.kept
        return self.collapse_below is not None and kept is not None and kept < self.collapse_below

    def share_kept(self, kept: float | None) -> float | None:
        """Return a utility as a share of the start model's; None if one of both is unknown."""
        if kept is None or not self.start.utility:
            return None
        return kept / self.start.utility

    @cached_property
    def best(self) -> tuple[Best, ...]:
        """Each method's best setting, the best method first.

        If `select` or `tune` has chosen settings on some seeds, these are the best, with their runs
        on the other seeds and at the chosen epoch. Without numbers on these seeds, a method has a
        choice and no setting. Each entry of a method has its own choice.

        Without such a rule, a method's best setting is the one that forgets most among the settings
        that keep at least `UTILITY_SHARE` of the start model's utility. Both are numbers of the
        headline (for TOFU, log10 Forget Quality and Model Utility). Without the condition, models
        that no longer produce text could be the best. Ties are decided as in `best_of`. If the
        start model has a fault, no setting is the best.

        A choice that keeps less than that on the seeds that report it stands behind the choices
        that keep enough.
        """
        bests = [self._chosen(choice) for choice in self.choices]
        settings_of_method: dict[str, list[Setting]] = defaultdict(list)
        for setting in self.judged:
            settings_of_method[setting.family].append(setting)
        for family, settings in settings_of_method.items():
            bests.append(self._best_by_rule(family, settings))
        bests.sort(key=lambda best: (not best.keeps, *best_first(best.setting, best.name)))
        return _told_apart(bests)

    @cached_property
    def places(self) -> tuple[int | None, ...]:
        """Places of the methods in `best`, in its order; None for a method without a place."""
        ranked = [best.ranked for best in self.best if best.ranked is not None]
        places = iter(shared_places(ranked))
        return tuple(None if best.ranked is None else next(places) for best in self.best)

    def most_kept(self, family: str) -> float | None:
        """Return the highest utility of a method's settings after training; None without one."""
        utilities = [
            setting.kept
            for setting in self.judged
            if setting.family == family and setting.epoch > 0 and setting.kept is not None
        ]
        return max(utilities, default=None)

    @cached_property
    def judged(self) -> tuple[Setting, ...]:
        """The settings that the page's own rule applies to: of sweeps that choose nothing."""
        if not self.choices:
            return self.settings
        rows = [row for row in self.rows if row.run_id not in self.choosing_runs]
        return average_seeds(rows, self.ends)

    @cached_property
    def choosing_runs(self) -> frozenset[str]:
        """Ids of the runs of sweeps that choose."""
        return frozenset(run_id for choice in self.choices for run_id in choice.sweep_runs)

    def _best_by_rule(self, family: str, settings: Sequence[Setting]) -> Best:
        """Return the best setting of a method by the page's rule, or why there is none."""
        least = None if self.start.fault else self.least_kept
        best = None if least is None else best_of(settings, least)
        if best is not None:
            return Best(*self.panel, best.method, family, best)
        if self.not_judged:
            return Best(*self.panel, family, family, None, why_not=self.not_judged)
        share = f"{100 * UTILITY_SHARE:g} % of the start model's {self.headline.kept.plain_short}"
        why_not = f"no setting keeps at least {share}"
        lost = "; ".join(dict.fromkeys(other.why_not for other in settings if other.why_not))
        if lost:
            why_not = f"no setting with a mean over its seeds keeps at least {share} ({lost})"
        return Best(*self.panel, family, family, None, why_not=why_not, lost=lost)

    @property
    def not_judged(self) -> str:
        """Why no method can have a best setting here; empty if methods can."""
        if not self.start.utility:
            return "not judged: no start model"
        if self.start.fault:
            # A fault is a claim, then a colon and its details.
            claim = self.start.fault.partition(":")[0]
            return f"not judged: {claim}"
        return ""

    def _chosen(self, choice: Choice) -> Best:
        """Return a choice with its numbers on the seeds that report it, or why it has none."""
        label = "" if choice.entry == choice.family else choice.entry
        best = Best(
            *self.panel,
            choice.label,
            choice.family,
            None,
            label=label,
            why_not=self.not_judged or choice.why_not,
            choice=choice,
        )
        if best.why_not:
            return best
        rows = [
            row
            for row in self.rows
            if row.run_id in choice.runs and row.epoch == choice.epoch and is_evidence(row)
        ]
        ends = [end for end in self.ends if end.run_id in choice.runs]
        if not rows:
            return replace(best, why_not=_why_no_rows(choice, ends))
        (setting, *_) = average_seeds(rows, ends)
        kept = setting.kept
        keeps = self.least_kept is not None and kept is not None and kept >= self.least_kept
        why_not = setting.why_not
        if not keeps and not why_not:
            seeds = ", ".join(str(row.seed) for row in setting.rows)
            share = f"{100 * UTILITY_SHARE:g} % of the start model's"
            why_not = f"keeps less than {share} {self.headline.kept.plain_short} on seeds {seeds}"
        return replace(best, method=setting.method, setting=setting, keeps=keeps, why_not=why_not)

    def row(self, kind: str) -> TableRow | None:
        """Return the first row of a kind: `fine-tuned` (the start model) or `retain`."""
        return next((row for row in self.rows if row.kind == kind), None)

    def start_row(self, column: str) -> TableRow | None:
        """Return the first row of the start model with a number in a column.

        If the start model has no record, epoch 0 of a run has its numbers.
        """
        starts = [row for row in self.rows if row.kind == "fine-tuned"]
        if not starts:
            starts = [row for row in self.rows if row.kind == "run" and row.epoch == 0]
        return next((row for row in starts if row.metrics.get(column) is not None), None)

    def at_start(self, column: str) -> float | None:
        """Return a number of the start model, see `start_row`."""
        row = self.start_row(column)
        return None if row is None else row.metrics.get(column)


def _why_no_rows(choice: Choice, ends: Sequence[EarlyEnd]) -> str:
    """Return why a choice that has runs has no number at its epoch."""
    lost = [end.text for end in ends if choice.epoch is not None and end.lacks(choice.epoch)]
    if lost:
        return f"chosen; {'; '.join(dict.fromkeys(lost))}"
    return "chosen; no run on the other seeds has ended yet"


def _told_apart(bests: Sequence[Best]) -> tuple[Best, ...]:
    """Add the sweep's name to choices that have the same name, as on a leaderboard."""
    counts = Counter(best.name for best in bests)
    told: list[Best] = []
    for best in bests:
        if counts[best.name] > 1 and best.choice is not None:
            label = f"{best.name} ({best.choice.sweep})"
            told.append(replace(best, label=label))
        else:
            told.append(best)
    return tuple(told)


def panels(
    rows: Iterable[TableRow], choices: Iterable[Choice] = (), ends: Iterable[EarlyEnd] = ()
) -> tuple[Panel, ...]:
    """Return the panels of a table, by model and split.

    Args:
        rows: The rows of plain evaluations.
        choices: What `select` or `tune` has chosen on all panels.
        ends: Runs that ended early, see `early_ends`.
    """
    rows_of_panel: dict[PanelKey, list[TableRow]] = defaultdict(list)
    for row in rows:
        rows_of_panel[row.panel].append(row)
    choices_of_panel: dict[PanelKey, list[Choice]] = defaultdict(list)
    for choice in choices:
        choices_of_panel[choice.panel].append(choice)
    ends = tuple(ends)
    return tuple(
        Panel(*key, tuple(rows_of_panel[key]), tuple(choices_of_panel[key]), ends)
        for key in sorted(rows_of_panel, key=panel_order)
    )


def best_per_method(panels: Iterable[Panel]) -> tuple[Best, ...]:
    """List `Panel.best` of all panels."""
    return tuple(best for panel in panels for best in panel.best)


def p_value(log10: float) -> str:
    """Return a p-value from its logarithm: `0.82`, `1.3e-05`; below 1e-300 only a power of ten."""
    # Below that, 10**log10 would be 0 in floating point.
    return f"{10**log10:.2g}" if log10 > -300 else f"1e{math.floor(log10)}"
