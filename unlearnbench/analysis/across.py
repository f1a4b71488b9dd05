"""Methods on several benchmarks: their places on each, and the mean place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from unlearnbench.analysis.best_settings import Best, merit_of
from unlearnbench.stats.t_interval import Interval, interval_of_all


@dataclass(frozen=True)
class Standing:
    """One method on every panel."""

    method: str
    """Its name; the entry's if several entries of a method have choices."""
    family: str
    """The method, by which it is coloured and filtered."""
    places: Mapping[str, float]
    """By panel, from 1; methods that are equal share the mean of their places. Only panels that it
    was run on."""
    mean: float | None
    """Mean place; None unless it was run on every panel."""
    interval: Interval | None
    """Over panels, as if they were drawn from all benchmarks there could be; within the first and
    the last place."""


def places(judged: Sequence[Best]) -> dict[str, float]:
    """The place of each method on one panel, by its best setting; those without one are last."""
    merits = [(merit_of(item.ranked) if item.ranked else None, item.name) for item in judged]
    ordered = sorted(((merit[:2] if merit else (), name) for merit, name in merits), reverse=True)
    result, taken = dict[str, float](), 0
    for _, group in groupby(ordered, key=itemgetter(0)):
        names = [name for _, name in group]
        result |= dict.fromkeys(names, taken + (len(names) + 1) / 2)
        taken += len(names)
    return result


def standings(panels: Mapping[str, Sequence[Best]]) -> tuple[Standing, ...]:
    """Every method, those with the best mean place first; those that lack a panel at the end."""
    by_panel = {name: places(judged) for name, judged in panels.items()}
    family_of_method = {best.name: best.family for judged in panels.values() for best in judged}
    last_place = float(max(map(len, panels.values()), default=1))
    result: list[Standing] = []
    for method, family in sorted(family_of_method.items()):
        part = {name: ranked[method] for name, ranked in by_panel.items() if method in ranked}
        whole, values = len(part) == len(by_panel), [*part.values()]
        mean = fmean(values) if whole else None
        interval = interval_of_all(values, (1.0, last_place)) if whole else None
        result.append(Standing(method, family, part, mean, interval))
    return tuple(sorted(result, key=lambda s: (s.mean is None, s.mean or 0.0, s.method)))
