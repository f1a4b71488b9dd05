"""The settings that a method entry allows, as a space to enumerate or to sample.

Lists are choices, and ranges are sampled. `point_sequences.py` draws the points.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from unlearnbench.api.registry import load
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config import method_specs
from unlearnbench.config.method_entry import Axis
from unlearnbench.config.method_grid import WEIGHT, rates_of
from unlearnbench.config.method_settings import MethodGrid, MethodSpec, RetainSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Range
from unlearnbench.stats.point_sequences import PointSequence, even_points, independent_points

RATE = "learning_rate"
"""Name of the axis of learning rates."""
RETAIN = "retain"
"""Name of the axis of retain terms."""
DRAWS = 1000
"""Draws for each wanted setting after which a space counts as too small."""


class Point(NamedTuple):
    """One setting."""

    spec: MethodSpec
    """The method with all its hyperparameters."""
    learning_rate: float | None
    """None for a method that trains nothing."""


class Space:
    """The settings of one method entry.

    Each hyperparameter with several values is an axis, and so are the retain term, its weight and
    the learning rate. A point of the space is a setting.
    """

    def __init__(self, grid: MethodGrid, config: SweepConfig) -> None:
        """Collect the axes of an entry.

        Args:
            grid: The entry.
            config: Its configuration.
        """
        self.grid = grid
        self.base = grid.specs[0]
        """Has the values of all hyperparameters that are no axis."""
        self.rates = rates_of(self.base, grid, config)
        self.axes: dict[str, Axis] = {}
        """Axes with more than one value, by hyperparameter, `retain` or `learning_rate`."""
        self._defaults = method_specs.default_hyperparameters(self.base.name, self.base.modifiers)
        # Specs leave out hyperparameters that were added later and have their defaults.
        values_of_specs = [self._defaults | spec.hyperparameters for spec in grid.specs]
        for name in values_of_specs[0]:
            listed = tuple(dict.fromkeys(values[name] for values in values_of_specs))
            self._add(name, grid.ranges.get(name) or listed)
        self._retains = tuple(dict.fromkeys(spec.retain for spec in grid.specs))
        self._add(RETAIN, self._retains)
        if WEIGHT in grid.ranges:
            self._add(WEIGHT, grid.ranges[WEIGHT])
        self._add(RATE, self.rates)

    def _add(self, name: str, axis: Axis) -> None:
        """Add an axis if it has more than one value."""
        if isinstance(axis, Range) or len(axis) > 1:
            self.axes[name] = axis

    @property
    def count(self) -> int | None:
        """Number of points; None for a continuum."""
        count = 1
        for axis in self.axes.values():
            values = axis.count if isinstance(axis, Range) else len(axis)
            if values is None:
                return None
            count *= values
        return count

    @property
    def key(self) -> str:
        """Method and axes as text. Only equal spaces have equal texts.

        It is part of the seed of draws, so a change of the text would change the settings that a
        search draws.
        """
        axes = ", ".join(f"{name} {axis}" for name, axis in self.axes.items())
        return f"{self.base.name}: {axes}"

    def point(self, values: Mapping[str, Any]) -> Point:
        """Return the setting with these values of the axes.

        Raises:
            UnlearnbenchError: The method refuses their combination.
        """
        retain = values.get(RETAIN, self.base.retain)
        if retain is not None and WEIGHT in values:
            retain = RetainSpec(term=retain.term, weight=float(values[WEIGHT]))
        not_of_method = (RATE, RETAIN, WEIGHT)
        hyperparameters = {key: value for key, value in values.items() if key not in not_of_method}
        try:
            spec = method_specs.method_spec(
                self.base.name,
                self.base.hyperparameters | hyperparameters,
                retain,
                self.base.modifiers,
            )
        except ValidationError as error:
            values_text = ", ".join(f"{key}={value}" for key, value in hyperparameters.items())
            raise UnlearnbenchError(
                f"{self.base.name} does not take {values_text}, which is in the ranges searched: "
                f"{error.errors(include_url=False)[0]['msg']}; narrow them"
            ) from None
        only_rate = None if isinstance(self.rates, Range) else self.rates[0]
        return Point(spec, values.get(RATE, only_rate))

    def values(self, point: Point) -> dict[str, Any] | None:
        """Return the values of the axes at a setting; None if it is no point of this space."""
        all_values = self._all_values(point)
        values: dict[str, Any] = {}
        for name, axis in self.axes.items():
            value = all_values.get(name)
            is_on_axis = axis.contains(value) if isinstance(axis, Range) else value in axis
            if not is_on_axis:
                return None
            values[name] = value
        # A setting may also differ in something that is no axis, such as its method.
        return values if self.point(values) == point else None

    def _all_values(self, point: Point) -> dict[str, Any]:
        """Return what a setting has on every axis that its entry could have."""
        retain = point.spec.retain
        values: dict[str, Any] = self._defaults | point.spec.hyperparameters
        values |= {RETAIN: retain, RATE: point.learning_rate}
        if WEIGHT not in self.axes:
            return values
        if retain is None:
            # Without a term every weight has the same setting. The low end stands for all of them.
            values[WEIGHT] = self.grid.ranges[WEIGHT].low
            return values
        values[WEIGHT] = retain.weight
        # The axis of terms has each term with one weight, and the drawn weight replaces it.
        by_term = {listed.term: listed for listed in self._retains if listed is not None}
        values[RETAIN] = by_term.get(retain.term, retain)
        return values

    def everything(self) -> Iterator[Point]:
        """Yield all points of a space that is not a continuum."""
        choices: list[Sequence[Any]] = []
        for axis in self.axes.values():
            if isinstance(axis, Range):
                choices.append([axis.at(index) for index in range(axis.count or 0)])
            else:
                choices.append(axis)
        for values in itertools.product(*choices):
            yield self.point(dict(zip(self.axes, values, strict=True)))

    def draws(self, seed: int, sequence: PointSequence | None = None) -> Iterator[Point]:
        """Yield random points without end, the same points each time. Some may repeat.

        Args:
            seed: Seed of the points, or of the place at which an even sequence begins.
            sequence: The first point is the untuned one, and the others fill the space evenly in
                this sequence. None: points are independent.
        """
        source = random.Random(f"{seed} {self.key}")
        if sequence is None:
            drawn_shares = independent_points(len(self.axes), source)
        else:
            yield self.untuned
            drawn_shares = even_points(sequence, len(self.axes), source)
        for shares in drawn_shares:
            values: dict[str, Any] = {}
            for (name, axis), share in zip(self.axes.items(), shares, strict=True):
                if isinstance(axis, Range):
                    values[name] = axis.value(share)
                else:
                    values[name] = axis[int(share * len(axis))]
            yield self.point(values)

    @property
    def untuned(self) -> Point:
        """The point with the default on each range, or the middle of a range without the default.

        On each list it has the first value.
        """
        defaults = self._defaults | {WEIGHT: RetainSpec(term="nll").weight}
        if RATE in self.axes:
            defaults[RATE] = load("methods", self.base.name).learning_rate
        values: dict[str, Any] = {}
        for name, axis in self.axes.items():
            default = defaults.get(name)
            if not isinstance(axis, Range):
                values[name] = axis[0]
            elif axis.contains(default):
                values[name] = default
            else:
                values[name] = axis.value(0.5)
        return self.point(values)

    def sample(self, trials: int, seed: int, sequence: PointSequence | None = None) -> list[Point]:
        """Draw different points. With more trials the first points stay the same.

        Args:
            trials: Number of points. If the space has no more points, all of them are returned.
            seed: See `draws`.
            sequence: See `draws`.

        Raises:
            UnlearnbenchError: Ranges are too narrow for so many points.
        """
        if self.count is not None and self.count <= trials:
            return list(self.everything())
        points: dict[str, Point] = {}
        for point in itertools.islice(self.draws(seed, sequence), DRAWS * trials):
            points.setdefault(repr(point), point)
            if len(points) == trials:
                return list(points.values())
        raise UnlearnbenchError(
            f"{self.base.name}: its ranges have only {len(points)} different settings (values have "
            f"four digits), and search.trials is {trials}; widen the ranges, or lower trials"
        )


def points_of(
    grid: MethodGrid, config: SweepConfig, sequence: PointSequence = "sobol"
) -> list[Point]:
    """Return the settings of a method entry that are known in advance; none if optuna chooses.

    Args:
        grid: The entry.
        config: Its configuration.
        sequence: Sequence of a quasi-random search. Other searches ignore it.
    """
    search = config.search
    if search.trials is None:
        return _points_of_grid(grid, config)
    space = Space(grid, config)
    tries_all_points = space.count is not None and space.count <= search.trials
    if search.kind == "optuna" and not tries_all_points:
        return []
    sequence_drawn = sequence if search.kind == "quasi-random" else None
    return space.sample(search.trials, search.seed, sequence_drawn)


def _points_of_grid(grid: MethodGrid, config: SweepConfig) -> list[Point]:
    """Return every spec of an entry with every learning rate."""
    points: list[Point] = []
    for spec in grid.specs:
        rates = rates_of(spec, grid, config)
        if isinstance(rates, tuple):
            points += [Point(spec, rate) for rate in rates]
    return points
