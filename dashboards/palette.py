"""Colours, dashes and symbols that mean the same thing on every figure of a page.

A method's colour comes from its name alone, so that it is the same in every panel and, as far as
colours go round, on every page; no method is known here by name.
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
"""On a light and on a dark page. Okabe and Ito's hues, moved apart in lightness, which is what
remains of a colour to those who see two of three."""
ALIKE = frozenset(
    {
        *((0, 3), (0, 8), (1, 4), (1, 7), (2, 5)),
        *((2, 9), (3, 8), (4, 7), (4, 9), (5, 9)),
    }
)
"""Slots that come near each other for readers without one kind of cone: they differ in shape."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    *("circle", "triangle-up", "diamond", "cross", "triangle-down", "x", "hourglass", "bowtie"),
)
"""Shapes of methods; the square and the star are the anchors'."""

_SALT = 329  # gives nine common names nine slots without one being moved aside


def slots(families: Iterable[str]) -> dict[str, int]:
    """A slot of the palette per method: its name's own, or the next of those used least."""
    taken: dict[str, int] = {}
    load = [0] * len(PALETTE)
    for family in sorted(set(families)):
        wanted = _preferred(family)
        order = [(wanted + step) % len(PALETTE) for step in range(len(PALETTE))]
        taken[family] = min(order, key=load.__getitem__)
        load[taken[family]] += 1
    return taken


def shapes(colours: Mapping[str, int]) -> dict[str, str]:
    """A shape per method, so that methods of like colours, or of the same, have different ones.

    Colour and shape tell 80 methods apart; like colours keep different shapes up to about 24.
    """
    taken: dict[str, str] = {}
    for family, slot in sorted(colours.items()):
        first = slot % len(SYMBOLS)
        order = SYMBOLS[first:] + SYMBOLS[:first]
        users = {s: [colours[f] for f, own in taken.items() if own == s] for s in order}
        taken[family] = min(
            order, key=lambda s: (users[s].count(slot), sum(_alike(slot, u) for u in users[s]))
        )
    return taken


def _alike(one: int, other: int) -> bool:
    return one == other or (min(one, other), max(one, other)) in ALIKE


def _preferred(family: str) -> int:
    digest = hashlib.sha256(f"{_SALT}:{family}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % len(PALETTE)


def by_rank(values: Sequence[float | None], choices: Sequence[str]) -> dict[float | None, str]:
    """The first choice for the smallest value, and so on; of more values none has one of its own.

    A search tries as many rates as it has settings: dashes that go round would say what is not so.
    """
    known = sorted({v for v in values if v is not None})
    told = choices if len(known) <= len(choices) else [choices[0]] * len(known)
    ranked: dict[float | None, str] = {None: choices[0]}
    return ranked | dict(zip(known, told, strict=False))


def faded(colour: str, alpha: float) -> str:
    """`#RRGGBB` with an opacity, as browsers and Plotly read it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def rate_text(rate: float | None) -> str:
    """A learning rate as it is written in a paper: `2e-5`, `0.001` as `1e-3`."""
    if rate is None:
        return "none"
    mantissa, _, exponent = f"{rate:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def percent(fraction: float) -> str:
    """`10 %` for 0.1."""
    return f"{round(fraction * 100, 6):g} %"


def signed(value: float, digits: int) -> str:
    """A number with a true minus sign, which a hyphen is too short for."""
    return f"{value:.{digits}f}".replace("-", "\u2212")
