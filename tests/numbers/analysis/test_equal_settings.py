"""Only runs that differ in nothing but their seed are averaged; other settings have other names.

Random configurations are compared with a computation from the specs in the records alone.
"""

import json
import math
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.sensitivity import sensitivities
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.api.registry import load, load_method, names, trains
from unlearnbench.base.errors import PluginError
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodSpec, RetainSpec, RetainTermName
from unlearnbench.report.tracked_runs import LONGEST, RowsOfRun, SweepFacts, tracked_run
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record, run_record
from unlearnbench.results.run_settings import run_settings
from unlearnbench.results.setting_value import UNSET, SettingValue
from unlearnbench.results.table import TableRow, to_csv

from .conftest import pointed

VALUES: dict[str, tuple[Any, ...]] = {
    "retain_weight": (1.0, 2.0, 0.5),
    "forget_weight": (1.0, 0.5),
    "weight": (1.0, 2.0),
    # These look alike in a label of six digits.
    "beta": (0.1, 0.12345671, 0.12345672),
    "rho": (0.01, 0.05),
    "scaled": (True, False),
}
"""Values to draw, by hyperparameter: those that could share a name with one of another section."""
METHODS = [
    name
    for name in names("methods")
    if trains(name)
    and {"retain_weight", "weight", "scaled"} & load_method(name).model_fields.keys()
]


def a_run(**changes: Any) -> RunSpec:
    config = load_config("quickstart")
    first = make_plan(config, "rows").runs[0]
    return RunSpec.model_validate(first.model_copy(update=changes).model_dump())


FIRST = a_run()
SWEEP = SweepFacts("name", Path("nowhere"), "synthetic")
NO_ROWS = Panel(FIRST.model.name, FIRST.forget_fraction, ())


def a_method(draw: random.Random, method: str) -> MethodSpec | None:
    modifiers = draw.sample(["sam", "sophia", "spectral", "gru"], draw.choice((0, 0, 1)))
    retain: RetainTermName | None = draw.choice((None, "nll", "kl"))
    term = None if retain is None else RetainSpec(term=retain, weight=draw.choice((1.0, 2.0, 0.5)))
    chosen: dict[str, Any] = {}
    for prefix, plugin in {
        "": load_method(method),
        **{f"{name}.": load("modifiers", name) for name in modifiers},
    }.items():
        for key in plugin.model_fields.keys() & VALUES.keys():
            if draw.random() < 0.7:
                chosen[prefix + key] = draw.choice(VALUES[key])
    try:
        return method_spec(method, chosen, term, modifiers)
    except PluginError:  # the modifier needs a retain term
        return None


def random_runs(draw: random.Random) -> list[RunSpec]:
    """Runs of a few methods at some seeds, with many settings of each."""
    runs: dict[str, RunSpec] = {}
    for method in draw.sample(METHODS, 3):
        for _ in range(8):
            if (spec := a_method(draw, method)) is None:
                continue
            training = FIRST.training.model_copy(
                update={"batch_size": draw.choice((4, 8)), "weight_decay": draw.choice((0.0, 0.1))}
            )
            epochs = draw.choice((1, 2))
            fields = {
                "method": spec,
                "learning_rate": draw.choice((1e-4, 2e-4)),
                "training": training if draw.random() < 0.3 else FIRST.training,
                "epochs": epochs,
                "evaluate_at": tuple(range(1, epochs + 1)),
            }
            for seed in draw.sample((0, 1, 2), draw.choice((1, 2, 3))):
                run = FIRST.model_copy(update=fields | {"seed": seed})
                runs[run.id] = run
    return list(runs.values())


def recorded(run: RunSpec, draw: random.Random) -> Record:
    points = [(draw.random(), -draw.random()) for _ in range(run.budget)]
    epochs = pointed(run.id, points).epochs
    return run_record(run, status="finished", profile="tofu@1", epochs=epochs)


def without_seed(record: Record) -> str:
    """The spec of a record but for its seed: an independent name of its setting."""
    return json.dumps({k: v for k, v in record.spec.items() if k != "seed"}, sort_keys=True)


def expected_groups(records: list[Record]) -> set[tuple[frozenset[str], int]]:
    groups: dict[tuple[str, int], set[str]] = defaultdict(set)
    for record in records:
        for result in record.epochs:
            groups[without_seed(record), result.epoch].add(record.id)
    return {(frozenset(ids), epoch) for (_, epoch), ids in groups.items()}


@pytest.mark.parametrize("seed", range(12))
def test_the_groups_that_are_averaged_are_those_of_equal_specs(seed: int) -> None:
    draw = random.Random(seed)
    records = [recorded(run, draw) for run in random_runs(draw)]
    rows = table_of(records).rows
    settings = average_seeds(rows)
    averaged = {(frozenset(r.run_id for r in s.rows), s.epoch) for s in settings}
    assert averaged == expected_groups(records)
    by_id = {record.id: record for record in records}
    for setting in settings:
        values = [
            result.metrics["model_utility"]
            for row in setting.rows
            for result in by_id[row.run_id].epochs
            if result.epoch == setting.epoch
        ]
        mean = math.fsum(v for v in values if v is not None) / len(values)
        assert setting.kept == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_a_setting_has_one_id_whatever_stands_beside_it(seed: int) -> None:
    """Specs that differ in little are not all read."""
    draw = random.Random(300 + seed)
    every = [recorded(run, draw) for run in random_runs(draw)]
    alike = [record for record in every if record.spec["training"] == every[0].spec["training"]]
    alone = run_settings(alike)
    beside = run_settings(every)
    of_each = {record.id: run_settings([record])[record.id].id for record in alike}
    assert {id_: settings.id for id_, settings in alone.items()} == of_each
    assert {id_: beside[id_].id for id_ in of_each} == of_each


@pytest.mark.parametrize("seed", range(6))
def test_specs_that_cannot_be_read_are_compared_as_they_are_stored(seed: int) -> None:
    """Those of another version, or of a benchmark that is not installed."""
    draw = random.Random(400 + seed)
    records = [
        replace(record, spec={**record.spec, "unknown": 1})
        for record in (recorded(run, draw) for run in random_runs(draw))
    ]
    settings = average_seeds(table_of(records).rows)
    averaged = {(frozenset(r.run_id for r in s.rows), s.epoch) for s in settings}
    assert averaged == expected_groups(records)


@pytest.mark.parametrize("seed", range(12))
def test_different_settings_have_different_names_in_every_view(seed: int) -> None:
    draw = random.Random(100 + seed)
    records = [recorded(run, draw) for run in random_runs(draw)]
    specs = {record.id: without_seed(record) for record in records}
    labels: dict[tuple[str, float | None], set[str]] = defaultdict(set)
    columns: dict[tuple[str, str, float | None], set[str]] = defaultdict(set)
    for row in table_of(records).rows:
        labels[row.method, row.learning_rate].add(specs[row.run_id])
        settings = json.dumps(dict(row.setting.flat), sort_keys=True)
        columns[row.family, settings, row.learning_rate].add(specs[row.run_id])
    assert all(len(of_label) == 1 for of_label in labels.values())
    assert all(len(of_settings) == 1 for of_settings in columns.values())
    parameters: dict[str, set[str]] = defaultdict(set)
    for record in records:
        shown = dict(tracked_run(record, RowsOfRun(), SWEEP).parameters)
        del shown["seed"]
        parameters[json.dumps(shown, sort_keys=True)].add(specs[record.id])
    assert all(len(of_parameters) == 1 for of_parameters in parameters.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_plot_of_one_hyperparameter_joins_settings_that_differ_in_nothing_else(seed: int) -> None:
    draw = random.Random(200 + seed)
    records = [recorded(run, draw) for run in random_runs(draw)]
    by_id = {record.id: record for record in records}
    for method in sensitivities([replace(NO_ROWS, rows=table_of(records).rows)]):
        for dependence in method.dependences:
            for line in dependence.lines:
                others = {
                    json.dumps(values_but(by_id[setting.rows[0].run_id], dependence.name))
                    for setting in line
                }
                assert len(others) == 1, dependence.name


def values_but(record: Record, name: str) -> Any:
    """All settings of a record without its seed and the named one."""
    spec = json.loads(json.dumps(dict(record.spec)))
    del spec["seed"]
    method = spec["method"]
    if name == "learning rate":
        del spec["learning_rate"]
    elif name == "retain.weight" or (
        name == "retain_weight" and name not in method["hyperparameters"]
    ):
        del method["retain"]["weight"]
    elif name in method["hyperparameters"] or name in VALUES:
        method["hyperparameters"].pop(name, None)
    else:
        *sections, key = name.split(".")
        section = spec
        for step in sections:
            section = section[step]
        section.pop(key)
        if name == "epochs":
            del spec["evaluate_at"]
    return spec


def test_a_methods_own_weight_stands_beside_that_of_its_retain_term() -> None:
    own = {"hyperparameters": {"retain_weight": 0.5}, "retain": {"term": "kl", "weight": 2.0}}
    assert SettingValue.of(own).flat == {
        "retain_weight": 0.5,
        "retain": "kl",
        "retain.weight": 2.0,
    }
    plain = {"hyperparameters": {"beta": 0.1}, "retain": {"term": "nll", "weight": 2.0}}
    assert SettingValue.of(plain).flat == {"beta": 0.1, "retain": "nll", "retain_weight": 2.0}
    # A modifier of one's own may be called like a section.
    named = {
        "hyperparameters": {"retain_weight": 0.5, "retain.weight": 3.0},
        "retain": {"term": "kl", "weight": 2.0},
    }
    assert len(SettingValue.of(named).flat) == 4


def test_a_hyperparameter_is_told_from_training_settings_of_its_name() -> None:
    """A plug-in's field may be called like a setting of the training or the model."""
    method = MethodSpec(
        name="mine", hyperparameters={"batch_size": 3, "epochs": 7, "dtype": "x", "lora_rank": 1}
    )
    run = FIRST.model_copy(update={"method": method})
    draw = random.Random(0)
    parameters = tracked_run(recorded(run, draw), RowsOfRun(), SWEEP).parameters
    assert parameters["batch_size"] == str(FIRST.training.batch_size)
    assert parameters["epochs"] == str(FIRST.epochs)
    assert parameters["dtype"] == "float32"
    assert [parameters[f"method.{name}"] for name in ("batch_size", "epochs", "dtype")] == [
        *("3", "7", "x")
    ]
    wide = FIRST.training.model_copy(update={"batch_size": 64})
    others = [run, run.model_copy(update={"training": wide, "seed": 1})]
    rows = table_of([recorded(item, draw) for item in others]).rows
    assert {row.method for row in rows} == {
        f"mine (training.batch_size={run.training.batch_size})",
        "mine (training.batch_size=64)",
    }


def test_a_search_draws_both_weights_and_names_both(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(
        """\
name: mine
data: {source: synthetic}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
search: {kind: random, trials: 12}
learning_rates: [1.0e-4]
seeds: [0, 1]
methods:
  - method: gradient-difference
    retain_weight: {low: 1, high: 3, step: 1}
    retain: {term: kl, weight: {low: 1, high: 3, step: 1}}
""",
        encoding="utf-8",
    )
    draw = random.Random(0)
    records = [recorded(run, draw) for run in make_plan(load_config(str(file)), "rows").runs]
    rows = table_of(records).rows
    settings = [setting for setting in average_seeds(rows) if setting.epoch == 1]
    assert len(settings) == 9, "all of three by three"
    assert len({setting.method for setting in settings}) == 9
    assert {len(setting.rows) for setting in settings} == {2}
    (method,) = sensitivities([replace(NO_ROWS, rows=rows)])
    assert [item.name for item in method.dependences] == ["retain.weight", "retain_weight"]
    assert {len(line) for item in method.dependences for line in item.lines} == {3}


def test_a_hyperparameter_that_is_stored_only_off_its_default_has_both_values() -> None:
    draw = random.Random(0)
    runs = [
        FIRST.model_copy(update={"method": method_spec("dpo", {"scaled": scaled})})
        for scaled in (False, True)
    ]
    assert [len(run.method.hyperparameters) for run in runs] == [2, 3]
    rows = table_of([recorded(run, draw) for run in runs]).rows
    assert {row.method for row in rows} == {"dpo", "dpo (scaled=True)"}
    (method,) = sensitivities([replace(NO_ROWS, rows=rows)])
    (dependence,) = method.dependences
    assert [dependence.value(setting) for setting in dependence.lines[0]] == [True, UNSET]


def test_long_values_stay_different_in_a_tracker() -> None:
    draw = random.Random(0)
    shown: set[str] = set()
    for end in "ab":
        method = MethodSpec(name="mine", hyperparameters={"instruction": "x" * 600 + end})
        run = recorded(FIRST.model_copy(update={"method": method}), draw)
        value = tracked_run(run, RowsOfRun(), SWEEP).parameters["instruction"]
        assert len(value) <= LONGEST
        shown.add(value)
    assert len(shown) == 2


def test_rows_of_several_tables_are_averaged_by_their_specs() -> None:
    """Each table labels its only setting `gradient-difference`."""
    draw = random.Random(0)
    rows: list[TableRow] = []
    for weight in (0.5, 8.0):
        spec = method_spec("gradient-difference", {"retain_weight": weight})
        run = FIRST.model_copy(update={"method": spec, "seed": int(weight)})
        rows += table_of([recorded(run, draw)]).rows
    assert {row.method for row in rows} == {"gradient-difference"}
    assert all(len(setting.rows) == 1 for setting in average_seeds(rows))


def test_a_configuration_without_a_collision_has_the_names_of_before() -> None:
    draw = random.Random(0)
    runs = [
        FIRST.model_copy(
            update={"method": method_spec("npo", {"beta": beta}, RetainSpec(term="nll"))}
        )
        for beta in (0.1, 0.5)
    ]
    rows = table_of([recorded(run, draw) for run in runs]).rows
    assert {row.method for row in rows} == {"npo+nll (beta=0.1)", "npo+nll (beta=0.5)"}
    assert '""retain"": ""nll"", ""retain_weight"": 1.0' in to_csv(rows)
