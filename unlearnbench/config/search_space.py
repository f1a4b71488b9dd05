"""The settings that a method entry allows, as a space to enumerate or to sample.

Lists are choices, and ranges are sampled. The same command has the same runs anywhere: draws use
only `random.Random.random`, whose sequence is the same in all versions of Python, and Sobol's
sequence without scrambling, which is the same in all versions of SciPy.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from unlearnbench.api.registry import load
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config import method_specs
from unlearnbench.config.method_entry import Axis
from unlearnbench.config.method_grid import WEIGHT, rates_of
from unlearnbench.config.method_settings import MethodGrid, MethodSpec, RetainSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Range

Point = tuple[MethodSpec, float | None]
"""A setting: a method with all its hyperparameters, and a learning rate if it trains."""
RATE = "learning_rate"
RETAIN = "retain"
PointSequence = Literal["sobol", "recurrence"]
"""Points of `search: {kind: quasi-random}` in a space of two axes or more.

`recurrence`: an additive recurrence by powers of the root of x^(d+1) = x + 1 for d axes (Roberts
2018), in sweeps that an earlier version began. Its powers may lie near fractions of small
denominators. For example, one of three axes took three values in six trials.
"""
DRAWS = 1000
"""Draws for each wanted setting after which a space counts as too small."""


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
        own_axes = (RATE, RETAIN, WEIGHT)
        hyperparameters = {key: value for key, value in values.items() if key not in own_axes}
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
        return spec, values.get(RATE, only_rate)

    def values(self, point: Point) -> dict[str, Any] | None:
        """Return the values of the axes at a setting; None if it is no point of this space."""
        spec, rate = point
        known: dict[str, Any] = self._defaults | spec.hyperparameters
        known |= {RETAIN: spec.retain, RATE: rate}
        if WEIGHT in self.axes:
            known[WEIGHT] = self.grid.ranges[WEIGHT].low
            if spec.retain is not None:
                known[WEIGHT] = spec.retain.weight
                # The axis of terms has each term with one weight, and the drawn weight replaces it.
                by_term = {retain.term: retain for retain in self._retains if retain is not None}
                known[RETAIN] = by_term.get(spec.retain.term, spec.retain)

        values: dict[str, Any] = {}
        for name, axis in self.axes.items():
            value = known.get(name)
            is_inside = axis.contains(value) if isinstance(axis, Range) else value in axis
            if not is_inside:
                return None
            values[name] = value
        # A setting that differs in what is no axis, such as its method, has the same values.
        return values if self.point(values) == point else None

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

    def draws(
        self, seed: int, *, evenly: bool = False, sequence: PointSequence = "sobol"
    ) -> Iterator[Point]:
        """Yield random points without end, the same points each time. Some may repeat.

        Args:
            seed: Seed of the points, or of the place at which an even sequence begins.
            evenly: Whether the first point is the untuned one and the others fill the space. If
                not, points are independent.
            sequence: Sequence of the points that fill the space.
        """
        source = random.Random(f"{seed} {self.key}")
        if not evenly:
            draws = _independent(len(self.axes), source)
        else:
            yield self.untuned
            if sequence == "sobol" and len(self.axes) > 1:
                draws = _sobol(len(self.axes), source)
            else:
                draws = _recurrence(len(self.axes), source)

        for shares in draws:
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
            value = defaults.get(name)
            if isinstance(axis, Range):
                values[name] = value if axis.contains(value) else axis.value(0.5)
            else:
                values[name] = axis[0]
        return self.point(values)

    def sample(
        self, trials: int, seed: int, *, evenly: bool = False, sequence: PointSequence = "sobol"
    ) -> list[Point]:
        """Draw different points. With more trials the first points stay the same.

        Args:
            trials: Number of points. If the space has no more points, all of them are returned.
            seed: See `draws`.
            evenly: See `draws`.
            sequence: See `draws`.

        Raises:
            UnlearnbenchError: Ranges are too narrow for so many points.
        """
        if self.count is not None and self.count <= trials:
            return list(self.everything())
        points: dict[str, Point] = {}
        draws = self.draws(seed, evenly=evenly, sequence=sequence)
        for point in itertools.islice(draws, DRAWS * trials):
            points.setdefault(repr(point), point)
            if len(points) == trials:
                return list(points.values())
        raise UnlearnbenchError(
            f"{self.base.name}: its ranges have only {len(points)} different settings (values have "
            f"four digits), and search.trials is {trials}; widen the ranges, or lower trials"
        )


def _independent(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Yield independent uniform points in [0, 1)^axes."""
    while True:
        yield [source.random() for _ in range(axes)]


_BITS = 30
"""Binary digits of Sobol's points in SciPy."""
_CHUNK = 64
"""Points that are computed together. SciPy warns of numbers that are no power of two."""


def _sobol(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Yield Sobol's points in [0, 1)^axes, with a random digital shift.

    The directions are those of Joe and Kuo (2008). Of the first 2^k points, each axis has one point
    in each of 2^k equal intervals. A digital shift (XOR of binary digits) keeps this property, but
    an addition modulo 1 would not.
    """
    from scipy.stats.qmc import Sobol  # it takes a second to import

    size = 2**_BITS
    shifts = [int(source.random() * size) for _ in range(axes)]
    points = Sobol(axes, scramble=False, bits=_BITS)
    while True:
        for point in points.random(_CHUNK):
            pairs = zip(point, shifts, strict=True)
            yield [(int(share * size) ^ shift) / size for share, shift in pairs]


def _recurrence(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Yield an additive recurrence in [0, 1)^axes from a random start, see `PointSequence`."""
    shares = [source.random() for _ in range(axes)]
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (axes + 1))
    while True:
        yield list(shares)
        for i, share in enumerate(shares):
            shares[i] = (share + root ** -(i + 1)) % 1


def points_of(
    grid: MethodGrid, config: SweepConfig, sequence: PointSequence = "sobol"
) -> list[Point]:
    """Return the settings of a method entry that are known in advance; none if optuna chooses."""
    search = config.search
    if search.trials is None:  # a grid
        points: list[Point] = []
        for spec in grid.specs:
            rates = rates_of(spec, grid, config)
            if isinstance(rates, tuple):
                points += [(spec, rate) for rate in rates]
        return points

    space = Space(grid, config)
    tries_all_points = space.count is not None and space.count <= search.trials
    if search.kind == "optuna" and not tries_all_points:
        return []
    evenly = search.kind == "quasi-random"
    return space.sample(search.trials, search.seed, evenly=evenly, sequence=sequence)


def entry_labels(methods: Sequence[MethodGrid]) -> tuple[Mapping[str, str], ...]:
    """Return the names of each entry by label of its settings, such as `{npo: npo (beta=0.1)}`.

    If several entries have a label, their names tell in what they differ. An entry with a list of
    retain terms has settings of several labels.
    """
    texts_by_label: dict[str, list[Mapping[str, str]]] = {}
    for grid in methods:
        for label in dict.fromkeys(spec.label for spec in grid.specs):
            texts_by_label.setdefault(label, []).append(_stated_texts(grid, label))

    names: list[Mapping[str, str]] = []
    named_so_far: dict[str, int] = {}
    for grid in methods:
        name_by_label: dict[str, str] = {}
        for label in dict.fromkeys(spec.label for spec in grid.specs):
            place = named_so_far.get(label, 0)
            named_so_far[label] = place + 1
            name_by_label[label] = _entry_name(label, place, texts_by_label[label])
        names.append(name_by_label)
    return tuple(names)


def _entry_name(label: str, place: int, entries: Sequence[Mapping[str, str]]) -> str:
    """Return the name of one of the entries of a label.

    Args:
        label: The label.
        place: Place of the entry among these entries.
        entries: Texts of the stated values of each entry, by hyperparameter.
    """
    if len(entries) == 1:
        return label
    own_texts = entries[place]
    differences: list[str] = []
    for key in sorted({key for texts in entries for key in texts}):
        differs = len({texts.get(key) for texts in entries}) > 1
        if differs and own_texts.get(key):
            differences.append(f"{key}={own_texts[key]}")
    has_equals = entries.count(own_texts) > 1
    if has_equals or not differences:
        differences.append(f"entry {place + 1}")
    return f"{label} ({', '.join(differences)})"


def _stated_texts(grid: MethodGrid, label: str) -> dict[str, str]:
    """Return the values that an entry states for a label's settings, as text by hyperparameter."""
    specs = [spec for spec in grid.specs if spec.label == label]
    texts: dict[str, str] = {}
    for name in dict.fromkeys(name for spec in specs for name in spec.hyperparameters):
        values = dict.fromkeys(spec.hyperparameters.get(name) for spec in specs)
        texts[name] = _axis_text(grid.ranges.get(name) or tuple(values))
    weights = dict.fromkeys(spec.retain.weight for spec in specs if spec.retain is not None)
    if weights:
        texts[WEIGHT] = _axis_text(grid.ranges.get(WEIGHT) or tuple(weights))
    if grid.learning_rates is not None:
        texts[RATE] = _axis_text(grid.learning_rates)
    return texts


def _axis_text(axis: Axis) -> str:
    """Return the text of an axis: `0.1`, `0.1 or 0.5`, `0.05 to 1`."""
    if isinstance(axis, Range):
        step = "" if axis.step is None else f" by {axis.step:.12g}"
        log = " (log)" if axis.log else ""
        return f"{axis.low:.12g} to {axis.high:.12g}{step}{log}"
    texts = [f"{value:.12g}" if isinstance(value, float) else str(value) for value in axis]
    return " or ".join(texts)
