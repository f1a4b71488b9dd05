"""Colours, dashes and symbols that mean the same thing on every figure of a page.

A method's colour comes from its name alone, so that it is the same in every panel and, as far as
colours go round, on every page; no method is known here by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

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
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "hexagon", "pentagon", "triangle-down")

_SALT = 329  # gives nine common names nine slots without one being moved aside


def slots(families: Iterable[str]) -> dict[str, int]:
    """A slot of the palette per method: its name's own, or the next free one.

    With more methods than colours the slots go round, in alphabetical order.
    """
    taken: dict[str, int] = {}
    for family in sorted(set(families)):
        wanted = _preferred(family)
        used = set(taken.values()) if len(taken) < len(PALETTE) else set[int]()
        order = [(wanted + step) % len(PALETTE) for step in range(len(PALETTE))]
        taken[family] = next(slot for slot in order if slot not in used)
    return taken


def _preferred(family: str) -> int:
    digest = hashlib.sha256(f"{_SALT}:{family}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % len(PALETTE)


def by_rank(values: Sequence[float | None], choices: Sequence[str]) -> dict[float | None, str]:
    """The first choice for the smallest value, and so on; they go round."""
    known = sorted({v for v in values if v is not None})
    ranked: dict[float | None, str] = {None: choices[0]}
    return ranked | {v: choices[i % len(choices)] for i, v in enumerate(known)}


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
