"""The rules of `select`: which setting of a method is chosen, from runs on some seeds.

`forget-quality` chooses the setting that forgets most among those that keep enough utility.
`hypervolume` chooses the setting whose epochs span the largest area of kept × forgotten. A setting
counts only if every seed of the choice has a number.

Each rule is a class, a subclass of `SelectionRule`, which has everything that depends on the rule.
`RULES` lists the classes. Only the name of a rule and the keys of its options are declared
elsewhere, in `SelectSettings` (`config/search.py`), because a configuration is read before there is
anything to choose from. `tests/numbers/analysis/test_selection.py` compares both places.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from unlearnbench.analysis.best_settings import Panel, panels
from unlearnbench.analysis.setting_order import merit_of
from unlearnbench.analysis.settings import OnPanel, Setting
from unlearnbench.analysis.start_model import Start
from unlearnbench.analysis.wording import best_rule, share_kept
from unlearnbench.api.benchmark import Headline
from unlearnbench.config.search import RuleName, SelectSettings
from unlearnbench.config.unit import Unit
from unlearnbench.results.table import TableRow
from unlearnbench.stats.pareto_front import hypervolume

NO_NUMBERS = "no setting has numbers for all seeds of the choice"


@dataclass(frozen=True)
class ChosenSetting(OnPanel):
    """A method's best setting on one model and split, or why there is none.

    The fields are keys of `selection.json`.
    """

    method: str
    """Label without hyperparameters."""
    candidates: int
    """Number of settings that have all seeds of the choice."""
    why_not: str = ""
    """Why nothing was chosen; the fields below, except `entry`, are empty then."""
    setting: str = ""
    """Label with hyperparameters."""
    hyperparameters: Mapping[str, Any] | None = None
    learning_rate: float | None = None
    epoch: int | None = None
    kept: float | None = None
    """The headline's number; mean over the seeds of the choice, as is `forgotten`."""
    forgotten: float | None = None
    hypervolume: float | None = None
    """Area that the setting's epochs span; None for a rule that does not compare areas."""
    runs: tuple[str, ...] = ()
    """Ids of the runs that it was chosen by: one per seed, or with `epochs_as: runs` several."""
    entry: str = ""
    """Name of the entry whose trials it was chosen from; the method, unless several entries have
    it."""


class Candidate(NamedTuple):
    """A setting that a rule may choose."""

    setting: Setting
    merit: tuple[float, ...]
    """Sort key, the larger the better. Candidates of one rule have as many numbers."""
    area: float | None = None
    """Area that its epochs span; None for a rule that does not compare areas."""


class SelectionRule(ABC):
    """A rule of `select`, with everything that depends on it.

    To add a rule, write a subclass, add it to `RULES`, and add its name to `RuleName` and its own
    keys to `SelectSettings`. If the rule cannot choose without one of its keys, `SelectSettings`
    refuses a configuration without it, so that the message names the line.
    """

    name: ClassVar[RuleName]
    """Value of `select.rule`."""
    keys: ClassVar[frozenset[str]]
    """Keys of `select` that the rule reads, apart from `rule` and `seeds`."""
    spans_epochs: ClassVar[bool] = False
    """Whether a setting is judged by all of its epochs together. With `epochs_as: runs`, its runs
    of all lengths then belong to the choice."""

    def __init__(self, select: SelectSettings, headline: Headline) -> None:
        """Keep what the rule depends on.

        Args:
            select: The settings, whose `rule` is this rule.
            headline: The two numbers that methods are ranked by.
        """
        self.select = select
        self.headline = headline

    @abstractmethod
    def words(self, unit: Unit) -> str:
        """Return which setting is chosen and what decides between equal settings.

        Args:
            unit: What the evaluations of the sweep are counted in.
        """

    @abstractmethod
    def missing(self, start: Start) -> str:
        """Return why the rule cannot choose from this start model; empty if it can."""

    @abstractmethod
    def candidates(self, settings: Sequence[Setting], start: Start) -> Sequence[Candidate]:
        """Return the settings that fulfil the condition of the rule, with what they are ordered by.

        Args:
            settings: Settings of a method in the table's order. All of them have both numbers of
                the headline on all seeds of the choice.
            start: The start model, of which nothing is missing.
        """

    @abstractmethod
    def unfulfilled(self, start: Start) -> str:
        """Return why nothing is chosen, if no setting fulfils the condition of the rule."""

    @abstractmethod
    def worth(self, kept: float, forgotten: float, area: float | None) -> tuple[float, ...]:
        """Return a sort key of the choices of several entries of one method, the larger the better.

        Leaderboards store this key.

        Args:
            kept: The headline's number of the chosen setting on the seeds of the choice.
            forgotten: The headline's number of what it has forgotten, as it is in the table.
            area: Area of the chosen candidate.
        """

    def choose(self, settings: Sequence[Setting], start: Start) -> Candidate | str:
        """Choose a setting, or say why none is chosen.

        If the candidates' order does not decide, the last one in the table's order is chosen.
        """
        missing = self.missing(start)
        if missing:
            return missing
        best: Candidate | None = None
        for candidate in self.candidates(settings, start):
            if best is None or candidate.merit >= best.merit:
                best = candidate
        return self.unfulfilled(start) if best is None else best


class ForgetQualityRule(SelectionRule):
    """`forget-quality`: the setting that forgets most among those that keep enough utility."""

    name = "forget-quality"
    keys = frozenset({"utility"})

    def words(self, unit: Unit) -> str:
        """Return the rule of all best settings, with its own share of the utility."""
        return (
            f"{best_rule(self.headline, self.select.utility)}; ties go to the higher "
            f"{self.headline.kept.plain_short}, then to the earlier {unit}"
        )

    def missing(self, start: Start) -> str:
        """Return that the utility to be kept is unknown, if it is."""
        if start.utility is None:
            return "the start model was not evaluated: no utility to keep"
        return ""

    def candidates(self, settings: Sequence[Setting], start: Start) -> list[Candidate]:
        """Return the settings that keep enough, in the order of all best settings."""
        least_kept = self.select.utility * (start.utility or 0.0)
        candidates: list[Candidate] = []
        for setting in settings:
            merit = merit_of(setting)
            if merit is not None and merit.kept >= least_kept:
                candidates.append(Candidate(setting, merit))
        return candidates

    def unfulfilled(self, start: Start) -> str:
        """Return how much had to be kept."""
        share = share_kept(self.headline, self.select.utility)
        return f"no setting keeps {share}, {start.utility:.4g}"

    def worth(self, kept: float, forgotten: float, area: float | None) -> tuple[float, ...]:  # noqa: ARG002
        """Return what was forgotten, then what was kept."""
        # Worths that leaderboards store begin with an area, which this rule does not have.
        return 0.0, self.headline.forgotten.oriented(forgotten), kept


class HypervolumeRule(SelectionRule):
    """`hypervolume`: the setting whose epochs span the largest area of kept × forgotten.

    Of its epochs, the one whose point spans the largest area by itself is chosen.
    """

    name = "hypervolume"
    keys = frozenset({"reference"})
    spans_epochs = True

    def words(self, unit: Unit) -> str:
        """Return which area is compared and where its corner is."""
        kept, forgotten = self.headline.kept, self.headline.forgotten
        above = "above" if forgotten.better == "higher" else "better than"
        corner = "(0, the start model's)"
        if self.select.reference:
            corner = f"({self.select.reference[0]:g}, {self.select.reference[1]:g})"
        return (
            f"the setting whose {unit.plural} span the largest area of {kept.plain_label} × "
            f"{forgotten.plain_label} {above} {corner}, and of them the {unit} that spans most "
            f"by itself; ties go to the {forgotten.better} {forgotten.name}, then to the higher "
            f"{kept.plain_short}"
        )

    def missing(self, start: Start) -> str:
        """Return that the corner is unknown, if it is."""
        if self._corner(start) is None:
            return "the start model was not evaluated: give select.reference"
        return ""

    def candidates(self, settings: Sequence[Setting], start: Start) -> list[Candidate]:
        """Return the settings whose epochs span an area above the corner."""
        corner = self._corner(start)
        if corner is None:
            return []
        points_of_trajectory: dict[Any, list[tuple[float, float]]] = defaultdict(list)
        for setting in settings:
            points_of_trajectory[setting.trajectory].append(_point(setting))
        area_of_trajectory = {
            trajectory: hypervolume(points, corner)
            for trajectory, points in points_of_trajectory.items()
        }

        candidates: list[Candidate] = []
        for setting in settings:
            area = area_of_trajectory[setting.trajectory]
            own_area = hypervolume([_point(setting)], corner)
            if area > 0:
                merit = (area, own_area, *(merit_of(setting) or ()))
                candidates.append(Candidate(setting, merit, area))
        return candidates

    def unfulfilled(self, start: Start) -> str:
        """Return the corner that no setting is above."""
        least_kept, least_forgotten = self._corner(start) or (0.0, 0.0)
        shown = self.headline.forgotten.oriented(least_forgotten)
        return f"no setting is above ({least_kept:g}, {shown:g}) in both"

    def worth(self, kept: float, forgotten: float, area: float | None) -> tuple[float, ...]:
        """Return the area, then what was forgotten, then what was kept."""
        return area or 0.0, self.headline.forgotten.oriented(forgotten), kept

    def _corner(self, start: Start) -> tuple[float, float] | None:
        """Return the corner of the area (kept, forgotten), larger is better in both."""
        if self.select.reference is None:
            return start.corner
        least_kept, least_forgotten = self.select.reference
        return least_kept, self.headline.forgotten.oriented(least_forgotten)


def _point(setting: Setting) -> tuple[float, float]:
    """Return (kept, forgotten), larger is better in both."""
    oriented = setting.headline.forgotten.oriented
    return setting.kept or 0.0, oriented(setting.forgotten or 0.0)


RULES: Mapping[RuleName, type[SelectionRule]] = {
    rule.name: rule for rule in (ForgetQualityRule, HypervolumeRule)
}
"""The rules by the values of `select.rule`."""


def rule_of(select: SelectSettings, headline: Headline) -> SelectionRule:
    """Return the rule that settings of `select` name."""
    return RULES[select.rule](select, headline)


def describe_rule(
    select: SelectSettings,
    headline: Headline,
    chosen_of: str = "method",
    unit: Unit = Unit.EPOCH,
) -> str:
    """Describe the rule of `choose` in a sentence.

    Args:
        select: The rule.
        headline: The two numbers that methods are ranked by.
        chosen_of: What has a choice on each model and split: a method, or an entry.
        unit: What the evaluations of the sweep are counted in.
    """
    words = rule_of(select, headline).words(unit)
    seeds = ", ".join(map(str, select.seeds))
    return f"per model, split and {chosen_of}: {words}; on means over seeds {seeds}"


def choose(
    rows: Sequence[TableRow],
    select: SelectSettings,
    entries: Mapping[str, Sequence[str]] | None = None,
) -> tuple[ChosenSetting, ...]:
    """Choose each method's best setting by the rule.

    Args:
        rows: Rows of a table. Only runs on the seeds of the choice count.
        select: The rule.
        entries: Names of the entries that a run is a trial of, by its id. Each entry of a method
            then has a choice of its own. A run without an entry counts for its method.
    """
    counted_rows = [row for row in rows if row.kind != "run" or row.seed in select.seeds]
    choices: list[ChosenSetting] = []
    for panel in panels(counted_rows):
        settings_of_entry: dict[tuple[str, str], list[Setting]] = defaultdict(list)
        for setting in panel.settings:
            names = (entries or {}).get(setting.rows[0].run_id) or (setting.family,)
            for entry in names:
                settings_of_entry[setting.family, entry].append(setting)
        for (family, entry), settings in sorted(settings_of_entry.items()):
            choice = _choice_of_method(panel, family, settings, select)
            choices.append(replace(choice, entry=entry))
    return tuple(choices)


def _choice_of_method(
    panel: Panel, family: str, settings: Sequence[Setting], select: SelectSettings
) -> ChosenSetting:
    """Choose one of the settings of a method, or say why none is chosen."""
    rule = rule_of(select, panel.start.headline)
    complete = [
        setting
        for setting in settings
        if merit_of(setting) is not None and {row.seed for row in setting.rows} == set(select.seeds)
    ]
    candidates = len({setting.trajectory for setting in complete})
    chosen = rule.choose(complete, panel.start) if complete else NO_NUMBERS
    if isinstance(chosen, str):
        return ChosenSetting(*panel.panel, family, candidates, why_not=chosen)
    best = chosen.setting
    return ChosenSetting(
        model=best.model,
        forget_fraction=best.forget_fraction,
        method=best.family,
        candidates=candidates,
        setting=best.method,
        hyperparameters=best.rows[0].setting.flat,
        learning_rate=best.learning_rate,
        epoch=best.epoch,
        kept=best.kept,
        forgotten=best.forgotten,
        hypervolume=chosen.area,
        runs=_runs_behind(best, complete if rule.spans_epochs else ()),
    )


def _runs_behind(chosen: Setting, judged_with: Sequence[Setting]) -> tuple[str, ...]:
    """List the runs that a choice was made by.

    All epochs of a setting are of one run per seed, but with `epochs_as: runs` each number of
    epochs is a run of its own.

    Args:
        chosen: The chosen setting, at one epoch.
        judged_with: Settings of the method. Those of the chosen setting's other epochs were judged
            together with it.
    """
    rows = list(chosen.rows)
    for setting in judged_with:
        if setting.trajectory == chosen.trajectory:
            rows += setting.rows
    return tuple(sorted({row.run_id for row in rows}))
