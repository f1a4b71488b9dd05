"""The best setting of a method, and the places that methods have or share.

Sources: docs/concepts/statistics.md ("Best settings, ranks and hypervolume") and kept.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracle.benchmarks import Headline
from tests.oracle.means import Setting, is_better_beyond_chance
from tests.oracle.read import Split
from tests.oracle.rows import Rows

SHARE_TO_KEEP = 0.8
"""Share of what the start model keeps that a best setting must keep."""
LEVEL = 0.05
"""Level of significance of a test behind the headline."""
SEEDS_TO_PLACE = 3
"""Number of seeds below which no place is claimed."""


@dataclass(frozen=True)
class Judge:
    """Compares settings of one panel by the headline."""

    headline: Headline
    start_kept: float | None
    start_forgotten: float | None

    @property
    def fault(self) -> str | None:
        """Why no setting is the best: the start model has nothing to keep, or nothing to forget."""
        if self.start_kept is not None:
            has_learned = self.start_kept > 0 and self.start_kept >= self.headline.least_kept
            if not has_learned:
                return "knows nothing"
        if self.headline.has_test and self.start_forgotten is not None:
            passes = self.start_forgotten > math.log10(LEVEL)
            return "nothing to forget" if passes else None
        return None

    @property
    def least_kept(self) -> float | None:
        """The smallest number of what is kept that counts."""
        return None if self.start_kept is None else SHARE_TO_KEEP * self.start_kept

    def keeps_enough(self, setting: Setting) -> bool:
        """Whether a setting keeps enough."""
        kept = setting.mean(self.headline.kept)
        return kept is not None and self.least_kept is not None and kept >= self.least_kept

    def merit(self, setting: Setting) -> tuple[float, float, int] | None:
        """Return what settings are ordered by, larger is better; None at epoch 0.

        First how much is forgotten, then how much is kept, then the earlier epoch.
        """
        forgotten = setting.mean(self.headline.forgotten)
        kept = setting.mean(self.headline.kept)
        if setting.epoch == 0 or forgotten is None or kept is None:
            return None
        return self.headline.sign * forgotten, kept, -setting.epoch

    def best(self, settings: Sequence[Setting], least_kept: float) -> Setting | None:
        """Return the setting that forgets most among those that keep enough."""
        winner: Setting | None = None
        winning: tuple[tuple[float, float, int], tuple[str, float]] | None = None
        for setting in settings:
            merit = self.merit(setting)
            if merit is None or merit[1] < least_kept:
                continue
            rank = merit, setting.order_in_tables
            if winning is None or rank > winning:
                winner, winning = setting, rank
        return winner

    def order(self, setting: Setting | None, name: str) -> tuple[float, float, int, str]:
        """Return a sort key of methods, the best first, by name where nothing is known."""
        merit = None if setting is None else self.merit(setting)
        if merit is None:
            return math.inf, 0.0, 0, name
        return -merit[0], -merit[1], -merit[2], name

    def places(self, best_first: Sequence[Setting]) -> list[int | None]:
        """Return the places of settings in their order.

        A setting shares the place before, unless the first one of that place is better beyond
        chance. No place is claimed for a setting with numbers of fewer than three seeds.
        """
        able = [s for s in best_first if len(s.by_seed(self.headline.forgotten)) >= SEEDS_TO_PLACE]
        place_of: dict[int, int] = {}
        first_of_place: Setting | None = None
        for number, setting in enumerate(able, start=1):
            if first_of_place is None or self._is_better(first_of_place, setting):
                first_of_place = setting
                place_of[id(setting)] = number
            else:
                place_of[id(setting)] = place_of[id(able[number - 2])]
        return [place_of.get(id(setting)) for setting in best_first]

    def _is_better(self, first: Setting, second: Setting) -> bool:
        sides: list[dict[int, float]] = []
        for setting in (first, second):
            by_seed = setting.by_seed(self.headline.forgotten)
            sides.append({seed: self.headline.sign * value for seed, value in by_seed.items()})
        return is_better_beyond_chance(*sides)


def judge_of(rows: Rows, panel: tuple[str, Split]) -> Judge:
    """Return the judge of a panel, which knows its start model."""
    headline = rows.benchmark.headline
    of_kept = rows.start(panel, headline.kept)
    of_forgotten = rows.start(panel, headline.forgotten)
    return Judge(
        headline,
        None if of_kept is None else of_kept.get(headline.kept),
        None if of_forgotten is None else of_forgotten.get(headline.forgotten),
    )
