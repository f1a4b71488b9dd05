"""Methods are distinguishable by colour and shape, with and without colour blindness."""

from __future__ import annotations

import importlib
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unlearnbench.figures import pareto
from unlearnbench.results.table import table

if TYPE_CHECKING:
    from ..conftest import Fabric

palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")

# Machado, Oliveira and Fernandes (2009), severity 1: what is left of linear RGB.
EYES = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
APART = 15.0
"""CIE76 distance in L*a*b* below which two small marks are easily taken for one another."""
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    share = TO_XYZ @ rgb / np.array([0.95047, 1.0, 1.08883])
    f = np.where(share > 0.008856, np.cbrt(share), 7.787 * share + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: int, other: int, page: int, eyes: np.ndarray) -> float:
    """Distance of two slots of the palette on a light (0) or dark (1) page."""
    seen = [lab(np.clip(eyes @ linear(palette.PALETTE[i][page]), 0, 1)) for i in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio; 3 is its least for graphics."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear(c)) + 0.05 for c in (one, other))
    return high / low


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize("eyes", EYES)
def test_of_twenty_methods_those_of_one_shape_differ_in_colour(page: int, eyes: str) -> None:
    for one, other in combinations(range(20), 2):
        if palette.shape(one) == palette.shape(other):
            assert distance(one % 10, other % 10, page, EYES[eyes]) > APART, (one, other)


@pytest.mark.parametrize(("page", "ground"), [(0, "#ffffff"), (1, "#181b1f")])
def test_every_colour_contrasts_with_its_page(page: int, ground: str) -> None:
    assert min(contrast(pair[page], ground) for pair in palette.PALETTE) > 3.0


def test_eighty_methods_have_eighty_styles_and_ten_differ_in_shape() -> None:
    slots = palette.slots(f"method-{i:02}" for i in range(80)).values()
    assert len({(palette.colours(i), palette.shape(i)) for i in slots}) == 80
    assert len({palette.shape(i) for i in range(10)}) == 10


def test_a_method_keeps_its_style_in_a_part_of_a_sweep(fabric: Fabric) -> None:
    rows = table(fabric.sweep(epochs=1))
    slot = palette.slots(row.family for row in rows if row.kind == "run")["npo"]
    for figure in (pareto(rows), pareto(rows, methods=["npo"]), pareto(rows, width="column")):
        (line, *_) = (
            t for t in figure.data if t.meta["role"] == "trajectory" and t.meta["family"] == "npo"
        )
        (entry,) = (t for t in figure.data if t.meta["role"] == "legend" and t.name == "npo")
        assert line.marker.symbol == entry.marker.symbol == palette.shape(slot)
        assert line.marker.color == entry.marker.color == palette.colours(slot)[0]
