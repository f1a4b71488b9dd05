"""The order of settings: which setting is a method's best, and which methods share a place."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from unlearnbench.analysis.settings import Setting
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, is_above


class Merit(NamedTuple):
    """Sort key of settings: the larger, the better the setting."""

    forgotten: float
    """The headline's number of what is forgotten, as `HeadlineMetric.oriented`."""
    kept: float
    """The headline's number of what is kept, as it is."""
    minus_epoch: int
    """The negative epoch, so that the earlier one of two equal settings is better."""


def merit_of(setting: Setting) -> Merit | None:
    """Return a setting's sort key; None at epoch 0 and without a number."""
    forgotten = setting.forgotten
    kept = setting.kept
    if setting.epoch == 0 or forgotten is None or kept is None:
        return None
    return Merit(setting.headline.forgotten.oriented(forgotten), kept, -setting.epoch)


def best_of(settings: Sequence[Setting], utility: float) -> Setting | None:
    """Return the setting after epoch 0 that forgets most and keeps at least `utility`.

    Both are numbers of the headline. Ties go to the higher utility, then to the earlier epoch, and
    then to the last setting in the given order.
    """
    best: Setting | None = None
    best_merit: Merit | None = None
    for setting in settings:
        merit = merit_of(setting)
        if merit is None:
            continue
        keeps_enough = merit.kept >= utility
        if keeps_enough and (best_merit is None or merit >= best_merit):
            best = setting
            best_merit = merit
    return best


def best_first(setting: Setting | None, family: str) -> tuple[float, float, int, str]:
    """Return a sort key of methods in every view: the criterion of `best_of`, then the name."""
    merit = None if setting is None else merit_of(setting)
    if merit is None:
        merit = Merit(-math.inf, 0.0, 0)
    return -merit.forgotten, -merit.kept, -merit.minus_epoch, family


def shared_places(settings: Sequence[Setting]) -> tuple[int | None, ...]:
    """Return the places of settings that stand best first, by what they have forgotten.

    A setting has a place of its own if the first one of the place before is better beyond chance
    (`is_above`). If not, it shares that place.

    Returns:
        None for a setting with numbers of fewer than `ENOUGH_SEEDS` seeds. Nothing can be shown to
        be better or worse beyond chance than such a setting, and a shared place would read as a
        tie. The other settings are counted without it.
    """
    places: list[int | None] = []
    first_of_place: dict[int, float] = {}
    place = 0
    count = 0
    for setting in settings:
        metric = setting.headline.forgotten
        by_seed = setting.by_seed(metric.column)
        if len(by_seed) < ENOUGH_SEEDS:
            places.append(None)
            continue
        count += 1
        oriented = {seed: metric.oriented(value) for seed, value in by_seed.items()}
        if count == 1 or is_above(first_of_place, oriented):
            place = count
            first_of_place = oriented
        places.append(place)
    return tuple(places)
