"""Ranks and hypervolumes of the methods, as lines of one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from unlearnbench.analysis.mean_ranks import Rank
from unlearnbench.analysis.order_confidence import OrderConfidence, RankedMethod


@dataclass(frozen=True)
class RankLine:
    """A method over all panels."""

    method: str
    rank: Rank | None
    """None where it did not run on every panel."""
    standings: tuple[RankedMethod | None, ...]
    """Its best setting on each panel; None where it did not run."""


def rank_lines(claims: OrderConfidence) -> tuple[RankLine, ...]:
    """Sort the methods by mean rank; methods without one come last."""
    ranks = {one.method: one for one in claims.ranks.ranks}
    standings = [{one.method: one for one in panel.methods} for panel in claims.panels]
    names = [*ranks, *sorted({name for panel in standings for name in panel} - ranks.keys())]
    return tuple(
        RankLine(name, ranks.get(name), tuple(panel.get(name) for panel in standings))
        for name in names
    )


def digits_needed(values: Iterable[float | None], least: int = 2, most: int = 8) -> int:
    """Count the decimals that a column needs, so that different numbers do not look equal."""
    rounded = {round(value, most) for value in values if value is not None}
    return next(
        (d for d in range(least, most) if len({round(v, d) for v in rounded}) == len(rounded)), most
    )
