"""The table of starting values agrees with the configurations that have its numbers."""

import re
import sys
from pathlib import Path

import pytest

from unlearnbench.api.registry import load_method
from unlearnbench.config.config_sources import shipped_configs
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import TINY_PREPARATION, MethodGrid, Preparation, SweepConfig
from unlearnbench.config.starting_values import (
    PREPARATIONS,
    STARTING_VALUES,
    ModelSize,
    Origin,
    StartingValue,
    expected_rate,
    preparation_value,
    starting_values,
)

GENERATORS = Path(__file__).parents[3] / "docs" / "generate"
OF_CONFIGS = [value for value in STARTING_VALUES if value.config]
WEIGHTS = {
    "tiny": 1_327_200,
    "smollm2-135m": 134_515_008,
    "microsoft/phi-1_5": 1_418_270_720,
    "1B": 1_235_814_400,
    "3B": 3_212_749_824,
    "7b": 6_738_415_616,
    "8B": 8_030_261_248,
}
"""Numbers of weights by a part of the base's name."""


def name_of(value: StartingValue) -> str:
    """Return the id of a test of one value."""
    return f"{value.method}-{value.size.name}-{value.config}"


def rates_of(config: SweepConfig, grid: MethodGrid) -> tuple[float, ...]:
    """Return the listed learning rates of an entry."""
    rates = grid.learning_rates or config.learning_rates
    if rates is None:
        own = getattr(load_method(grid.specs[0].name), "learning_rate", None)
        return () if own is None else (own,)
    return rates if isinstance(rates, tuple) else (rates.low, rates.high)


def has_value(config: SweepConfig, grid: MethodGrid, value: StartingValue) -> bool:
    """Return whether an entry of a configuration has a starting value."""
    spec = grid.specs[0]
    term, weight = (None, 1.0) if spec.retain is None else (spec.retain.term, spec.retain.weight)
    return (
        (spec.name, term, weight) == (value.method, value.retain, value.retain_weight)
        and value.learning_rate in rates_of(config, grid)
        and value.epochs in (None, config.epochs)
        and config.training_of(spec.name).batch_size == value.batch_size
        and value.settings.items() <= spec.hyperparameters.items()
    )


@pytest.mark.parametrize("value", OF_CONFIGS, ids=name_of)
def test_a_configuration_has_each_value_that_names_it(value: StartingValue) -> None:
    assert value.config is not None
    config = load_config(value.config)
    assert any(has_value(config, grid, value) for grid in config.methods)


@pytest.mark.parametrize("value", STARTING_VALUES, ids=name_of)
def test_settings_are_valid(value: StartingValue) -> None:
    load_method(value.method)(**value.settings)
    assert value.source
    assert value.remark or value.epochs


def test_no_value_is_there_twice() -> None:
    keys = [
        (v.method, v.size, v.retain, v.learning_rate, v.adapters, v.texts, str(v.settings))
        for v in STARTING_VALUES
    ]
    assert len(set(keys)) == len(keys)


def test_values_that_were_run_here_name_their_configuration() -> None:
    for value in STARTING_VALUES:
        assert value.config or value.origin is not Origin.MEASURED


@pytest.mark.parametrize(
    ("weights", "size"),
    [
        (557_696, ModelSize.TINY),
        (20_000_000, ModelSize.TINY),
        (134_515_008, ModelSize.SMALL),
        (1_418_270_720, ModelSize.ABOUT_1B),
        (3_212_749_824, ModelSize.ABOUT_7B),
        (70_000_000_000, ModelSize.ABOUT_7B),
    ],
)
def test_the_size_is_the_smallest_class_that_holds_the_weights(
    weights: int, size: ModelSize
) -> None:
    assert ModelSize.of(weights) is size


@pytest.mark.parametrize("method", ["npo", "simnpo", "general-ce-u"])
@pytest.mark.parametrize("size", ModelSize)
def test_the_three_first_methods_have_a_value_for_each_size(size: ModelSize, method: str) -> None:
    first, *_ = starting_values(method, size)
    assert first.epochs
    assert not first.texts


def test_the_expected_rate_is_the_nearest_one() -> None:
    high = expected_rate("ce-u", 7_000_000_000, 1e-4)
    low = expected_rate("ce-u", 7_000_000_000, 1e-6)
    assert high is not None
    assert low is not None
    assert (high.learning_rate, low.learning_rate) == (4e-5, 2e-6)
    assert expected_rate("lunar", 135_000_000, 1e-2) is None


def test_adapters_have_values_of_their_own() -> None:
    (own,) = starting_values("undial", ModelSize.ABOUT_7B, adapters=True)
    assert own.learning_rate == 1e-4
    assert all(v.learning_rate == 1e-5 for v in starting_values("undial", ModelSize.ABOUT_7B))


def weights_of(base: str) -> int:
    """Return the number of weights of a shipped configuration's base model."""
    return next(weights for part, weights in WEIGHTS.items() if part in base)


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_no_shipped_configuration_has_a_rate_of_another_order(name: str) -> None:
    config = load_config(name)
    weights = weights_of(config.models[0].origin)
    for grid in config.methods:
        rates = rates_of(config, grid)
        if not grid.specs or not rates:
            continue
        # A search range is judged by its ends: one of them may be a decade away from the value.
        method = grid.specs[0].name
        known = [expected_rate(method, weights, rate) for rate in rates]
        factors = [
            max(rate / value.learning_rate, value.learning_rate / rate)
            for rate, value in zip(rates, known, strict=True)
            if value is not None
        ]
        assert not factors or min(factors) < 10, (method, rates)


@pytest.mark.parametrize("size", ModelSize)
def test_models_of_each_size_can_be_prepared(size: ModelSize) -> None:
    value = preparation_value(size)
    assert Preparation(**value.settings).epochs == value.settings["epochs"]
    assert [each.size for each in PREPARATIONS].count(size) == 1


def test_tiny_models_are_prepared_by_their_defaults() -> None:
    own = TINY_PREPARATION.model_dump()
    assert preparation_value(ModelSize.TINY).settings.items() <= own.items()


def test_the_page_has_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GENERATORS))
    from importlib import import_module

    generator = import_module("starting_values_page")
    text = str(generator.page())
    tables = [line for line in text.splitlines() if line.startswith("| [")]
    [npo] = [row for row in tables if "[npo]" in row and "Llama-3.2-1B" in row]
    assert "| `{term: nll}` |" in npo
    assert "| `beta: 0.1` |" in npo, "the default of a method is printed"
    [altpo] = [row for row in tables if "[altpo]" in row and "Llama-3.2-1B" in row]
    assert "| **`asked: authors`**<br>`beta: 0.1`<br>" in altpo, "what has to be written is bold"
    assert all(row.split("|")[6].strip() for row in tables), "no empty cell of settings"
    assert text.index("{ #about-1b }") < text.index("{ #tiny }")
    links = re.findall(r"\]\(#([a-z0-9-]+)\)", text)
    targets = {*re.findall(r'id="([^"]+)"', text), *re.findall(r"\{ #(\S+) \}", text)}
    assert {*links} <= targets
    for module in ("starting_values_page", "markup", "mathml"):
        sys.modules.pop(module, None)
    assert text.count("](../methods/") == len(STARTING_VALUES)
    for value in STARTING_VALUES:
        assert f"| {generator.rate_text(value.learning_rate)} |" in text
        assert value.model in text
    assert all(origin.value in text for origin in Origin)
    assert generator.rate_text(2.5e-5) == "2.5e-5"
