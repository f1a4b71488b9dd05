"""Methods on several panels: their places on each, and the mean place.

A *panel* is one model and split. If a configuration names a method in several entries, and `select`
or `tune` has chosen a setting for each entry, then each entry is ranked like a method of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from unlearnbench.analysis.best_settings import Best
from unlearnbench.analysis.setting_order import merit_of
from unlearnbench.stats.t_interval import Interval, interval_of_all


@dataclass(frozen=True)
class Standing:
    """One method on every panel."""

    method: str
    """Its name; the entry's if several entries of a method have choices."""
    family: str
    """The method, by which it is coloured and filtered."""
    places: Mapping[str, float]
    """By panel, from 1. Methods that are equal share the mean of their places. Only panels that the
    method was run on."""
    mean: float | None
    """Mean place; None unless it was run on every panel."""
    interval: Interval | None
    """Over panels, as if they were drawn from all benchmarks there could be; within the first and
    the last place."""


def places(bests: Sequence[Best]) -> dict[str, float]:
    """Return the place of each method on one panel, by its best setting.

    Methods that are equal share the mean of their places, and methods without a best setting share
    the last places. For example, two methods without a setting among four share the place 3.5.
    """

    def worth(best: Best) -> tuple[float, ...]:
        """Return what the method has forgotten and keeps; empty, and so last, without a setting."""
        merit = None if best.ranked is None else merit_of(best.ranked)
        if merit is None:
            return ()
        return merit.forgotten, merit.kept

    ordered = sorted(bests, key=lambda best: (worth(best), best.name), reverse=True)
    place_of_method: dict[str, float] = {}
    before = 0
    for _, equal in groupby(ordered, key=worth):
        names = [best.name for best in equal]
        # The mean of the places before + 1, …, before + len(names).
        mean_place = before + (len(names) + 1) / 2
        place_of_method |= dict.fromkeys(names, mean_place)
        before += len(names)
    return place_of_method


def standings(panels: Mapping[str, Sequence[Best]]) -> tuple[Standing, ...]:
    """Return every method's places, the best mean place first.

    Methods that lack a panel have no mean place, and stand at the end.

    Args:
        panels: `Panel.best` by the panel's name.
    """
    places_of_panel = {name: places(bests) for name, bests in panels.items()}
    family_of_method = {best.name: best.family for bests in panels.values() for best in bests}
    last_place = float(max(map(len, panels.values()), default=1))
    found: list[Standing] = []
    for method, family in sorted(family_of_method.items()):
        own_places = {
            name: place_of_method[method]
            for name, place_of_method in places_of_panel.items()
            if method in place_of_method
        }
        mean = interval = None
        has_all_panels = len(own_places) == len(places_of_panel)
        if has_all_panels:
            values = list(own_places.values())
            mean = fmean(values)
            interval = interval_of_all(values, (1.0, last_place))
        found.append(Standing(method, family, own_places, mean, interval))
    found.sort(key=lambda standing: (standing.mean is None, standing.mean or 0.0, standing.method))
    return tuple(found)
