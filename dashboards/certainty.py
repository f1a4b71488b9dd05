"""How sure the order of the methods is: their ranks and hypervolumes, as one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    qualities: tuple[float | None, ...]
    """log10 Forget Quality of its best setting on each panel, which the ranks are by."""
    hypervolumes: tuple[float | None, ...]
    """On each panel; None where it did not run, or nothing is measured from."""


@dataclass(frozen=True)
class Digits:
    """Decimals to print, by panel, so that only equal numbers look equal."""

    qualities: tuple[int, ...]
    hypervolumes: tuple[int, ...]


def digits(shown: Sequence[Line]) -> Digits:
    """How many decimals the table needs."""
    columns = [
        tuple(map(_decimals, zip(*many, strict=True)))
        for many in ([one.qualities for one in shown], [one.hypervolumes for one in shown])
    ]
    return Digits(*columns)


def _decimals(values: Iterable[float | None], least: int = 2, most: int = 8) -> int:
    known = {round(value, most) for value in values if value is not None}
    return next(
        (d for d in range(least, most) if len({round(v, d) for v in known}) == len(known)), most
    )


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
            qualities=tuple(
                panel[name].log10_quality if name in panel else None for panel in standings
            ),
            hypervolumes=tuple(
                panel[name].hypervolume if name in panel else None for panel in standings
            ),
        )
        for name in names
    )
