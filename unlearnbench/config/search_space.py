"""The settings that a method entry allows, as a space to enumerate or to sample.

Lists are choices, ranges are sampled. Draws use `random.Random.random` alone, whose sequence is the
same in all versions of Python, and Sobol's sequence without scrambling, which is the same in all
versions of SciPy, so that the same command has the same runs anywhere.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from unlearnbench.api.registry import load
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config import method_specs
from unlearnbench.config.method_grid import rates_of
from unlearnbench.config.schema import MethodGrid, MethodSpec, RetainSpec, SweepConfig
from unlearnbench.config.search import Range

Point = tuple[MethodSpec, float | None]
"""A setting: a method with all its hyper-parameters, and a learning rate if it trains."""
Axis = Range | tuple[Any, ...]
RATE, RETAIN, WEIGHT = "learning_rate", "retain", "retain.weight"
PointSequence = Literal["sobol", "recurrence"]
"""Points of `search: {kind: quasi-random}` in a space of two axes or more.

`recurrence`: an additive recurrence by powers of the root of x^(d+1) = x + 1 for d axes (Roberts
2018), in sweeps that an earlier version began. Its powers may lie near fractions of small
denominators. For example, one of three axes took three values in six trials.
"""
DRAWS = 1000
"""Draws per setting after which a space counts as too small."""


class Space:
    """The settings of one method entry."""

    def __init__(self, grid: MethodGrid, config: SweepConfig) -> None:
        self.grid, self.base = grid, grid.specs[0]
        self.rates = rates_of(self.base, grid, config)
        self.axes: dict[str, Axis] = {}
        """Axes with more than one value, by hyper-parameter, `retain` or `learning_rate`."""
        self._defaults = method_specs.default_hyperparameters(self.base.name, self.base.modifiers)
        every = [self._defaults | spec.hyperparameters for spec in grid.specs]
        for name in every[0]:
            values = [known[name] for known in every]
            self._add(name, grid.ranges.get(name) or tuple(dict.fromkeys(values)))
        self._retains = tuple(dict.fromkeys(spec.retain for spec in grid.specs))
        self._add(RETAIN, self._retains)
        if WEIGHT in grid.ranges:
            self._add(WEIGHT, grid.ranges[WEIGHT])
        self._add(RATE, self.rates)

    def _add(self, name: str, axis: Axis) -> None:
        if isinstance(axis, Range) or len(axis) > 1:
            self.axes[name] = axis

    @property
    def count(self) -> int | None:
        """Number of points; None for a continuum."""
        counts = [a.count if isinstance(a, Range) else len(a) for a in self.axes.values()]
        return None if None in counts else math.prod(filter(None, counts))

    @property
    def key(self) -> str:
        """Method and axes as text; equal for equal spaces only."""
        return f"{self.base.name}: {', '.join(f'{k} {v}' for k, v in self.axes.items())}"

    def point(self, values: Mapping[str, Any]) -> Point:
        """The setting with these values of the axes.

        Raises: UnlearnbenchError where the method refuses their combination.
        """
        retain = values.get(RETAIN, self.base.retain)
        if retain is not None and WEIGHT in values:
            retain = RetainSpec(term=retain.term, weight=float(values[WEIGHT]))
        part = {k: v for k, v in values.items() if k not in (RATE, RETAIN, WEIGHT)}
        try:
            known = self.base.hyperparameters | part
            spec = method_specs.method_spec(self.base.name, known, retain, self.base.modifiers)
        except ValidationError as error:
            values_text = ", ".join(f"{key}={value}" for key, value in part.items())
            raise UnlearnbenchError(
                f"{self.base.name} does not take {values_text}, which is in the ranges searched: "
                f"{error.errors(include_url=False)[0]['msg']}; narrow them"
            ) from None
        first = None if isinstance(self.rates, Range) else self.rates[0]
        return spec, values.get(RATE, first)

    def values(self, point: Point) -> dict[str, Any] | None:
        """The values of the axes at a setting; None where it is not a point of this space."""
        spec, rate = point
        part = self._defaults | spec.hyperparameters
        values: dict[str, Any] = {**part, RETAIN: spec.retain, RATE: rate}
        if WEIGHT in self.axes:
            values[WEIGHT] = self.grid.ranges[WEIGHT].low
            if spec.retain is not None:
                values[WEIGHT] = spec.retain.weight
                # The axis has each term with one weight, in whose place the drawn weight stands.
                by_term = {retain.term: retain for retain in self._retains if retain is not None}
                values[RETAIN] = by_term.get(spec.retain.term, spec.retain)
        result = {name: values.get(name) for name in self.axes}
        inside = all(
            axis.contains(result[name]) if isinstance(axis, Range) else result[name] in axis
            for name, axis in self.axes.items()
        )
        return result if inside and self.point(result) == point else None

    def everything(self) -> Iterator[Point]:
        """All points of a space that is not a continuum."""
        axes = [
            [axis.at(i) for i in range(axis.count or 0)] if isinstance(axis, Range) else axis
            for axis in self.axes.values()
        ]
        for values in itertools.product(*axes):
            yield self.point(dict(zip(self.axes, values, strict=True)))

    def draws(
        self, seed: int, *, evenly: bool = False, sequence: PointSequence = "sobol"
    ) -> Iterator[Point]:
        """Random points without end, the same ones each time; some may repeat.

        Args:
            seed: Seed of the points, or of the place at which an even sequence begins.
            evenly: First the untuned point, then points that fill the space.
            sequence: That of an even sequence.
        """
        source = random.Random(f"{seed} {self.key}")
        if evenly:
            yield self.untuned
        if not evenly:
            shares = _independent(len(self.axes), source)
        elif sequence == "sobol" and len(self.axes) > 1:
            shares = _sobol(len(self.axes), source)
        else:
            shares = _recurrence(len(self.axes), source)
        for point in shares:
            values: dict[str, Any] = {}
            for (name, axis), share in zip(self.axes.items(), point, strict=True):
                if isinstance(axis, Range):
                    values[name] = axis.value(share)
                else:
                    values[name] = axis[int(share * len(axis))]
            yield self.point(values)

    @property
    def untuned(self) -> Point:
        """The defaults, or the middle of a range that does not hold them; the first of a list."""
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
        """Draw `trials` different points, or all where there are no more; arguments as `draws`.

        With more trials the first points stay the same.
        Raises: UnlearnbenchError where ranges are too narrow for so many.
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
    """Independent uniform points in [0, 1)^axes."""
    while True:
        yield [source.random() for _ in range(axes)]


_BITS = 30
"""Binary digits of Sobol's points in SciPy."""
_CHUNK = 64
"""Points that are computed together; SciPy warns of numbers that are no power of two."""


def _sobol(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Sobol's points in [0, 1)^axes, with a random digital shift.

    Directions by Joe and Kuo 2008. Of the first 2^k points each axis has one in each of 2^k equal
    intervals. To exchange binary digits keeps that, which an addition modulo 1 would not.
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
    """An additive recurrence in [0, 1)^axes from a random start, see `PointSequence`."""
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
    """The settings of a method entry that are known in advance; none where optuna chooses them."""
    search = config.search
    if search.trials is None:
        rates = [(spec, rates_of(spec, grid, config)) for spec in grid.specs]
        return [(spec, rate) for spec, axis in rates if isinstance(axis, tuple) for rate in axis]
    space = Space(grid, config)
    if search.kind != "optuna" or (space.count is not None and space.count <= search.trials):
        evenly = search.kind == "quasi-random"
        return space.sample(search.trials, search.seed, evenly=evenly, sequence=sequence)
    return []


def entry_labels(methods: Sequence[MethodGrid]) -> tuple[Mapping[str, str], ...]:
    """Return the names of each entry by label of its settings, such as `{npo: npo (beta=0.1)}`.

    Entries of one label have different names, which tell in what they differ. An entry with a list
    of retain terms has settings of several labels.
    """
    texts_by_label: dict[str, list[Mapping[str, str]]] = {}
    for grid in methods:
        for label in dict.fromkeys(spec.label for spec in grid.specs):
            texts_by_label.setdefault(label, []).append(_stated_texts(grid, label))

    names: list[Mapping[str, str]] = []
    places: dict[str, int] = {}
    for grid in methods:
        of_entry: dict[str, str] = {}
        for label in dict.fromkeys(spec.label for spec in grid.specs):
            place = places[label] = places.get(label, -1) + 1
            of_entry[label] = _entry_name(label, place, texts_by_label[label])
        names.append(of_entry)
    return tuple(names)


def _entry_name(label: str, place: int, entries: Sequence[Mapping[str, str]]) -> str:
    """The name of the entry at a place among those of one label."""
    if len(entries) == 1:
        return label
    keys = sorted({key for texts in entries for key in texts})
    differing = [key for key in keys if len({texts.get(key) for texts in entries}) > 1]
    parts = [f"{key}={text}" for key in differing if (text := entries[place].get(key))]
    is_alone = entries.count(entries[place]) == 1
    if not is_alone or not parts:
        parts.append(f"entry {place + 1}")
    return f"{label} ({', '.join(parts)})"


def _stated_texts(grid: MethodGrid, label: str) -> dict[str, str]:
    """The values that an entry allows its settings of a label, as text by hyperparameter."""
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
    """`0.1`, `0.1 or 0.5`, `0.05 to 1`."""
    if isinstance(axis, Range):
        step = "" if axis.step is None else f" by {axis.step:.12g}"
        return f"{axis.low:.12g} to {axis.high:.12g}{step}{' (log)' if axis.log else ''}"
    return " or ".join(f"{v:.12g}" if isinstance(v, float) else str(v) for v in axis)
