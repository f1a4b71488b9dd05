"""The best setting of each method on each panel, and the rule of choice.

The rows of a table are grouped by model and split (`panels`). In each `Panel`, runs that differ
only in their seed are averaged to settings (`settings.py`), and each method gets its best setting
(`Panel.best`). The rule behind every "best" is stated there and nowhere else. In a sweep with
`select` or `tune`, a method's best is the setting that was chosen on some seeds, with its runs on
the other seeds. `selection.py` makes these choices.

Everything is computed from rows in memory.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.setting_order import best_first, best_of, shared_places
from unlearnbench.analysis.settings import (
    OnPanel,
    PanelKey,
    Setting,
    average_seeds,
    headline_of_rows,
    is_evidence,
    panel_order,
    unit_of_rows,
)
from unlearnbench.analysis.start_model import Start
from unlearnbench.api.benchmark import Headline
from unlearnbench.config.unit import Unit
from unlearnbench.results.table import TableRow
from unlearnbench.stats.pareto_front import pareto_front

UTILITY_SHARE = 0.8
"""Share of the start model's utility that a setting must keep to be a method's best."""
COLLAPSE_SHARE = 0.5
"""Below this share of the start model's utility a model counts as collapsed."""


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

        A choice may keep less than that on the seeds that report it. Then it comes after the
        choices that keep enough.
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
