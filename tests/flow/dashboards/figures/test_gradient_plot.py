"""The figures show the numbers that they are given."""

import importlib
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.report.gradient_profile import POINTS, GradientProfiles, gradient_profiles

pages: Any = importlib.import_module("unlearnbench_dashboards.figures.gradient_plot")


@pytest.fixture(scope="module")
def found() -> GradientProfiles:
    names = ("ce-u", "gradient-ascent", "idk")
    return gradient_profiles({name: registry.load_method(name)() for name in names})


def test_a_panel_for_each_quantity_and_a_line_for_each_method(found: GradientProfiles) -> None:
    drawn = pages.figure(found)
    assert [(t.name, t.xaxis or "x") for t in drawn.data] == [
        (name, axis) for name in ("ce-u", "gradient-ascent") for axis in ("x", "x2", "x3")
    ]
    ce_u = drawn.data[1]
    assert len(ce_u.y) == POINTS
    largest = max(point.norm for point in found.curves["ce-u"])
    assert ce_u.y[-1] == pytest.approx(found.curves["ce-u"][-1].true / largest)
    assert ce_u.customdata[-1][1] == pytest.approx(1.0, abs=1e-5)
    ascent = drawn.data[3]
    assert ascent.y[0] == pytest.approx(1.0)
    assert ascent.y[-1] < 1e-5
    assert len({(t.line.color, t.line.dash) for t in drawn.data}) == 2
