"""Sensitivity of each method to its learning rate and its hyper-parameters. Pure.

Settings are compared after their last evaluated epoch, as someone sees them who trains with a
setting and does not select an epoch. Collapsed ones take no part in ranges: that their numbers
hardly differ is no robustness. A strip has every setting of a method, and says which collapsed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import COLLAPSE_SHARE, OnPanel, Panel, Setting
from unlearnbench.results.setting_value import UNSET, Path, names_of, value_text

RATE = "learning rate"
"""Name of the learning rate among the hyper-parameters."""


@dataclass(frozen=True)
class Dependence:
    """Settings of a method that differ in one hyper-parameter, all others being equal."""

    name: str
    """Name of the hyper-parameter: `beta`, or `learning rate`."""
    path: Path
    """Where it stands, see `SettingValue.values`; empty for the learning rate."""
    lines: tuple[tuple[Setting, ...], ...]
    """By the values of all others; each ascending in this one."""

    def value(self, setting: Setting) -> Any:
        """The value of a setting."""
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
    settings: tuple[Setting, ...]
    """After their last epoch; at least two."""
    dependences: tuple[Dependence, ...]
    """The learning rate first; those alone that have several values."""

    def span(self, column: str) -> Span | None:
        """Return the span of a column's means over the settings; None below two numbers."""
        means = [v for setting in self.settings if (v := setting.metrics.get(column)) is not None]
        return Span(min(means), max(means), max(means) - min(means)) if len(means) > 1 else None


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
        by_trajectory: dict[Any, list[Setting]] = defaultdict(list)
        for setting in panel.settings:  # by ascending epochs
            if setting.epoch > 0:
                by_trajectory[setting.trajectory].append(setting)
        lost = _collapsed_runs(panel)
        marks: dict[str, list[StripMark]] = defaultdict(list)
        without_number: dict[str, int] = defaultdict(int)
        for trajectory, settings in by_trajectory.items():
            family = settings[-1].family
            marks.setdefault(family, [])
            numbered = [s for s in settings if s.kept is not None or s.forgotten is not None]
            if not numbered:
                without_number[family] += 1
                continue
            shown = numbered[-1]
            has_collapsed = trajectory in lost or (shown.kept or 0.0) < _floor(panel)
            marks[family].append(StripMark(shown, has_collapsed, settings[-1].why_not))
        found += [
            Strip(
                *panel.panel,
                family,
                tuple(sorted(marks[family], key=_by_rate)),
                without_number[family],
            )
            for family in sorted(marks)
        ]
    return tuple(found)


def _by_rate(mark: StripMark) -> tuple[float, str]:
    return mark.setting.learning_rate or 0.0, mark.setting.method


def _collapsed_runs(panel: Panel) -> set[Any]:
    """The trajectories of which a run collapsed: its seed has no row at the last epoch."""
    return {
        setting.trajectory
        for setting in panel.settings
        if any(row.status == "collapsed" for row in setting.rows)
    }


def _floor(panel: Panel) -> float:
    """The number of what is kept below which a setting has collapsed."""
    return COLLAPSE_SHARE * (panel.start.utility or 0.0)


def sensitivities(panels: Iterable[Panel]) -> tuple[MethodSensitivity, ...]:
    """List the methods of each panel that left a usable model at several settings."""
    result: list[MethodSensitivity] = []
    for panel in panels:
        last = {setting.trajectory: setting for setting in panel.settings}  # by ascending epochs
        groups: dict[str, list[Setting]] = defaultdict(list)
        lost = _collapsed_runs(panel)
        for setting in last.values():
            is_whole = setting.trajectory not in lost and not setting.why_not
            if is_whole and (setting.kept or 0.0) >= _floor(panel):
                groups[setting.family].append(setting)
        result += [
            MethodSensitivity(*panel.panel, family, tuple(settings), _dependences(settings))
            for family, settings in groups.items()
            if len(settings) > 1
        ]
    return tuple(result)


def value_of(setting: Setting, path: Path) -> Any:
    """Return the value of a hyperparameter, or of the learning rate, whose path is empty.

    A hyperparameter that was added later is stored only if it differs from its default.
    """
    if not path:
        return setting.learning_rate
    return setting.rows[0].setting.values.get(path, UNSET)


def _dependences(settings: Sequence[Setting]) -> tuple[Dependence, ...]:
    names: dict[Path, str] = {(): RATE}
    named = names_of(setting.rows[0].setting for setting in settings)
    names |= dict(sorted(named.items(), key=lambda item: item[1]))
    varied = [path for path in names if len({_key(setting, path) for setting in settings}) > 1]
    dependences: list[Dependence] = []
    for path in varied:
        others = [other for other in varied if other != path]
        lines: dict[tuple[str, ...], list[Setting]] = defaultdict(list)
        for setting in settings:
            lines[tuple(_key(setting, other) for other in others)].append(setting)
        ordered = [
            tuple(sorted(line, key=lambda setting: _order(value_of(setting, path))))
            for line in lines.values()
            if len(line) > 1
        ]
        if ordered:
            dependences.append(Dependence(names[path], path, tuple(ordered)))
    return tuple(dependences)


def _key(setting: Setting, path: Path) -> str:
    return value_text(value_of(setting, path))


def _order(value: Any) -> tuple[bool, float, str]:
    """Sort key of values: numbers first, then texts."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)
