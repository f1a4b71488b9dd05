"""The two rules of `select`: which setting of a method is chosen, from runs on some seeds.

`forget-quality` chooses the setting that forgets most among those that keep enough utility.
`hypervolume` chooses the setting whose epochs span the largest area of kept × forgotten. A setting
counts only if every seed of the choice has a number.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import Panel, panels
from unlearnbench.analysis.setting_order import best_of, merit_of
from unlearnbench.analysis.settings import OnPanel, Setting
from unlearnbench.analysis.start_model import Start
from unlearnbench.analysis.wording import best_rule, share_kept
from unlearnbench.api.benchmark import Headline
from unlearnbench.config.search import SelectSettings
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
    """Area that the setting's epochs span; None for the rule `forget-quality`."""
    runs: tuple[str, ...] = ()
    """Ids of the runs that it was chosen by: one per seed, or with `epochs_as: runs` several."""
    entry: str = ""
    """Name of the entry whose trials it was chosen from; the method, unless several entries have
    it."""


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
    kept, forgotten = headline.kept, headline.forgotten
    seeds = ", ".join(map(str, select.seeds))
    if select.rule == "forget-quality":
        rule = (
            f"{best_rule(headline, select.utility)}; ties go to the higher {kept.plain_short}, "
            f"then to the earlier {unit}"
        )
    else:
        above = "above" if forgotten.better == "higher" else "better than"
        corner = "(0, the start model's)"
        if select.reference:
            corner = f"({select.reference[0]:g}, {select.reference[1]:g})"
        rule = (
            f"the setting whose {unit.plural} span the largest area of {kept.plain_label} × "
            f"{forgotten.plain_label} {above} {corner}, and of them the {unit} that spans most "
            f"by itself; ties go to the {forgotten.better} {forgotten.name}, then to the higher "
            f"{kept.plain_short}"
        )
    return f"per model, split and {chosen_of}: {rule}; on means over seeds {seeds}"


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


class _RuleResult(NamedTuple):
    """What a rule has chosen."""

    setting: Setting
    area: float | None
    """Area that its epochs span; None for a rule without areas."""


_Rule = Callable[[Sequence[Setting], SelectSettings, Start], _RuleResult | str]
"""Chooses from settings with numbers; or returns why nothing is chosen."""


def _choice_of_method(
    panel: Panel, family: str, settings: Sequence[Setting], select: SelectSettings
) -> ChosenSetting:
    """Choose one of the settings of a method, or say why none is chosen."""
    rule: _Rule = _by_quality if select.rule == "forget-quality" else _by_hypervolume
    complete = [
        setting
        for setting in settings
        if merit_of(setting) is not None and {row.seed for row in setting.rows} == set(select.seeds)
    ]
    candidates = len({setting.trajectory for setting in complete})
    chosen = rule(complete, select, panel.start) if complete else NO_NUMBERS
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
        runs=_runs_behind(chosen, complete),
    )


def _runs_behind(chosen: _RuleResult, settings: Sequence[Setting]) -> tuple[str, ...]:
    """List the runs that a choice was made by.

    An area is spanned by all epochs of a setting. They are of one run per seed, but with
    `epochs_as: runs` each number of epochs is a run of its own.
    """
    rows = list(chosen.setting.rows)
    if chosen.area is not None:
        for setting in settings:
            if setting.trajectory == chosen.setting.trajectory:
                rows += setting.rows
    return tuple(sorted({row.run_id for row in rows}))


def _by_quality(
    settings: Sequence[Setting], select: SelectSettings, start: Start
) -> _RuleResult | str:
    """Choose the setting that forgets most and keeps its utility."""
    if start.utility is None:
        return "the start model was not evaluated: no utility to keep"
    best = best_of(settings, select.utility * start.utility)
    if best is None:
        share = share_kept(start.headline, select.utility)
        return f"no setting keeps {share}, {start.utility:.4g}"
    return _RuleResult(best, area=None)


def _by_hypervolume(
    settings: Sequence[Setting], select: SelectSettings, start: Start
) -> _RuleResult | str:
    """Choose the setting whose epochs span the largest area, at the epoch of largest own area."""
    oriented = start.headline.forgotten.oriented
    reference = start.corner
    if select.reference is not None:
        least_kept, least_forgotten = select.reference
        reference = least_kept, oriented(least_forgotten)
    if reference is None:
        return "the start model was not evaluated: give select.reference"

    points_of_trajectory: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for setting in settings:
        points_of_trajectory[setting.trajectory].append(_point(setting))
    area_of_trajectory = {
        trajectory: hypervolume(points, reference)
        for trajectory, points in points_of_trajectory.items()
    }
    # The last entry decides between equal settings: the last one in the table's order.
    ranks = [
        (
            area_of_trajectory[setting.trajectory],
            hypervolume([_point(setting)], reference),
            merit_of(setting) or (),
            index,
        )
        for index, setting in enumerate(settings)
    ]
    area, _, _, index = max(ranks)
    if area <= 0:
        return f"no setting is above ({reference[0]:g}, {oriented(reference[1]):g}) in both"
    return _RuleResult(settings[index], area)


def _point(setting: Setting) -> tuple[float, float]:
    """Return (kept, forgotten), larger is better in both."""
    oriented = setting.headline.forgotten.oriented
    return setting.kept or 0.0, oriented(setting.forgotten or 0.0)
