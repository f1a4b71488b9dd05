"""A setting is a structured value: two settings are never taken for one.

Random sweeps have values that are easily confused: equal names in the method, its retain term and
its modifiers, numbers and texts that look alike, defaults that are left out, lists and mappings.
"""

import csv
import io
import json
import math
import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.analysis.best_settings import Best, panels
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.analysis.wording import setting_name
from unlearnbench.base.number_text import float_text
from unlearnbench.config.schema import MethodSpec
from unlearnbench.report.best_table import write_table
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record
from unlearnbench.results.setting_value import (
    NO_SETTING,
    UNSET,
    Labels,
    SettingValue,
    names_of,
    value_text,
)
from unlearnbench.results.table import to_csv

from .conftest import REFERENCES, pointed

ALIKE: tuple[Any, ...] = (
    *(1, 1.0, True, "1", "1.0", "true", "True"),
    *(0, 0.0, -0.0, False, "0", "", None, "None", "null"),
    *(0.1, "0.1", 0.12345671, 0.12345672, "default", '"default"'),
    *("a b", "a  b", "a\nb", " a b"),
    *([1], "[1]", [1.0], [], "[]", {"a": 1}, '{"a": 1}', {}, math.inf, "inf"),
)
"""Values that look alike in some text, or are equal in Python."""
NAMES = ("beta", "retain_weight", "weight", "epochs", "source", "batch_size")
"""Names of fields: those of other sections are among them."""
MODIFIERS: tuple[dict[str, Any], ...] = ({}, {}, {"sam": None}, {"kl": None}, {"training": "ab"})
RETAIN: tuple[Any, ...] = (None, {"term": "kl", "weight": 1.0}, {"term": "kl", "weight": 2.0})


def a_method(draw: random.Random) -> dict[str, Any]:
    modifiers = draw.choice(MODIFIERS)
    values = {name: draw.choice(ALIKE) for name in draw.sample(NAMES, 2)}
    for modifier in modifiers:
        if draw.random() < 0.5:
            values[f"{modifier}.batch_size"] = draw.choice((1, 1.0, "default"))
    retain = draw.choice(RETAIN)
    method = {"name": "mine", "hyperparameters": values, "retain": retain, "source": None}
    return method | ({"modifiers": modifiers} if modifiers else {})


def a_record(number: int, seed: int, spec: dict[str, Any]) -> Record:
    method = spec["method"]
    label = MethodSpec(
        name=method["name"], retain=method["retain"], modifiers=method.get("modifiers", {})
    ).label
    points = [(0.8, -5.0)] * spec["epochs"]
    made = pointed(f"{number}-{seed}", points, method=label, rate=spec["learning_rate"], seed=seed)
    epochs = tuple(e for e in made.epochs if e.epoch in spec["evaluate_at"])
    return replace(made, spec=spec | {"seed": seed}, epochs=epochs)


def random_records(seed: int) -> list[Record]:
    """Records of settings that differ in one or a few values, each with one to three seeds."""
    draw = random.Random(seed)
    methods = [a_method(draw) for _ in range(3)]
    records: dict[str, list[Record]] = {}
    for number in range(40):
        method = dict(draw.choice(methods))
        if draw.random() < 0.7:
            method["hyperparameters"] = {
                name: draw.choice(ALIKE) if draw.random() < 0.5 else value
                for name, value in method["hyperparameters"].items()
            }
        if draw.random() < 0.3:
            method["retain"] = draw.choice(RETAIN)
        epochs = draw.choice((1, 2, 3))
        every = draw.choice((1, 1, 2))
        evaluated = [e for e in range(1, epochs + 1) if e % every == 0 or e == epochs]
        spec = {
            "method": method,
            "learning_rate": draw.choice((1e-5, 1e-5, 1.00000001e-5)),
            "epochs": epochs,
            "evaluate_at": draw.choice((evaluated, [epochs])),
            "model": {"name": "tiny", "template_args": draw.choice(TEMPLATE_ARGS)},
            "training": {"batch_size": draw.choice((4, 4, 8))},
        }
        text = json.dumps(spec, sort_keys=True)
        seeds = draw.sample(range(3), draw.choice((1, 2, 3)))
        records.setdefault(text, [a_record(number, s, spec) for s in seeds])
    return [record for several in records.values() for record in several]


TEMPLATE_ARGS: tuple[dict[str, Any], ...] = (
    {},
    {"x": "default"},
    {"x": 1},
    {"x": "1"},
    {"a.b": 1},
    {"a": {"b": 1}},
    {"a.b=1, x": 1},
)


def without_seed(record: Record) -> str:
    """Name a setting by its specification, independently of the product."""
    spec = {key: value for key, value in record.spec.items() if key != "seed"}
    if spec["evaluate_at"] == [spec["epochs"]]:
        # With `epochs_as: runs`, a setting has a run for each number of epochs.
        del spec["evaluate_at"], spec["epochs"]
    return json.dumps(spec, sort_keys=True)


@pytest.mark.parametrize("seed", range(30))
def test_two_runs_are_averaged_exactly_if_they_are_equal_apart_from_the_seed(seed: int) -> None:
    records = random_records(seed)
    expected: dict[tuple[str, int], set[str]] = defaultdict(set)
    for record in records:
        for result in record.epochs:
            expected[without_seed(record), result.epoch].add(record.id)
    settings = average_seeds(table_of(records).rows)
    averaged = {frozenset(row.run_id for row in setting.rows) for setting in settings}
    assert averaged == {frozenset(ids) for ids in expected.values()}
    assert len(settings) == len(expected)


@pytest.mark.parametrize("seed", range(30))
def test_a_label_is_of_one_setting_and_a_setting_has_one_label(seed: int) -> None:
    records = random_records(seed)
    name_of = {record.id: without_seed(record) for record in records}
    rows = table_of(records).rows
    settings_of_label: dict[tuple[str, str], set[str]] = defaultdict(set)
    labels_of_setting: dict[str, set[str]] = defaultdict(set)
    for line in csv.DictReader(io.StringIO(to_csv(rows))):
        label = " ".join(line["method"].split()), line["learning_rate"]
        settings_of_label[label].add(name_of[line["run_id"]])
        labels_of_setting[name_of[line["run_id"]]].add(line["method"])
    assert all(len(settings) == 1 for settings in settings_of_label.values())
    assert all(len(labels) == 1 for labels in labels_of_setting.values())
    for row in rows:
        assert len({*row.setting.names.values()}) == len(row.setting.values)


@pytest.mark.parametrize("seed", range(30))
def test_a_setting_has_a_name_of_its_own_in_sentences_and_tables(seed: int) -> None:
    records = random_records(seed)
    every = panels(table_of([*REFERENCES, *records]).rows)
    settings = [setting for panel in every for setting in panel.settings]
    assert len({setting_name(setting) for setting in settings}) == len(settings)
    lines = [Best(*setting.panel, setting.method, setting.family, setting) for setting in settings]
    for kind in ("latex", "markdown", "csv"):
        text = write_table(lines, every[0].headline, "rule", kind)
        described = [line for line in text.splitlines() if "mine" in line]
        assert len({*described}) == len(described) == len(settings), kind


def test_rates_that_look_alike_have_texts_of_their_own() -> None:
    draw = random.Random(0)
    for _ in range(500):
        rate = draw.choice((1e-5, 2e-4, 3.0, 0.1, draw.random() * 10.0 ** -draw.randrange(9)))
        near = draw.choice((math.nextafter(rate, 1.0), rate * (1 + 1e-9), rate * (1 + 1e-5)))
        assert float(float_text(rate)) == rate
        assert float_text(near) != float_text(rate)
    assert [float_text(rate) for rate in (1e-5, 2e-4, 0.001, 3.0)] == [
        *("1e-05", "0.0002", "0.001", "3")
    ]


@pytest.mark.parametrize("seed", range(30))
def test_settings_are_equal_exactly_if_their_values_and_types_are(seed: int) -> None:
    draw = random.Random(seed)
    methods = [a_method(draw) for _ in range(30)]
    settings = [SettingValue.of(method) for method in methods]
    texts = [json.dumps(method, sort_keys=True) for method in methods]
    for one, its_text in zip(settings, texts, strict=True):
        for other, other_text in zip(settings, texts, strict=True):
            assert (one == other) is (its_text == other_text)
    assert len({*settings}) == len({*texts})


@pytest.mark.parametrize("first", ALIKE)
def test_values_that_look_alike_have_labels_of_their_own(first: Any) -> None:
    for second in ALIKE:
        if json.dumps(first) == json.dumps(second):
            continue
        labels = Labels()
        settings = [SettingValue.of({"hyperparameters": {"x": v}}) for v in (first, second)]
        for setting in settings:
            labels.add("mine", setting)
        one, other = (labels.label("mine", setting) for setting in settings)
        assert one.split() != other.split()


def test_a_default_that_is_left_out_is_not_the_text_default() -> None:
    path = ("model", "template_args", "x")
    absent, text = (SettingValue.of({}, others={path: value}) for value in (UNSET, "default"))
    assert absent != text
    labels = Labels()
    labels.add("npo", absent)
    labels.add("npo", text)
    assert labels.label("npo", absent) == "npo (model.template_args.x=default)"
    assert labels.label("npo", text) == 'npo (model.template_args.x="default")'
    assert absent.flat == text.flat == {"model.template_args.x": "default"}


def test_a_modifier_without_settings_is_told_from_a_retain_term_of_its_name() -> None:
    plain = {"name": "npo", "hyperparameters": {}}
    with_term = SettingValue.of(plain | {"retain": {"term": "kl", "weight": 1.0}})
    with_modifier = SettingValue.of(plain | {"retain": None, "modifiers": {"kl": None}})
    assert with_term != with_modifier
    labels = Labels()
    labels.add("npo+kl", with_term)
    labels.add("npo+kl", with_modifier)
    assert labels.label("npo+kl", with_term) == "npo+kl (retain=kl, retain_weight=1)"
    assert labels.label("npo+kl", with_modifier) == "npo+kl"


def test_a_name_is_of_one_value_in_all_settings_that_are_compared() -> None:
    """A method's own weight may be stored only if it is set."""
    term = {"retain": {"term": "kl", "weight": 2.0}}
    own = SettingValue.of(term | {"hyperparameters": {"retain_weight": 0.5}})
    without = SettingValue.of(term | {"hyperparameters": {}})
    assert names_of([own, without]) == {
        ("method", "hyperparameters", "retain_weight"): "retain_weight",
        ("method", "retain", "term"): "retain",
        ("method", "retain", "weight"): "retain.weight",
    }
    labels = Labels()
    labels.add("x+kl", own)
    labels.add("x+kl", without)
    assert labels.label("x+kl", own) == "x+kl (retain_weight=0.5)"
    assert labels.label("x+kl", without) == "x+kl"


def test_a_stored_setting_tells_what_was_left_out() -> None:
    method = {
        "name": "npo",
        "hyperparameters": {"beta": 0.1, "sam.rho": 0.05},
        "retain": {"term": "kl", "weight": 2.0},
        "modifiers": {"sam": None},
    }
    others: dict[tuple[str, ...], Any] = {
        ("training", "batch_size"): 8,
        ("training", "deterministic"): UNSET,
    }
    assert json.loads(json.dumps(SettingValue.of(method, 1e-5, others, "ab12").to_json())) == {
        "id": "ab12",
        "method": "npo",
        "fields": {"beta": 0.1},
        "retain": {"term": "kl", "weight": 2.0},
        "modifiers": {"sam": {"rho": 0.05}},
        "learning_rate": 1e-5,
        "others": [
            {"path": ["training", "batch_size"], "value": 8},
            {"path": ["training", "deterministic"]},
        ],
    }


def test_start_and_retain_models_have_an_empty_setting() -> None:
    assert SettingValue() == NO_SETTING
    assert not NO_SETTING.flat
    assert value_text(UNSET) == "default"
