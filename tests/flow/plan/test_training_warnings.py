"""What a plan says about optimiser steps and learning rates, of made-up and shipped settings."""

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.loader import load_configs
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import LoRA, MethodGrid, ModelSettings, Preparation, SweepConfig
from unlearnbench.config.search import Range
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.runs import training_warnings
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.plan_sweep import plan_sweep

SIZES = {
    "Llama-2-7B-chat": 6_738_000_000,
    "Llama-2-7b": 6_738_000_000,
    "Llama-3.1-8B-Instruct": 8_030_000_000,
    "Llama-3.2-1B-Instruct": 1_236_000_000,
    "Llama-3.2-3B-Instruct": 3_213_000_000,
    "Phi-1.5": 1_418_000_000,
    "SmolLM2-135M": 134_500_000,
    "zephyr-7b-beta": 7_242_000_000,
    "tiny": 1_700_000,
}
"""Number of weights of the models of shipped configurations, by name."""


def a_config(folder: Path, **changes: Any) -> SweepConfig:
    """A sweep of 16 forget rows on a tiny model."""
    values: dict[str, Any] = {
        "name": "small",
        "data": Synthetic(authors=10, questions_per_author=8),
        "models": (ModelSettings(name="tiny", base="tiny"),),
        "forget_fractions": (0.2,),
        "methods": (MethodGrid(specs=(method_spec("npo", {}),)),),
        "learning_rates": (1e-3,),
        "epochs": 3,
        "training": TrainingSettings(batch_size=8),
        "output": str(folder / "runs"),
        "cache": str(folder / "cache"),
    }
    return SweepConfig(**{**values, **changes})


def warnings_of(
    config: SweepConfig, monkeypatch: pytest.MonkeyPatch, weights: int | None = None
) -> list[str]:
    """The lines of a configuration, whose models have so many weights."""
    benchmark = load_benchmark(config.data, config.split_keys)
    models = [ModelSources(model, benchmark, config.cache_folder) for model in config.models]
    if weights is not None:

        def weights_of(_: ModelSources) -> int:
            return weights

        monkeypatch.setattr(training_warnings, "weights_of", weights_of)
    rows = {key: len(split.forget) for key, split in benchmark.splits.items()}
    return [*training_warnings.training_warnings(config, rows, models)]


def test_one_optimiser_step_per_epoch_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size, is_one in ((15, False), (16, True), (32, True)):
        config = a_config(tmp_path, training=TrainingSettings(batch_size=size))
        lines = warnings_of(config, monkeypatch)
        assert len(lines) == is_one
        for line in lines:
            assert line.startswith(
                f"training.batch_size {size} holds all forget rows of forget 0.2 (16 rows): an "
                "epoch is one optimiser step, and a run has 3 in all"
            )


def test_rates_that_every_entry_replaces_are_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npo, simnpo = method_spec("npo", {}), method_spec("simnpo", {})
    own = MethodGrid(specs=(npo,), learning_rates=(1e-3,))
    others = (MethodGrid(specs=(simnpo,), learning_rates=(1e-3,)), MethodGrid(specs=(simnpo,)))
    for other, has_line in zip(others, (True, False), strict=True):
        config = a_config(tmp_path, methods=(own, other), learning_rates=(3e-4,))
        lines = [line for line in warnings_of(config, monkeypatch) if "no effect" in line]
        assert len(lines) == has_line
        for line in lines:
            assert line.startswith("learning_rates 0.0003 has no effect: every entry of methods")


def test_a_budget_in_steps_needs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = TrainingSettings(batch_size=32)
    config = a_config(tmp_path, training=large, epochs=None, steps=50)
    assert warnings_of(config, monkeypatch) == []


def test_a_method_that_trains_nothing_needs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = method_spec("eco", {})
    config = a_config(
        tmp_path,
        methods=(MethodGrid(specs=(spec,)),),
        learning_rates=(5.0,),
        training=TrainingSettings(batch_size=32),
    )
    assert warnings_of(config, monkeypatch) == []


def test_a_preparation_of_one_step_per_epoch_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSettings(
        name="own", base="./base", preparation=Preparation(batch_size=80, epochs=5)
    )
    config = a_config(tmp_path, models=(model,))
    lines = warnings_of(config, monkeypatch, 7_000_000_000)
    assert any(
        line.startswith("own: preparation.batch_size 80 holds all 80 rows: an epoch is one")
        and "the start model is trained for 5 in all" in line
        for line in lines
    )
    named = model.model_copy(update={"fine_tuned": "./tuned"})
    lines = warnings_of(a_config(tmp_path, models=(named,)), monkeypatch, 7_000_000_000)
    assert not any("preparation" in line for line in lines)


@pytest.mark.parametrize(
    ("rates", "weights", "is_far"),
    [
        ((1e-3,), 1_000_000, False),
        ((1e-4,), 1_000_000, False),
        ((0.9e-4,), 1_000_000, True),
        ((1e-2,), 1_000_000, False),
        ((1.1e-2,), 1_000_000, True),
        ((1e-6, 1e-3), 1_000_000, False),
        ((1e-3,), 1_200_000_000, True),
        ((1e-4,), 1_200_000_000, False),
        ((1e-6,), 7_000_000_000, False),
        ((0.9e-6,), 7_000_000_000, True),
        (Range(low=1e-5, high=9e-5, log=True), 1_000_000, True),
        (Range(low=1e-5, high=1.1e-4, log=True), 1_000_000, False),
    ],
)
def test_a_rate_of_another_order_than_all_known_ones_is_a_line(
    rates: Any, weights: int, is_far: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NPO is known at 1e-3 for tiny models, and at 1e-5 for 1B and 7B."""
    changes = {"search": {"kind": "random", "trials": 2}} if isinstance(rates, Range) else {}
    config = a_config(tmp_path, learning_rates=rates, **changes)
    lines = warnings_of(config, monkeypatch, weights)
    found = [line for line in lines if "learning rates of another order" in line]
    assert len(found) == is_far
    for line in found:
        assert "npo" in line


def test_nothing_is_said_where_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NPO has no known rate of adapters."""
    model = ModelSettings(name="own", base="./base", lora=LoRA())
    config = a_config(tmp_path, models=(model,), learning_rates=(1.0,))
    assert warnings_of(config, monkeypatch, 7_000_000_000) == []


@pytest.mark.parametrize(
    ("preparation", "weights", "expected"),
    [
        (Preparation(learning_rate=1e-5), 135_000_000, "0.0002"),
        (Preparation(learning_rate=2e-5), 135_000_000, None),
        (Preparation(learning_rate=1e-5), 1_000_000, "0.001"),
        (Preparation(learning_rate=3e-3, optimizer="muon"), 1_000_000, None),
        (Preparation(learning_rate=1e-5, optimizer="muon"), 135_000_000, None),
        (Preparation(learning_rate=1e-5), 7_000_000_000, None),
    ],
)
def test_a_preparation_at_a_rate_of_another_order_is_a_line(
    preparation: Preparation,
    weights: int,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ModelSettings(name="own", base="./base", preparation=preparation)
    config = a_config(tmp_path, models=(model,))
    lines = warnings_of(config, monkeypatch, weights)
    found = [line for line in lines if "preparation.learning_rate" in line]
    assert len(found) == (expected is not None)
    for line in found:
        assert f"which is {expected}: the start model may not learn its rows" in line


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configurations_have_no_rate_of_another_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights_of(sources: ModelSources) -> int:
        return SIZES[sources.settings.name]

    def many_rows(*_: Any) -> range:
        return range(1000)

    monkeypatch.setattr(training_warnings, "weights_of", weights_of)
    monkeypatch.setattr(ModelSources, "tuning_rows", many_rows)
    for config in load_configs(name, []):
        models: list[Any] = [
            ModelSources(model, None, config.cache_folder)  # type: ignore[arg-type]
            for model in config.models
        ]
        assert [*training_warnings.training_warnings(config, {}, models)] == []


def test_a_plan_warns(tmp_path: Path) -> None:
    drain()
    plan_sweep(a_config(tmp_path, training=TrainingSettings(batch_size=32), learning_rates=(1e-6,)))
    lines = drain()
    assert any("holds all forget rows" in line for line in lines)
    assert any("learning rates of another order" in line for line in lines)
