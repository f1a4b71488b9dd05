"""Colours, dashes and symbols that mean the same thing in every figure, and metadata of traces.

A method's colour and shape follow from its place among all methods of the sweep, also in a figure
that shows only some of them. No method is hard-coded here.
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
"""Colours on a light and on a dark page. They are Okabe and Ito's hues, which readers with colour
blindness distinguish, with more difference in lightness."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = (
    "circle",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "x",
    "hourglass",
    "bowtie",
    "pentagon",
    "hexagram",
)
"""Shapes of methods. A square is the start model and a star the retain model."""
FILLS = ("", "-open", "-dot", "-open-dot")
"""Suffixes of a shape's name in Plotly, one for each swept value of a method's hyperparameters:
filled, hollow, filled with a dot, and hollow with a dot."""
_WITHOUT_DOT = ("hourglass", "bowtie")
"""Shapes that Plotly cannot draw with a dot."""
INK = "#1c2024"
"""Colour of text and of reference models."""
MUTED = "#5d6670"
"""Colour of notes and levels."""
GRID = "#e8eaed"
"""Colour of grid lines."""


@dataclass(frozen=True)
class Style:
    """Colour and shape by method, and dash by learning rate, the same in all figures of a sweep."""

    slots: Mapping[str, int]
    """Number of each method, which decides its colour and shape."""
    dashes: Mapping[float | None, str]
    """Dash of each learning rate. None is the rate of a method that trains nothing."""
    variants: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of each label with hyperparameters (`npo (beta=0.2)`) among those of its method."""

    @classmethod
    def of(cls, rows: Sequence[TableRow], records: Iterable[Record] = ()) -> Style:
        """Assign the styles of all methods and learning rates of a sweep.

        Args:
            rows: Rows of the table.
            records: Records whose training is drawn as well. A run that collapsed early has a
                record and no row.
        """
        runs = [row for row in rows if row.kind == "run"]
        trained = [record for record in records if record.kind == "run" and record.steps]
        families = slots(row.family for row in runs)
        # Methods without a row come last, so that the colours of all others stay the same.
        for family in sorted({record.method for record in trained}):
            families.setdefault(family, len(families))
        rates = _sorted_rates(row.learning_rate for row in runs)
        further_rates = _sorted_rates(record.learning_rate for record in trained)
        rates += [rate for rate in further_rates if rate not in rates]
        return cls(families, _dashes_of(rates), _variants(runs))

    def colour(self, family: str) -> str:
        """Look up the method's colour on a light page."""
        return PALETTE[self.slots[family] % len(PALETTE)][0]

    def shape(self, family: str, method: str = "") -> str:
        """Look up the shape of a method's points. Ten shapes differ, also in a print in grey.

        Args:
            family: The method.
            method: Label with hyperparameters. Labels of one method share a shape and differ in its
                filling.
        """
        slot = self.slots[family]
        # The eleventh method has the first colour again, but with the second shape.
        symbol = SYMBOLS[(slot + slot // len(PALETTE)) % len(SYMBOLS)]
        fills = FILLS[:2] if symbol in _WITHOUT_DOT else FILLS
        return symbol + fills[self.variants.get(method, 0) % len(fills)]


def _sorted_rates(rates: Iterable[float | None]) -> list[float]:
    """Sort the different learning rates. None, of a method that trains nothing, is left out."""
    return sorted({rate for rate in rates if rate is not None})


def _dashes_of(rates: Sequence[float]) -> dict[float | None, str]:
    """Assign a dash to each learning rate.

    If there are more rates than dashes, as after a search, all rates have the first dash. Repeated
    dashes would suggest equal rates.
    """
    dashes: dict[float | None, str] = dict.fromkeys([None, *rates], DASHES[0])
    if len(rates) <= len(DASHES):
        dashes |= zip(rates, DASHES, strict=False)
    return dashes


def _variants(runs: Iterable[TableRow]) -> dict[str, int]:
    """Number the labels of each method in the order of their names."""
    labels_of_family: dict[str, set[str]] = {}
    for row in runs:
        labels_of_family.setdefault(row.family, set()).add(row.method)
    variants: dict[str, int] = {}
    for labels in labels_of_family.values():
        for number, label in enumerate(sorted(labels)):
            variants[label] = number
    return variants


def slots(families: Iterable[str]) -> dict[str, int]:
    """Number the methods in the order of their names."""
    return {family: number for number, family in enumerate(sorted(set(families)))}


def faded(colour: str, alpha: float) -> str:
    """Add an opacity to `#RRGGBB`, in the form that browsers and Plotly read."""
    red = int(colour[1:3], 16)
    green = int(colour[3:5], 16)
    blue = int(colour[5:7], 16)
    return f"rgba({red},{green},{blue},{alpha:g})"


def meta(role: str, family: str = "", rate: float | None = None, **more: Any) -> dict[str, Any]:
    """Make the metadata of a trace, by which the page filters and recolours it.

    Args:
        role: What the trace shows, such as `trajectory`, `front`, `best` or `reference`.
        family: Method of the trace; empty if it belongs to none.
        rate: Learning rate, which is stored as text.
        more: Further metadata, such as `slot` and `alpha`.
    """
    return {"role": role, "family": family, "rate": rate_text(rate), **more}
