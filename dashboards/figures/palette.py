"""Colours, dashes and symbols that mean the same thing on every figure of a page.

A method's colour and shape follow from its place among the methods of the sweep, in every figure of
it, a filtered one included. No method is hard-coded here.
"""

from __future__ import annotations

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
"""Colours on a light and on a dark page: Okabe and Ito's hues, moved apart in lightness, which
readers with colour blindness still distinguish."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    *("circle", "triangle-up", "diamond", "cross", "triangle-down", "x", "hourglass", "bowtie"),
    *("pentagon", "hexagram"),
)
"""Shapes of methods; square and star are the start and the retain model."""


def slots(families: Iterable[str]) -> dict[str, int]:
    """Number the methods by their names' order."""
    return {family: number for number, family in enumerate(sorted(set(families)))}


def colours(slot: int) -> tuple[str, str]:
    """Look up a method's colour on a light and on a dark page by its number."""
    return PALETTE[slot % len(PALETTE)]


def shape(slot: int) -> str:
    """Look up a method's shape by its number: ten differ, so that a print in grey is readable."""
    return SYMBOLS[(slot + slot // len(PALETTE)) % len(SYMBOLS)]


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
