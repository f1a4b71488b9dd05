"""The CE-U paper's figure: its points are the published ones, in the figure and in the SVG."""

import csv
import importlib
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

paper: Any = importlib.import_module("unlearnbench_dashboards.figures.ceu_paper")

FOLDER = Path(__file__).parents[4] / "dashboards"
SVG = FOLDER.parent / "docs" / "images" / "ceu_paper.svg"
PANELS = [(m, f) for m in ("llama2-7b", "phi") for f in (0.01, 0.05, 0.1)]
TAG = "{http://www.w3.org/2000/svg}"

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


def test_the_committed_svg_shows_the_same_points(figure: Any) -> None:
    root = ET.fromstring(SVG.read_text(encoding="utf-8"))
    for number, (place, expected) in enumerate(by_panel().items(), start=1):
        marks = _marks(root, figure, "" if number == 1 else str(number))
        assert len(expected) == 37
        for point, pixels in pixels_of(expected, marks):
            near = min(math.dist(pixels, mark) for mark in marks.seen)
            assert near < 0.02, f"{place}: {point} is not in the SVG"
        assert len(marks.seen) == len(expected)


class Marks:
    """Marks that an SVG draws in one panel, in pixels, and the panel's scale."""

    def __init__(self, seen: list[tuple[float, float]], size: Any, x: Any, y: Any) -> None:
        self.seen, self.size, self.x, self.y = seen, size, x, y


def pixels_of(points: Any, marks: Marks) -> Any:
    for x, y in points:
        across = (x - marks.x[0]) / (marks.x[1] - marks.x[0]) * marks.size[0]
        down = (marks.y[1] - y) / (marks.y[1] - marks.y[0]) * marks.size[1]
        yield (x, y), (across, down)


def _marks(root: ET.Element, figure: Any, number: str) -> Marks:
    """Find the visible filled marks of panel `number`, without the rings around the best."""
    name = f"x{number}y{number}"
    (clip,) = (c for c in root.iter(f"{TAG}clipPath") if c.get("id", "").endswith(f"{name}plot"))
    size = tuple(float(clip[0].get(side, "")) for side in ("width", "height"))
    (panel,) = (g for g in root.iter(f"{TAG}g") if g.get("class") == f"subplot {name}")
    seen: list[tuple[float, float]] = []
    for path in panel.iter(f"{TAG}path"):
        if "point" not in path.get("class", "").split():
            continue
        style = path.get("style", "")
        if "fill: none" not in style and "opacity: 0;" not in style.replace("-opacity", ""):
            x, y = re.findall(r"-?[\d.]+", path.get("transform", ""))
            seen.append((float(x), float(y)))
    layout = figure.layout
    ranges = layout[f"xaxis{number}"].range, layout[f"yaxis{number}"].range
    return Marks(seen, size, *ranges)


def test_figure_and_tables_agree() -> None:
    table = {
        (line["model"], line["forget_fraction"], line["learning_rate"], line["epoch"], name): float(
            line["value"]
        )
        for line in published("ceu_tables.csv")
        if (name := line["metric"]) in ("Model Utility", "Forget Quality")
    }
    compared = 0
    for point in published("ceu_figure_points.csv"):
        rate = re.search(r"LR=(.+)\)", point["series"])
        if rate is None:
            continue
        place = (point["model"], point["forget_fraction"], rate[1], point["point"])
        utility, quality = (table[*place, n] for n in ("Model Utility", "Forget Quality"))
        assert float(point["model_utility"]) == pytest.approx(utility, abs=6e-4)
        assert float(point["log10_forget_quality"]) == pytest.approx(math.log10(quality), abs=6e-4)
        compared += 1
    assert compared == 90
