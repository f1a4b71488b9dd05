"""Sensitivity of each method to its learning rate and its hyperparameters.

Settings are compared after their last evaluated epoch, as someone sees them who trains with a
setting and does not select an epoch. Collapsed settings take no part in ranges (`sensitivities`),
because it is no robustness that their numbers hardly differ.

A *strip* is a line of a figure with a mark for every setting of one method. It also shows which
settings collapsed (`strips`). A setting is evaluated after several epochs, and has a `Setting` for
each of them. Together they are its *trajectory*, for which `Setting.trajectory` is the key.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import COLLAPSE_SHARE, Panel
from unlearnbench.analysis.settings import OnPanel, Setting
from unlearnbench.results.setting_value import UNSET, Path, names_of, value_text

RATE = "learning rate"
"""Name of the learning rate among the hyperparameters."""


@dataclass(frozen=True)
class Dependence:
    """Settings of a method that differ only in one hyperparameter."""

    name: str
    """Name of the hyperparameter: `beta`, or `learning rate`."""
    path: Path
    """Where it stands, see `SettingValue.values`; empty for the learning rate."""
    lines: tuple[tuple[Setting, ...], ...]
    """A line for each combination of the other values; each ascending in this value."""

    def value(self, setting: Setting) -> Any:
        """Return the value of a setting."""
        return value_of(setting, self.path)


class Span(NamedTuple):
    """How far the means of several settings are apart."""

    low: float
    high: float
    width: float
    """Their difference."""


@dataclass(frozen=True)
class MethodSensitivity(OnPanel):
    """The settings of one method on one model and split."""

    family: str
    """Name of the method with its retain term, such as `npo+nll`, without hyperparameters."""
    settings: tuple[Setting, ...]
    """After their last epoch; at least two."""
    dependences: tuple[Dependence, ...]
    """The learning rate first; only those that have several values."""

    def span(self, column: str) -> Span | None:
        """Return the span of a column's means over the settings; None for fewer than two means."""
        known = [setting.metrics.get(column) for setting in self.settings]
        means = [mean for mean in known if mean is not None]
        if len(means) < 2:
            return None
        low, high = min(means), max(means)
        return Span(low, high, high - low)


@dataclass(frozen=True)
class StripMark:
    """A setting in the strip of its method."""

    setting: Setting
    """After its last epoch that has a number."""
    has_collapsed: bool
    """Whether it keeps too little to mean anything, or one of its runs ended so."""
    ended: str
    """Why the setting has no number after its last epoch, such as `seed 2 collapsed at epoch 3`;
    empty if it has one."""


@dataclass(frozen=True)
class Strip(OnPanel):
    """All settings of one method on one model and split."""

    family: str
    marks: tuple[StripMark, ...]
    """By ascending learning rate."""
    without_number: int
    """Settings that have no number after any epoch."""


def strips(panels: Iterable[Panel]) -> tuple[Strip, ...]:
    """List every method of each panel with all of its settings, by name."""
    found: list[Strip] = []
    for panel in panels:
        found += _strips_of_panel(panel)
    return tuple(found)


def _strips_of_panel(panel: Panel) -> list[Strip]:
    """Make the strip of each method of a panel, by name."""
    settings_of_trajectory: dict[Any, list[Setting]] = defaultdict(list)
    for setting in panel.settings:  # By ascending epochs.
        if setting.epoch > 0:
            settings_of_trajectory[setting.trajectory].append(setting)
    collapsed = _collapsed_trajectories(panel)
    # All three by method.
    marks: dict[str, list[StripMark]] = defaultdict(list)
    without_number: dict[str, int] = defaultdict(int)
    families: set[str] = set()
    for trajectory, settings in settings_of_trajectory.items():
        last = settings[-1]
        families.add(last.family)
        shown = _last_with_number(settings)
        if shown is None:
            without_number[last.family] += 1
            continue
        has_collapsed = trajectory in collapsed or (shown.kept or 0.0) < _floor(panel)
        marks[last.family].append(StripMark(shown, has_collapsed, ended=last.why_not))
    return [
        Strip(
            *panel.panel,
            family,
            tuple(sorted(marks[family], key=_by_rate)),
            without_number[family],
        )
        for family in sorted(families)
    ]


def _last_with_number(settings: Sequence[Setting]) -> Setting | None:
    """Return the last epoch of a trajectory with a number of the headline; None without one.

    Args:
        settings: The epochs of one setting, ascending.
    """
    for setting in reversed(settings):
        if setting.kept is not None or setting.forgotten is not None:
            return setting
    return None


def _by_rate(mark: StripMark) -> tuple[float, str]:
    """Return a sort key of marks: the learning rate, then the label."""
    return mark.setting.learning_rate or 0.0, mark.setting.method


def _collapsed_trajectories(panel: Panel) -> set[Any]:
    """Return the keys of trajectories with a run that collapsed.

    A collapsed run has no row at the last epoch, so all epochs have to be searched for one.
    """
    return {
        setting.trajectory
        for setting in panel.settings
        if any(row.status == "collapsed" for row in setting.rows)
    }


def _floor(panel: Panel) -> float:
    """Return the number of what is kept below which a setting has collapsed."""
    return COLLAPSE_SHARE * (panel.start.utility or 0.0)


def sensitivities(panels: Iterable[Panel]) -> tuple[MethodSensitivity, ...]:
    """List the methods of each panel that left a usable model at several settings."""
    found: list[MethodSensitivity] = []
    for panel in panels:
        # Settings come by ascending epochs, so that the last one stays.
        last_of_trajectory = {setting.trajectory: setting for setting in panel.settings}
        collapsed = _collapsed_trajectories(panel)
        usable: dict[str, list[Setting]] = defaultdict(list)
        for trajectory, setting in last_of_trajectory.items():
            is_whole = trajectory not in collapsed and not setting.why_not
            if is_whole and (setting.kept or 0.0) >= _floor(panel):
                usable[setting.family].append(setting)
        found += [
            MethodSensitivity(*panel.panel, family, tuple(settings), _dependences(settings))
            for family, settings in usable.items()
            if len(settings) > 1
        ]
    return tuple(found)


def value_of(setting: Setting, path: Path) -> Any:
    """Return the value of a hyperparameter, or of the learning rate, whose path is empty.

    A hyperparameter that was added later is stored only if it differs from its default.
    """
    if not path:
        return setting.learning_rate
    return setting.rows[0].setting.values.get(path, UNSET)


def _dependences(settings: Sequence[Setting]) -> tuple[Dependence, ...]:
    """Find the settings that differ in one value: the learning rate first, then by name."""
    # All seeds of a setting have the same hyperparameters, so the first row stands for them.
    names_of_paths = names_of(setting.rows[0].setting for setting in settings)
    names: dict[Path, str] = {(): RATE}
    for path in sorted(names_of_paths, key=lambda path: names_of_paths[path]):
        names[path] = names_of_paths[path]
    varied: list[Path] = []
    for path in names:
        values = {_text(setting, path) for setting in settings}
        if len(values) > 1:
            varied.append(path)

    dependences: list[Dependence] = []
    for path in varied:
        others = [other for other in varied if other != path]
        lines = _lines(settings, path, others)
        if lines:
            dependences.append(Dependence(names[path], path, lines))
    return tuple(dependences)


def _lines(
    settings: Sequence[Setting], path: Path, others: Sequence[Path]
) -> tuple[tuple[Setting, ...], ...]:
    """Group settings that differ only in the value at `path`.

    Args:
        settings: Settings of one method.
        path: Where the value stands.
        others: Where the other values stand in which settings differ.

    Returns:
        The groups of two settings or more, each ordered by the value.
    """
    settings_of_values: dict[tuple[str, ...], list[Setting]] = defaultdict(list)
    for setting in settings:
        other_values = tuple(_text(setting, other) for other in others)
        settings_of_values[other_values].append(setting)
    lines: list[tuple[Setting, ...]] = []
    for line in settings_of_values.values():
        if len(line) > 1:
            line.sort(key=lambda setting: _order(value_of(setting, path)))
            lines.append(tuple(line))
    return tuple(lines)


def _text(setting: Setting, path: Path) -> str:
    """Return a setting's value as text, by which values are told apart."""
    return value_text(value_of(setting, path))


def _order(value: Any) -> tuple[bool, float, str]:
    """Return a sort key of values: numbers first, then texts."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)
