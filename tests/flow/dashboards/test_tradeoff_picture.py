"""The trade-off as a picture without a browser: every mark is where the numbers say."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api.registry import names
from unlearnbench.report.report import FIGURES, finish

from .conftest import METHODS, report_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from dashboards.figures.palette import SYMBOLS, Style
    from dashboards.figures.tradeoff_data import drawn_panels, position
    from dashboards.figures.tradeoff_picture import mark, page, picture
    from dashboards.figures.tradeoff_plot import extent
else:
    # The name of the package once it is installed. Type checkers know it only by its folder.
    from unlearnbench_dashboards.figures.palette import SYMBOLS, Style
    from unlearnbench_dashboards.figures.tradeoff_data import drawn_panels, position
    from unlearnbench_dashboards.figures.tradeoff_picture import mark, page, picture
    from unlearnbench_dashboards.figures.tradeoff_plot import extent

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results(fabric: Any) -> Results:
    """A sweep of all methods on two splits."""
    return report_of(fabric.sweep(fractions=(0.05, 0.1), methods=METHODS), name="many <b>")


def test_each_method_has_its_colour_and_its_name(results: Results) -> None:
    root = ET.fromstring(picture(results))
    style = Style.of(results.rows, results.records)
    text = ET.tostring(root, encoding="unicode")
    for family in results.families:
        assert f">{family}<" in text
        assert style.colour(family) in text
    assert root.findtext(f"{SVG}title") == "many <b>: utility against forgetting"


def test_marks_stand_where_the_axes_say(results: Results) -> None:
    """The start model is a square, whose middle is read back from its corners."""
    root = ET.fromstring(picture(results))
    groups = [g for g in root.findall(f"{SVG}g") if (g.get("transform") or "").startswith("trans")]
    panels = drawn_panels(results.panels)
    assert len(groups) == len(panels)
    for group, panel in zip(groups, panels, strict=True):
        frame = group.find(f"{SVG}clipPath/{SVG}rect")
        assert frame is not None
        left, top, width, height = (float(frame.get(k, "")) for k in ("x", "y", "width", "height"))
        (x_low, x_high), (y_low, y_high) = extent(panel)
        assert panel.fine_tuned is not None
        at = position(panel.fine_tuned)
        assert at is not None
        expected = (
            left + width * (at[0] - x_low) / (x_high - x_low),
            top + height * (y_high - at[1]) / (y_high - y_low),
        )
        squares = [
            [[float(n) for n in corner.split(",")] for corner in mark.get("points", "").split()]
            for mark in group.findall(f"{SVG}polygon")
            if mark.get("fill") == "#1c2024" and len(mark.get("points", "").split()) == 4
        ]
        middles = [(sum(x for x, _ in c) / 4, sum(y for _, y in c) / 4) for c in squares]
        assert [pytest.approx(expected, abs=0.2)] == middles


@pytest.mark.parametrize("symbol", [*SYMBOLS, "star", "square"])
def test_every_symbol_has_a_shape_of_its_own(symbol: str) -> None:
    shapes = {name: mark(name, 0, 0, 10, "#000000") for name in {*SYMBOLS, "star", "square"}}
    assert list(shapes.values()).count(shapes[symbol]) == 1


def test_the_page_needs_no_network(results: Results) -> None:
    text = page(results)
    assert "<b>: utility" not in text, "names are escaped"
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    (data,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', text)
    assert len(json.loads(data)) == len(results.panels)


OFFERED = "tradeoff-picture" in names("dashboards")


@pytest.mark.skipif(not OFFERED, reason="plug-ins are offered after the next installation")
def test_a_report_writes_both_files(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(Path(__file__).parents[2] / "data" / "small_sweep", folder)
    finish(folder)
    for name in FIGURES:
        assert (folder / name).stat().st_size > 1000


def page_of(browser: Browser, file: Path) -> tuple[int, list[str]]:
    """Number of drawn panels and errors of a page that is opened from disk."""
    errors: list[str] = []
    opened = browser.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(file.as_uri())
    opened.wait_for_selector(".figure .plot-container")
    drawn = opened.locator(".figure .plot-container").count()
    opened.close()
    return drawn, errors


@pytest.mark.long
def test_the_page_draws_its_panels(results: Results, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "tradeoff.html").write_text(page(results), encoding="utf-8")
    assert page_of(browser, tmp_path / "tradeoff.html") == (len(results.panels), [])
