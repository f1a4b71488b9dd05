"""Quasi-random settings fill every axis and every pair of axes; an old sweep keeps its own."""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.plan_file import planned_sequence
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.config.search import Range, SearchSettings
from unlearnbench.config.search_space import Space, points_of
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.stats.point_sequences import PointSequence

RATES = Range(low=1e-6, high=1e-3, log=True)
AXES = {
    "beta": Range(low=0.0, high=1.0),
    "gamma": Range(low=0.0, high=1.0),
    "retain.weight": Range(low=0.5, high=2.5),
}


def a_config(axes: int = 3, trials: int = 6, **changes: Any) -> SweepConfig:
    """A search over some of simnpo's hyperparameters, and over learning rates."""
    ranges = dict(list(AXES.items())[: axes - 1])
    values = {key: 0.5 for key in ranges if "." not in key}
    retain = {"retain": {"term": "nll", "weight": 0.5}} if "retain.weight" in ranges else {}
    spec = method_spec("simnpo", {"beta": 4.5, "gamma": 0.0} | values)
    spec = type(spec).model_validate(spec.model_dump() | retain)
    fields: dict[str, Any] = {
        "name": "even",
        "models": (ModelSettings(name="tiny", base="tiny"),),
        "forget_fractions": (0.1,),
        "methods": (MethodGrid(specs=(spec,), ranges=ranges),),
        "learning_rates": RATES,
        "epochs": 1,
        "search": SearchSettings(kind="quasi-random", trials=trials),
    }
    return SweepConfig(**(fields | changes))


def places(config: SweepConfig, sequence: PointSequence = "sobol") -> list[list[float]]:
    """Where the settings are in their ranges, without the untuned setting, which is the first."""
    (grid,) = config.methods
    space = Space(grid, config)
    found: list[list[float]] = []
    for point in points_of(grid, config, sequence)[1:]:
        values = space.values(point)
        assert values is not None
        shares: list[float] = []
        for name, axis in space.axes.items():
            assert isinstance(axis, Range)
            shares.append(axis.share(values[name]))
        found.append(shares)
    return found


@pytest.mark.parametrize(("axes", "power"), [*itertools.product((2, 3, 4), (2, 3, 4, 5))])
def test_each_axis_has_one_setting_in_each_equal_part(axes: int, power: int) -> None:
    """Of the first 2^k settings, whatever the seed."""
    count = 2**power
    for seed in range(5):
        search = SearchSettings(kind="quasi-random", trials=count + 1, seed=seed)
        for axis in zip(*places(a_config(axes, search=search)), strict=True):
            # Values are rounded to four digits, which may move them over the end of a part.
            cells = sorted(min(int((place + 1e-6) * count), count - 1) for place in axis)
            moved = sum(a != b for a, b in zip(cells, range(count), strict=True))
            assert moved <= 1


def test_no_axis_takes_few_values_in_six_trials() -> None:
    """As one of three axes did, whose step was 0.671, about two thirds."""

    def values_of(sequence: PointSequence) -> list[int]:
        found = zip(*places(a_config(3, 9), sequence), strict=True)
        return [len({round(place * 12) for place in axis}) for axis in found]

    assert min(values_of("recurrence")) <= 5
    assert min(values_of("sobol")) >= 7


def test_each_pair_of_axes_is_filled() -> None:
    """Of 32 settings, each of 16 cells has some."""
    for first, second in itertools.combinations(zip(*places(a_config(4, 33)), strict=True), 2):
        cells = {(int(a * 4), int(b * 4)) for a, b in zip(first, second, strict=True)}
        assert len(cells) == 16


def test_fewer_trials_are_the_first_of_more() -> None:
    many = places(a_config(3, 150))
    assert places(a_config(3, 20)) == many[:19]
    other = SearchSettings(kind="quasi-random", trials=20, seed=1)
    assert places(a_config(3, search=other)) != many[:19]


def test_one_axis_keeps_the_settings_of_earlier_versions() -> None:
    """Steps of the golden ratio, which no sequence of one axis surpasses."""
    (grid,) = a_config(1, 12).methods
    rates = [rate for _, rate in points_of(grid, a_config(1, 12))][1:]
    places_of_rates = [RATES.share(rate or 0.0) for rate in rates]
    golden = (math.sqrt(5) - 1) / 2
    for before, after in itertools.pairwise(places_of_rates):
        assert (after - before) % 1 == pytest.approx(golden, abs=1e-4)
    assert rates == [rate for _, rate in points_of(grid, a_config(1, 12), "recurrence")][1:]


def test_values_are_the_same_everywhere() -> None:
    """So that the same command has the same runs on all machines.

    Sobol's first four points are 0, 1/2, 3/4, 1/4 on the first axis, and 0, 1/2, 1/4, 3/4 on the
    next two. Here they are shifted by exchanged digits. The shifts are from this code's seeds.
    """
    found = [[round(place, 3) for place in point] for point in places(a_config(3, 5))]
    assert found == [
        [0.477, 0.46, 0.242],
        [0.977, 0.96, 0.742],
        [0.727, 0.21, 0.492],
        [0.227, 0.71, 0.992],
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    drain()
    yield tmp_path / "runs" / "even"
    drain()


def planned(config: SweepConfig, sequence: PointSequence = "sobol") -> Plan:
    return make_plan(config, "data", sequence=sequence)


def test_the_plan_says_which_points_a_sweep_began_with(folder: Path) -> None:
    assert planned_sequence(folder) == "sobol", "nothing is planned yet"
    claim_folder(planned(a_config()))
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert document["sequence"] == "sobol"
    assert planned_sequence(folder) == "sobol"

    del document["sequence"]  # as earlier versions wrote it
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    assert planned_sequence(folder) == "recurrence"
    claim_folder(planned(a_config(), planned_sequence(folder)))
    assert planned_sequence(folder) == "recurrence", "also after the plan was written again"

    random_search = SearchSettings(kind="random", trials=3)
    claim_folder(planned(a_config(search=random_search)))
    assert "sequence" not in json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert planned_sequence(folder) == "sobol", "no quasi-random search began"


def test_a_sweep_of_an_earlier_version_goes_on_with_its_settings(folder: Path) -> None:
    """It says so, and never has settings of both sequences."""
    changes = {"data": {"source": "synthetic", "authors": 4}, "forget_fractions": (0.5,)}
    config = a_config(3, 6, **changes)
    old, _ = plan_sweep(config)
    assert not [line for line in drain() if "quasi-random" in line]
    old = make_plan(config, old.fingerprints, old.facts, "recurrence")
    claim_folder(old)
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    del document["sequence"]
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")

    plan, _ = plan_sweep(config)
    assert [run.id for run in plan.runs] == [run["id"] for run in document["runs"]]
    assert any("began with the quasi-random settings of an earlier version" in s for s in drain())
    more, _ = plan_sweep(a_config(3, 9, **changes))
    assert [run.id for run in more.runs][:6] == [run.id for run in plan.runs]
