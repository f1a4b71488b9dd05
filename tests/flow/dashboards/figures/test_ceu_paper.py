"""The CE-U paper's figure: its points are the published ones."""

import csv
import importlib
from pathlib import Path
from typing import Any

import pytest

paper: Any = importlib.import_module("unlearnbench_dashboards.figures.ceu_paper")

FOLDER = Path(__file__).parents[4] / "dashboards"
PANELS = [(m, f) for m in ("llama2-7b", "phi") for f in (0.01, 0.05, 0.1)]

Points = dict[tuple[str, float], list[tuple[float, float]]]


def published(name: str) -> list[dict[str, str]]:
    with (FOLDER / "figures" / "published" / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def by_panel() -> Points:
    """The CSV's points."""
    found: Points = {place: [] for place in PANELS}
    for line in published("ceu_figure_points.csv"):
        point = float(line["model_utility"]), float(line["log10_forget_quality"])
        found[line["model"], float(line["forget_fraction"])].append(point)
    return found


@pytest.fixture(scope="module")
def figure() -> Any:
    return paper.build()


def test_the_figure_has_the_222_points_of_the_csv(figure: Any) -> None:
    found: Points = {place: [] for place in PANELS}
    for trace in figure.data:
        if trace.meta["role"] not in ("trajectory", "reference"):
            continue
        place = PANELS[int((trace.xaxis or "x").removeprefix("x") or 1) - 1]
        faint = trace.marker.opacity or [1.0] * len(trace.x)  # 0: the line's unseen first point
        triples = zip(trace.x, trace.y, faint, strict=True)
        found[place] += [(x, y) for x, y, opacity in triples if opacity]
    assert sum(map(len, found.values())) == 222
    assert {p: sorted(v) for p, v in found.items()} == {p: sorted(v) for p, v in by_panel().items()}
