"""Methods are distinguishable by colour, and in grey by shape."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unlearnbench.report.figures import pareto
from unlearnbench.results.finalize import table_of

if TYPE_CHECKING:
    from ..conftest import Fabric

palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")

STYLE = palette.Style({f"{i:02}": i for i in range(80)}, {})


def shape(slot: int) -> str:
    return str(STYLE.shape(f"{slot:02}"))


def test_eighty_methods_have_eighty_styles_and_ten_differ_in_shape() -> None:
    assert len({(STYLE.colour(f"{i:02}"), shape(i)) for i in range(80)}) == 80
    assert len({shape(i) for i in range(10)}) == 10


def test_a_method_keeps_its_style_in_a_part_of_a_sweep(fabric: Fabric) -> None:
    rows = table_of(fabric.sweep(epochs=1)).rows
    style = palette.Style.of(rows)
    for figure in (pareto(rows), pareto(rows, methods=["npo"]), pareto(rows, width="column")):
        (line, *_) = (
            t for t in figure.data if t.meta["role"] == "trajectory" and t.meta["family"] == "npo"
        )
        assert line.marker.symbol == style.shape("npo")
        assert line.marker.color == style.colour("npo")
        entries = [t for t in figure.data if t.meta["role"] == "legend" and t.name == "npo"]
        names = [n for n in figure.layout.annotations if (n.name, n.text) == ("method", "npo")]
        panels = len({note.xref for note in names})
        assert bool(entries) is not bool(names), "a column has the name at its mark"
        assert (len(entries), len(names)) in ((1, 0), (0, panels))
        for entry in entries:
            assert entry.marker.symbol == style.shape("npo")
            assert entry.marker.color == style.colour("npo")
        for name in names:
            assert name.font.color == style.colour("npo")
