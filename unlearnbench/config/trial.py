"""Why a run is in a plan: which method entries try its setting, and where in their ranges it is.

`plan.json` stores this for each run. So `select` and `tune` can choose from the plan, the records
and the table. They need neither the search space nor the plug-ins that declare its ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unlearnbench.config.entry_labels import entry_labels
from unlearnbench.config.method_entry import Axis
from unlearnbench.config.method_settings import MethodGrid
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Range
from unlearnbench.config.search_space import Point, Space


@dataclass(frozen=True)
class Trial:
    """A setting as one method entry tries it."""

    position: Mapping[str, float] = field(default_factory=dict[str, float])
    """Where its values are in the ranges of the entry, from 0 to 1 by axis. Lists have no
    position."""
    untuned: bool = False
    """Whether these are the defaults of the entry, which a quasi-random search tries first."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields in `plan.json`, without those that have their defaults."""
        document: dict[str, Any] = {}
        if self.position:
            document["position"] = dict(self.position)
        if self.untuned:
            document["untuned"] = True
        return document


class Entry:
    """A method entry of a configuration."""

    def __init__(self, grid: MethodGrid, names: Mapping[str, str], config: SweepConfig) -> None:
        """Prepare an entry.

        Args:
            grid: The entry.
            names: Its names by the label of a setting, see `entry_labels`.
            config: The configuration.
        """
        self.grid = grid
        self._names = names
        # In a grid, two entries of a method are only another way to write one list of settings.
        self._is_searched = config.search.trials is not None
        self._space = Space(grid, config) if self._is_searched else None
        self._has_defaults = config.search.kind == "quasi-random"

    def name(self, label: str) -> str:
        """Return the name of the entry for settings with a label. In a grid it is the label."""
        return self._names[label] if self._is_searched else label

    def trial(self, point: Point) -> Trial:
        """Return where in the entry's ranges a setting is, and whether it is the untuned one."""
        if self._space is None:
            return Trial()
        values = self._space.values(point) or {}
        is_untuned = self._has_defaults and point == self._space.untuned
        return Trial(position_in(values, self._space.axes), is_untuned)


def entries_of(config: SweepConfig) -> tuple[Entry, ...]:
    """Return the method entries of a configuration, in its order."""
    named = zip(config.methods, entry_labels(config.methods), strict=True)
    return tuple(Entry(grid, names, config) for grid, names in named)


def position_in(values: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, float]:
    """Return where values are in their ranges, from 0 to 1 by axis. Lists are left out."""
    return {
        name: axis.share(float(values[name]))
        for name, axis in axes.items()
        if isinstance(axis, Range) and values.get(name) is not None
    }


Trials = dict[str, dict[str, Trial]]
"""The trials of runs by id and name of the entry. A run is a trial of two entries if both have
drawn its setting, and not if it only lies in the ranges of both."""


def add_trials(trials: Trials, entry: Entry, point: Point, run_ids: Iterable[str]) -> None:
    """Note that an entry tries a setting by these runs."""
    name = entry.name(point.spec.label)
    trial = entry.trial(point)
    for run_id in run_ids:
        trials.setdefault(run_id, {})[name] = trial
