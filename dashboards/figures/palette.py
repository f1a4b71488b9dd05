"""Colours, dashes and symbols that mean the same thing in every figure, and metadata of traces.

A method's colour and shape follow from its place among the methods of the sweep, in every figure of
it, a filtered one included. No method is hard-coded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

from ..formatting import rate_text

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
FILLS = ("", "-open", "-dot", "-open-dot")
"""Ends of the shapes' names in Plotly for a method's swept hyperparameters: filled, hollow, and
both with a dot."""
_WITHOUT_DOT = ("hourglass", "bowtie")
"""Shapes that Plotly draws without a dot only."""
INK, MUTED, GRID = "#1c2024", "#5d6670", "#e8eaed"


@dataclass(frozen=True)
class Style:
    """Colour and shape by method, dash by learning rate: the same in all figures of a sweep."""

    slots: Mapping[str, int]
    """Number of each method, which decides its colour and shape."""
    dashes: Mapping[float | None, str]
    variants: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of each setting among its method's, by its label with hyperparameters."""

    @classmethod
    def of(cls, rows: Sequence[TableRow], records: Iterable[Record] = ()) -> Style:
        """Assign the styles of all methods and learning rates of a sweep.

        More rates than dashes, as a search tries, all have the first: repeated dashes would suggest
        equal rates.

        records  whose training is drawn as well: a run that collapsed early has no row
        """
        runs = [r for r in rows if r.kind == "run"]
        trained = [r for r in records if r.kind == "run" and r.steps]
        rates = sorted({r.learning_rate for r in runs if r.learning_rate is not None})
        more = {r.learning_rate for r in trained if r.learning_rate is not None}
        rates += sorted(more.difference(rates))
        dashes = dict.fromkeys([None, *rates], DASHES[0])
        if len(rates) <= len(DASHES):
            dashes |= zip(rates, DASHES, strict=False)
        numbers = slots(r.family for r in runs)
        for family in sorted({r.method for r in trained}):
            # Behind all others, whose colours stay the same.
            numbers.setdefault(family, len(numbers))
        labels: dict[str, set[str]] = {}
        for row in runs:
            labels.setdefault(row.family, set()).add(row.method)
        variants = {
            label: number
            for of_family in labels.values()
            for number, label in enumerate(sorted(of_family))
        }
        return cls(numbers, dashes, variants)

    def colour(self, family: str) -> str:
        """Look up the method's colour on a light page."""
        return PALETTE[self.slots[family] % len(PALETTE)][0]

    def shape(self, family: str, method: str = "") -> str:
        """Look up the shape of the method's points: ten differ, also in a print in grey.

        Args:
            family: The method.
            method: Label with hyperparameters. Settings of several values have the same shape with
                another filling.
        """
        slot = self.slots[family]
        symbol = SYMBOLS[(slot + slot // len(PALETTE)) % len(SYMBOLS)]
        fills = FILLS[:2] if symbol in _WITHOUT_DOT else FILLS
        return symbol + fills[self.variants.get(method, 0) % len(fills)]


def slots(families: Iterable[str]) -> dict[str, int]:
    """Number the methods by their names' order."""
    return {family: number for number, family in enumerate(sorted(set(families)))}


def faded(colour: str, alpha: float) -> str:
    """Add an opacity to `#RRGGBB`, in the form that browsers and Plotly read."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def meta(role: str, family: str = "", rate: float | None = None, **more: Any) -> dict[str, Any]:
    """Make the metadata of a trace, by which the page filters and recolours it."""
    return {"role": role, "family": family, "rate": rate_text(rate), **more}
