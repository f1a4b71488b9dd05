"""Colours, dashes and symbols that mean the same thing on every figure of a page.

A method's colour is computed from its name alone, so that it is the same in every panel and, unless
two methods compete for a colour, on every page. No method is hard-coded here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

PALETTE: tuple[tuple[str, str], ...] = (
    ("#0072B2", "#3D8FE0"),
    ("#D24E00", "#FF8A3D"),
    ("#14A07C", "#2BD0A0"),
    ("#8E2A8B", "#C77AE8"),
    ("#A98200", "#F7D154"),
    ("#3C9BD6", "#A6DBFF"),
    ("#701B38", "#D9466F"),
    ("#4A6212", "#A9BF4C"),
    ("#3D2A8C", "#7D74F0"),
    ("#D1588F", "#FFB3CF"),
)
"""Colours on a light and on a dark page: Okabe and Ito's hues, moved apart in lightness, which
readers with colour blindness still distinguish."""
ALIKE = frozenset(
    {
        *((0, 3), (0, 8), (1, 4), (1, 7), (2, 5)),
        *((2, 9), (3, 8), (4, 7), (4, 9), (5, 9)),
    }
)
"""Pairs of slots that look alike to readers without one kind of cone; they get different shapes."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    *("circle", "triangle-up", "diamond", "cross", "triangle-down", "x", "hourglass", "bowtie"),
)
"""Shapes of methods; square and star are the start and the retain model."""

_SALT = 329  # with it, nine common names get nine different slots


def slots(families: Iterable[str]) -> dict[str, int]:
    """Assign a slot of the palette to each method: its preferred one, or the next least used."""
    chosen: dict[str, int] = {}
    load = [0] * len(PALETTE)
    for family in sorted(set(families)):
        preferred = _preferred(family)
        order = [(preferred + step) % len(PALETTE) for step in range(len(PALETTE))]
        chosen[family] = min(order, key=load.__getitem__)
        load[chosen[family]] += 1
    return chosen


def shapes(colours: Mapping[str, int]) -> dict[str, str]:
    """Assign a shape to each method, different for methods whose colours are equal or alike.

    Colour and shape distinguish 80 methods; alike colours have different shapes up to about 24.
    """
    chosen: dict[str, str] = {}
    for family, slot in sorted(colours.items()):
        first = slot % len(SYMBOLS)
        order = SYMBOLS[first:] + SYMBOLS[:first]
        users = {s: [colours[f] for f, own in chosen.items() if own == s] for s in order}
        chosen[family] = min(
            order, key=lambda s: (users[s].count(slot), sum(_alike(slot, u) for u in users[s]))
        )
    return chosen


def _alike(one: int, other: int) -> bool:
    return one == other or (min(one, other), max(one, other)) in ALIKE


def _preferred(family: str) -> int:
    digest = hashlib.sha256(f"{_SALT}:{family}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % len(PALETTE)


def by_rank(values: Sequence[float | None], choices: Sequence[str]) -> dict[float | None, str]:
    """Assign the first choice to the smallest value, and so on; if there are more values, to all.

    A search tries as many rates as settings: repeated dashes would suggest equal rates.
    """
    ordered = sorted({v for v in values if v is not None})
    assigned = choices if len(ordered) <= len(choices) else [choices[0]] * len(ordered)
    ranked: dict[float | None, str] = {None: choices[0]}
    return ranked | dict(zip(ordered, assigned, strict=False))


def faded(colour: str, alpha: float) -> str:
    """Add an opacity to `#RRGGBB`, in the form that browsers and Plotly read."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"
