"""A space of settings: what is drawn from it, the same each time, within its bounds."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.schema import RetainSpec, SweepConfig
from unlearnbench.config.search import RETAIN_WEIGHT, Range, SearchSettings, SelectSettings
from unlearnbench.config.search_space import Point, Space, points_of
from unlearnbench.sweep.follow_up_runs import stages_of

TEXT = """\
name: good
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods:
  - ce-u
  - method: npo
    beta: {low: 0.05, high: 1.0, log: true}
    retain: {term: [nll, kl], weight: {low: 0.5, high: 2.0}}
  - {method: rmu, layer: {low: 1, high: 4}, learning_rates: [1.0e-3]}
  - {method: eco, sigma: {low: 5.0, high: 50.0, step: 15.0}, dims: [8, 16]}
  - {method: simnpo, learning_rates: [1.0e-4]}
learning_rates: {low: 1.0e-6, high: 1.0e-3, log: true}
search: {kind: random, trials: 6}
"""
Load = Callable[..., SweepConfig]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def loaded(*overrides: str) -> SweepConfig:
        Path("bench.yaml").write_text(TEXT, encoding="utf-8")
        return load_config("bench.yaml", overrides)

    return loaded


class TestRange:
    def test_values_at_shares(self) -> None:
        decades = Range(low=1e-6, high=1e-2, log=True)
        assert [decades.value(i / 4) for i in range(4)] == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3])
        assert Range(low=1.0, high=3.0).value(0.25) == 1.5
        stepped = Range(low=5.0, high=50.0, step=15.0)
        assert [stepped.value(share) for share in (0.0, 0.3, 0.5, 0.99)] == [5, 20, 35, 50]
        whole = Range(low=1, high=4)
        found = [whole.value(share) for share in (0.0, 0.25, 0.5, 0.999)]
        assert found == [1, 2, 3, 4]
        assert all(isinstance(value, int) for value in found)

    def test_steps_over_zero_meet_zero(self) -> None:
        """As floats, -0.3 + 3 * 0.1 is 5.6e-17, which a label and an id would have."""
        tenths = Range(low=-0.3, high=0.3, step=0.1)
        assert [tenths.at(i) for i in range(7)] == [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]
        thirds = Range(low=-1.0, high=1.0, step=1 / 3)
        assert [thirds.at(i) for i in (0, 3, 6)] == [-1.0, 0.0, 1.0]

    @pytest.mark.parametrize(
        ("values", "count"),
        [
            ({"low": 1.0, "high": 2.0}, None),
            ({"low": 0.0, "high": 0.3, "step": 0.1}, 4),
            ({"low": 1, "high": 9, "step": 3}, 3),
            ({"low": 1, "high": 100, "log": True}, 100),
        ],
    )
    def test_count(self, values: dict[str, Any], count: int | None) -> None:
        assert Range(**values).count == count


def test_a_float_has_steps_of_a_fraction_between_whole_numbers(load: Load) -> None:
    """As in `beta: {low: 10, high: 20, step: 0.125}`; a whole number has not."""
    beta = "methods=[{method: npo, beta: {low: 10, high: 20, step: 0.125}}]"
    config = load(beta, "search.trials=40")
    drawn = [spec.hyperparameters["beta"] for spec, _ in points_of(config.methods[0], config)]
    betas = [value for value in drawn if isinstance(value, float)]
    assert len(betas) == 40
    assert all((value * 8).is_integer() for value in betas)
    assert any(not (value * 100).is_integer() for value in betas), "such as 10.125"
    with pytest.raises(ConfigError, match="low, high and step must be whole numbers"):
        load("methods=[{method: rmu, layer: {low: 1, high: 4, step: 0.5}}]")


class TestSampling:
    def test_each_method_has_trials_or_all_its_settings(self, load: Load) -> None:
        config = load()
        counts = [len(points_of(grid, config)) for grid in config.methods]
        assert counts == [6, 6, 4, 6, 1]
        assert len(make_plan(config, "data").runs) == sum(counts)

    def test_samples_repeat_and_are_kept_with_more_trials(self, load: Load) -> None:
        first = [run.id for run in make_plan(load(), "data").runs]
        assert first == [run.id for run in make_plan(load(), "data").runs]
        more = [run.id for run in make_plan(load("search.trials=7"), "data").runs]
        assert set(first) < set(more)
        assert len(more) == 7 + 7 + 4 + 7 + 1
        other = [run.id for run in make_plan(load("search.seed=1"), "data").runs]
        assert not {*first[:12]} & {*other[:12]}

    def test_values_lie_in_their_ranges_and_are_of_their_type(self, load: Load) -> None:
        config = load("search.trials=40")
        npo = points_of(config.methods[1], config)
        assert all(0.05 <= float(spec.hyperparameters["beta"]) <= 1 for spec, _ in npo)
        assert {spec.retain.term for spec, _ in npo if spec.retain} == {"nll", "kl"}
        weights = [spec.retain.weight for spec, _ in npo if spec.retain]
        assert len(set(weights)) > 30
        assert all(0.5 <= weight <= 2 for weight in weights)
        rates = sorted(rate for _, rate in npo if rate is not None)
        below = sum(rate < 10**-4.5 for rate in rates)
        assert 10 <= below <= 30, "uniform in the logarithm"
        eco = points_of(config.methods[3], config)
        assert {rate for _, rate in eco} == {None}, "it trains nothing"
        grid = itertools.product((5.0, 20.0, 35.0, 50.0), (8, 16))
        held = [spec.hyperparameters for spec, _ in eco]
        assert sorted((h["sigma"], h["dims"]) for h in held) == sorted(grid)

    def test_a_point_and_its_values(self, load: Load) -> None:
        config = load()
        for grid in config.methods:
            space = Space(grid, config)
            for point in points_of(grid, config):
                values = space.values(point)
                assert values is not None
                assert space.point(values) == point
        space = Space(config.methods[2], config)
        spec, rate = points_of(config.methods[2], config)[0]
        other = {**spec.hyperparameters, "steering": 1.0}
        moved = spec.model_copy(update={"hyperparameters": other})
        assert space.values(Point(moved, rate)) is None, "what is fixed must be as it is"
        space = Space(config.methods[1], config)
        spec, rate = points_of(config.methods[1], config)[0]
        outside = {**spec.hyperparameters, "beta": 2.0}
        out_of_range = spec.model_copy(update={"hyperparameters": outside})
        assert space.values(Point(out_of_range, rate)) is None
        assert space.values(Point(spec, 1.0)) is None
        without_retain = spec.model_copy(update={"retain": None})
        assert space.values(Point(without_retain, rate)) is None
        heavy = spec.model_copy(update={"retain": RetainSpec(term="kl", weight=2.5)})
        assert space.values(Point(heavy, rate)) is None


def test_how_many_runs_each_stage_has(load: Load) -> None:
    config = load("search.kind=optuna", "seeds=[0, 1, 2]", "select={seeds: [0, 1]}")
    plan = make_plan(config, "data")
    assert len(plan.runs) == (4 + 1) * 2, "what has no more settings than trials is known"
    first, second = stages_of(plan)
    assert (first.runs, first.at_most) == ((6 + 6 + 4 + 6 + 1) * 2, True)
    labels = {"ce-u", "npo+nll", "npo+kl", "rmu", "eco", "simnpo"}
    assert (second.runs, second.at_most) == (len(labels), True)
    (plain,) = stages_of(make_plan(load(), "data"))
    assert (plain.runs, plain.at_most) == (23, False)


class TestTuning:
    TEXT = TEXT.replace("search: {kind: random, trials: 6}", "tune: {trials: 5}\nseeds: [0, 1]")

    @pytest.fixture(autouse=True)
    def _text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(globals(), "TEXT", self.TEXT)

    def test_it_is_a_search_over_declared_ranges_and_a_choice(self, load: Load) -> None:
        config = load("tune.utility=0.9", "methods=[ce-u, {method: npo, beta: 0.2, retain: nll}]")
        assert config.search == SearchSettings(kind="quasi-random", trials=5)
        assert config.select == SelectSettings(utility=0.9)
        ceu, npo = config.methods
        assert ceu.ranges == {}
        assert npo.ranges == {"retain.weight": RETAIN_WEIGHT}, "what is stated stays"
        assert load("methods=[npo]").methods[0].ranges == {
            "beta": Range(low=0.03, high=1, log=True)
        }
        assert config.learning_rates == load().learning_rates, "stated, too"

    def test_a_modifier_has_the_trials_of_its_base(self, load: Load) -> None:
        config = load("methods=[{method: npo, retain: nll}]", "modifiers=[sam, gru]")
        counts = [len(points_of(grid, config)) for grid in config.methods]
        assert counts == [5, 5, 5]
        assert {*config.methods[1].ranges} == {"beta", "retain.weight", "sam.rho"}

    def test_the_first_is_untuned_and_the_others_fill_the_space(self, load: Load) -> None:
        config = load("tune.trials=33", "methods=[npo]")
        (untuned, rate), *others = points_of(config.methods[0], config)
        assert untuned.hyperparameters["beta"] == 0.1
        assert rate == 1e-5, "the method's own, which the range holds"
        narrow = load("methods=[npo]", "learning_rates={low: 1.0e-4, high: 1.0e-2, log: true}")
        assert points_of(narrow.methods[0], narrow)[0][1] == pytest.approx(1e-3)
        beta = Range(low=0.03, high=1, log=True)
        shares = [
            (
                beta.share(float(spec.hyperparameters["beta"])),
                Range(low=1e-6, high=1e-3, log=True).share(r),
            )
            for spec, r in others
            if r is not None
        ]
        cells = Counter((int(a * 4), int(b * 4)) for a, b in shares)
        assert len(cells) == 16, "each of 16 cells has a point"
        assert max(cells.values()) <= 4
        fewer = load("tune.trials=9", "methods=[npo]")
        assert points_of(fewer.methods[0], fewer) == points_of(config.methods[0], config)[:9]

    def test_search_and_select_are_its_own(self, load: Load) -> None:
        with pytest.raises(ConfigError, match="tune sets it"):
            load("search.kind=random", "search.trials=3")
        with pytest.raises(ConfigError, match="none is left to report"):
            load("seeds=[0]")

    def test_defaults_lie_in_declared_ranges(self) -> None:
        for kind in ("methods", "modifiers"):
            for name in registry.names(kind):
                plugin = registry.load(kind, name)
                for key, (low, high) in plugin.ranges.items():
                    assert low <= plugin.model_fields[key].default <= high, f"{name}.{key}"
