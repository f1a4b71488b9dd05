"""The section on sensitivity: its table and its figures."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ..conftest import context_of

if TYPE_CHECKING:
    from ..conftest import Fabric

module: Any = importlib.import_module("unlearnbench_dashboards.sections.sensitivity")
SECTION: Any = module.SensitivitySection()


def test_means_are_a_line_with_bars(fabric: Fabric) -> None:
    qualities = {1e-5: (-9.0, -7.0), 1e-4: (-3.0, -4.0)}
    runs = [
        fabric.run("npo", rate, points=((0.8, -10.0), (0.7, quality)), seed=seed)
        for rate, values in qualities.items()
        for seed, quality in enumerate(values)
    ]
    context = context_of(fabric.reference("fine-tuned"), *runs, fabric.run("dpo"))
    values = SECTION.values(context)
    assert values["alone"] == ["dpo"]
    (line,) = values["table"].lines
    texts = {c.title: c.text(line) for c in values["table"].columns[:3]}
    assert texts == {"Method": "npo", "Settings": "2", "log₁₀ FQ range": "4.50"}
    ((forgotten, kept),) = SECTION.data(context)["lines"]
    assert forgotten["layout"]["title"]["text"] == "npo: log₁₀ FQ"
    assert kept["layout"]["title"]["text"] == "npo: utility"
    (means,) = forgotten["data"]
    assert forgotten["layout"]["xaxis"]["type"] == "log"
    assert forgotten["layout"]["xaxis"]["ticktext"] == ["1e-5", "1e-4"]
    assert (means["x"], means["y"]) == ([1e-5, 1e-4], [-8.0, -3.5])
    assert means["error_y"]["array"] == [1.0, 0.5], "of two seeds, the larger value"
    assert [s["y0"] for s in forgotten["layout"]["shapes"]] == [pytest.approx(-16.3)]


def test_values_of_a_hyperparameter_have_a_line_per_rate(fabric: Fabric) -> None:
    runs = [
        fabric.run("npo", rate, hyperparameters={"beta": beta, "mode": mode})
        for rate in (1e-5, 1e-4)
        for beta in (0.0, 1.0)
        for mode in ("a", "b")
    ]
    figures = SECTION.data(context_of(*runs))["lines"][0]
    by = {f["layout"]["xaxis"]["title"]["text"]: f for f in figures}
    assert {name: f["layout"]["xaxis"]["type"] for name, f in by.items()} == {
        "learning rate": "log",
        "beta": "linear",
        "mode": "category",
    }
    assert len(by["beta"]["data"]) == 4
    names = {one["name"] for one in by["beta"]["data"]}
    assert "npo (beta=0, mode=a), rate 1e-5" in names


def test_values_that_look_alike_have_places_of_their_own(fabric: Fabric) -> None:
    runs = [
        replace(fabric.run("npo", 1e-5, hyperparameters={"mode": mode}), id=f"run{number}")
        for number, mode in enumerate(("1", 1, "true", True))
    ]
    (figure, _) = SECTION.data(context_of(*runs))["lines"][0]
    assert figure["layout"]["xaxis"]["type"] == "category"
    assert figure["data"][0]["x"] == [1, "true", '"1"', '"true"']


def test_a_default_that_is_not_stored_has_a_place(fabric: Fabric) -> None:
    runs = [fabric.run("dpo", 1e-5, hyperparameters=values) for values in ({}, {"scaled": True})]
    (figure, _) = SECTION.data(context_of(*runs))["lines"][0]
    assert figure["data"][0]["x"] == ["true", "default"]


def test_a_strip_has_every_setting_of_every_method(fabric: Fabric) -> None:
    kept = {1e-5: 0.8, 1e-4: 0.3}
    runs = [
        fabric.run(method, rate, points=((0.8, -10.0), (utility, -5.0)), seed=seed)
        for method in ("npo", "dpo")
        for rate, utility in kept.items()
        for seed in range(3)
    ]
    retain = fabric.reference("retain")
    context = context_of(fabric.reference("fine-tuned"), retain, *runs, fabric.run("idk"))
    ((utility, forgotten),) = SECTION.data(context)["strips"]
    assert utility["layout"]["yaxis"]["ticktext"] == ["dpo", "idk", "npo"]
    marks = {
        (trace["meta"]["family"], trace["meta"]["rate"]): (*trace["x"], *trace["marker"]["symbol"])
        for trace in utility["data"]
    }
    assert marks == {
        ("dpo", "1e-5"): (0.8, "circle"),
        ("dpo", "1e-4"): (0.3, "circle-open"),
        ("idk", "1e-4"): (0.7, "triangle-up"),
        ("npo", "1e-5"): (0.8, "diamond"),
        ("npo", "1e-4"): (0.3, "diamond-open"),
    }
    lines = {shape["name"]: shape["x0"] for shape in utility["layout"]["shapes"]}
    assert lines == {"start": 0.883, "80 %": pytest.approx(0.8 * 0.883)}
    lines = {shape["name"]: shape["x0"] for shape in forgotten["layout"]["shapes"]}
    assert lines == {"start": -16.3, "retain": 0.0}
    bars = [trace["error_x"] for trace in utility["data"] if trace["meta"]["rate"] == "1e-4"]
    assert bars == [None, None, None], "of a collapsed model, and of one seed"
    (epoch, run, text) = utility["data"][1]["customdata"][0]
    assert (epoch, run) == (2, "dpo-0.0001-tiny-0.1-0")
    assert text == "dpo, learning rate 1e-4, epoch 2, mean of 3 seeds; collapsed"


def test_methods_of_one_setting_each_have_no_section(fabric: Fabric) -> None:
    runs = [fabric.run("npo"), fabric.run("dpo")]
    assert SECTION.values(context_of(fabric.reference("fine-tuned"), *runs)) is None


def test_without_a_range_there_is_no_table_and_still_a_strip(fabric: Fabric) -> None:
    runs = [fabric.run("npo", rate, points=((0.1, -5.0),)) for rate in (1e-5, 1e-4)]
    values = SECTION.values(context_of(fabric.reference("fine-tuned"), *runs))
    assert (values["table"], values["alone"], values["has_collapsed"]) == (None, ["npo"], True)
