"""Every run that a search trains is in its plan, its table and its choice, whatever the space."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.selection_rule import choose
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Range, SelectSettings
from unlearnbench.config.search_space import Point, Space
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import planned_records, read_records, write_record
from unlearnbench.sweep.follow_up_runs import FollowUpRuns, stored_point

from ...factories.marks import diagonals_in_make_test
from .test_follow_up_runs import a_record, drained, searching

BETAS = (0.01, 0.1, 0.125, 0.3333, 1.0, 2.5)


def number_axis(rng: random.Random, low: float, high: float) -> Any:
    """A value, a list or a range of floats between two ends."""
    kind = rng.choice(["value", "list", "range", "log", "step"])
    if kind == "value":
        return rng.choice([low, round(rng.uniform(low, high), 3)])
    if kind == "list":
        return sorted({round(rng.uniform(low, high), 5) for _ in range(rng.randint(2, 4))})
    bottom = rng.choice([low, round(rng.uniform(low, (low + high) / 2), rng.randint(2, 7))])
    top = round(bottom + rng.uniform(0.1, 0.9) * (high - low), rng.randint(3, 8))
    axis: dict[str, Any] = {"low": bottom, "high": top}
    if kind == "log":
        axis["log"] = True
    if kind == "step":
        axis["step"] = rng.choice([(top - bottom) / rng.randint(3, 40), 0.125, 1 / 3, 0.07])
        if axis["step"] >= top - bottom:
            axis["step"] = (top - bottom) / 3
    return axis


def whole_axis(rng: random.Random, low: int, high: int) -> Any:
    """A value, a list or a range of whole numbers."""
    kind = rng.choice(["value", "list", "range", "log", "step"])
    if kind == "value":
        return rng.randint(low, high)
    if kind == "list":
        return sorted(rng.sample(range(low, high + 1), 2))
    axis: dict[str, Any] = {"low": low, "high": high}
    if kind == "log":
        axis["log"] = True
    if kind == "step":
        axis["step"] = rng.randint(2, 3)
    return axis


def a_space(rng: random.Random) -> dict[str, Any]:
    """An entry of a method with some axes."""
    name = rng.choice(["npo", "rmu", "ce-u", "eco", "simnpo"])
    entry: dict[str, Any] = {"method": name}
    if name in ("npo", "simnpo"):
        entry["beta"] = number_axis(rng, 0.05, 30.0)
    if name == "rmu":
        entry |= {"layer": whole_axis(rng, 1, 9), "steering": number_axis(rng, 1.0, 20000.0)}
    if name == "eco":
        return entry | {"sigma": number_axis(rng, 5.0, 50.0), "dims": [8, 16]}
    terms: list[Any] = [None, "nll", ["nll", None], {"term": ["nll", "kl"], "weight": 2}]
    terms.append({"term": ["nll", "kl"], "weight": number_axis(rng, 0.5, 10.0)})
    entry["retain"] = rng.choice(terms)
    if rng.random() < 0.3:
        entry["modifiers"] = [{"sam": {"rho": number_axis(rng, 0.01, 0.5)}}]
    if rng.random() < 0.5:
        entry["learning_rates"] = rng.choice(
            [[1e-5], [1e-5, 3e-5], {"low": 1, "high": 3}, number_axis_of_rates(rng)]
        )
    return entry


def number_axis_of_rates(rng: random.Random) -> Any:
    """A range of learning rates."""
    low = 10 ** rng.uniform(-7, -4)
    axis = {"low": low, "high": low * rng.uniform(2, 100)}
    return axis | rng.choice([{}, {"log": True}, {"step": low / 3}])


def without_ranges(value: Any) -> Any:
    """The same with a list of both ends in the place of each range, for a grid."""
    if isinstance(value, dict):
        if "low" in value:
            return [value["low"], value["high"]]
        return {key: without_ranges(part) for key, part in value.items()}
    return [without_ranges(part) for part in value] if isinstance(value, list) else value


def a_config(rng: random.Random, kind: str) -> SweepConfig:
    """A configuration of one or two entries, read from a file."""
    methods = [a_space(rng) for _ in range(rng.randint(1, 2))]
    document: dict[str, Any] = {
        "name": "small",
        "models": [{"name": "tiny", "base": "tiny"}],
        "forget_fractions": [0.1],
        "methods": methods,
        "learning_rates": {"low": 1e-6, "high": 1e-3, "log": True},
        "epochs": 1,
        "seeds": [0, 1],
    }
    if kind == "grid":
        document = without_ranges(document)
    elif kind == "tune":
        document["tune"] = {"trials": 4}
    elif kind == "halving":
        scheduler = {"metric": "model_utility"}
        document["search"] = {"kind": "random", "trials": 4, "scheduler": scheduler}
        document["epochs"] = 3
    else:
        document["search"] = {"kind": kind, "trials": 4}
    Path("space.yaml").write_text(json.dumps(document), encoding="utf-8")
    return load_config("space.yaml")


@pytest.mark.parametrize(
    ("kind", "seed"),
    diagonals_in_make_test(
        2, ("grid", "random", "quasi-random", "optuna", "halving", "tune"), range(8)
    ),
)
def test_every_run_of_a_search_is_in_plan_table_and_choice(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(f"{kind} {seed}")
    config = a_config(rng, kind)
    trained = [*drained(searching(config, tmp_path)[1], 1000)]
    for number, run in enumerate(trained):
        # As a worker gets the run, and as its record has it.
        again = RunSpec.model_validate_json(json.dumps(run.to_json()))
        assert again.id == run.id
        worth = (0.5 + number / 1e4, -5.0)
        write_record(a_record(again, points=[worth] * again.budget), tmp_path)

    follow_up = FollowUpRuns(make_plan(config, "data"), tmp_path)
    plan = follow_up.current_plan()
    ids = {run.id for run in trained}
    assert {run.id for run in plan.runs} == ids
    assert not follow_up.has_search

    records = planned_records(read_records(tmp_path), {run.id for run in plan.runs}, ())
    assert {record.id for record in records} == ids
    rows = table_of(records).rows
    assert {row.run_id for row in rows} == ids
    seeds = tuple(sorted({run.seed for run in trained}))
    choices = choose(rows, SelectSettings(seeds=seeds))
    settings = {(repr(run.method), run.learning_rate) for run in trained}
    assert sum(choice.candidates for choice in choices) == len(settings)

    spaces = [Space(grid, config) for grid in config.methods]
    for run in trained:
        point = Point(run.method, run.learning_rate)
        assert any(space.values(point) is not None for space in spaces), point


@pytest.mark.parametrize("seed", range(200))
def test_every_value_of_a_range_is_one_of_its_values(seed: int) -> None:
    rng = random.Random(seed)
    axis = number_axis(rng, 0.05, 30.0) if seed % 2 else whole_axis(rng, 1, 40)
    if not isinstance(axis, dict):
        axis = {"low": 10, "high": 20.0, "step": 0.125}
    values = Range.model_validate(axis)
    drawn = [values.value(rng.random()) for _ in range(50)]
    for value in drawn:
        assert values.contains(value), value
        assert values.contains(json.loads(json.dumps(value))), value
    if values.step is not None:
        exact = [values.low + i * values.step for i in range(values.count or 0)]
        assert all(any(abs(v - e) <= 1e-11 * abs(e) for e in exact) for v in drawn)


def test_a_value_that_an_earlier_version_rounded_is_one_of_the_range() -> None:
    """So that its run is a trial of the search that trained it."""
    beta = Range(low=10.0, high=20.0, step=0.125)
    assert beta.contains(10.12), "10.125 with four digits"
    assert beta.contains(10.125)
    assert not beta.contains(10.13)
    assert not beta.contains(10.0625)


def test_the_text_of_an_infinite_number_stays_text_if_the_field_takes_text(tmp_path: Path) -> None:
    """JSON has the same text for the number; the field tells which of them it is."""
    path = tmp_path / "sweep.yaml"
    path.write_text(
        """\
name: mine
data: {source: synthetic}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
search: {kind: optuna, trials: 1}
learning_rates: [1.0e-4]
methods:
  - {method: altpo, stop: inf, beta: {low: 0.1, high: 1.0}}
  - {method: general-ce-u, raw: true, forget_score: -.inf, retain_score: {low: 0.1, high: 1.0}}
""",
        encoding="utf-8",
    )
    config = load_config(str(path))
    for grid in config.methods:
        spec = grid.specs[0]
        stored = json.loads(json.dumps(json_ready(spec.model_dump(mode="json"))))
        again, rate = stored_point({"method": stored, "learning_rate": 1e-4})
        assert (again, rate) == (spec, 1e-4)
        assert method_from_spec(again) == method_from_spec(spec)
