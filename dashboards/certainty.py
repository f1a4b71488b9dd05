"""How sure the order of the methods is: their ranks and hypervolumes, as one table."""

from __future__ import annotations

from dataclasses import dataclass

from unlearnbench.claims import Claims
from unlearnbench.ranks import Rank


@dataclass(frozen=True)
class Line:
    """A method over all panels."""

    method: str
    rank: Rank | None
    """None where it did not run on every panel."""
    places: tuple[float | None, ...]
    """Rank on each panel; None where it has none."""
    hypervolumes: tuple[float | None, ...]
    """On each panel; None where it did not run, or nothing is measured from."""


def lines(found: Claims) -> tuple[Line, ...]:
    """By mean rank; methods without one come last."""
    ranks = {one.method: one for one in found.ranks.ranks}
    standings = [{one.method: one for one in panel.standings} for panel in found.panels]
    names = [*ranks, *sorted({name for panel in standings for name in panel} - ranks.keys())]
    return tuple(
        Line(
            method=name,
            rank=ranks.get(name),
            places=ranks[name].places if name in ranks else (None,) * len(standings),
            hypervolumes=tuple(
                panel[name].hypervolume if name in panel else None for panel in standings
            ),
        )
        for name in names
    )
