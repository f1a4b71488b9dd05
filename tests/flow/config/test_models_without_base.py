"""Where models come from: `base`, `fine_tuned`, or both; and whether there is a retain model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from unlearnbench.base.errors import ConfigError
from unlearnbench.config.loader import load_config
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig

OWN = {"source": "questions", "forget": "forget.jsonl", "retain": "retain.jsonl"}
Load = Callable[..., SweepConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a configuration with these models, on a user's own rows by default."""

    def loaded(*models: dict[str, Any], **keys: Any) -> SweepConfig:
        document = {
            "name": "mine",
            "data": OWN,
            "models": [{"name": f"m{i}", **model} for i, model in enumerate(models)],
            "methods": ["npo"],
            **keys,
        }
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(document))
        return load_config(str(path))

    return loaded


def problems(load: Load, *models: dict[str, Any], **keys: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*models, **keys)
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


def columns(config: SweepConfig) -> set[str]:
    rules = profile_of(config.evaluation)
    plan = benchmark_plan(rules, config.data, {}, config.references)
    return {column.name for column in plan.columns}


def test_a_start_model_alone_has_no_retain_model(load: Load) -> None:
    config = load({"fine_tuned": "./model"})
    assert config.references == {"start"}
    assert config.headline.columns == ("utility", "removed")
    assert config.models[0].origin == "./model"
    assert "removed" in columns(config)
    assert not {"forgotten", "private", "mia_reference"} & columns(config)


@pytest.mark.parametrize(
    "model",
    [
        {"base": "./base"},
        {"base": "./base", "fine_tuned": "./model"},
        {"fine_tuned": "./model", "retain": {"all-retain": "./retain"}},
    ],
    ids=["base", "both", "a retain model of its own"],
)
def test_a_base_or_a_given_retain_model_is_compared_with(load: Load, model: dict[str, Any]) -> None:
    config = load(model)
    assert config.references == {"start", "retain"}
    assert config.headline.columns == ("utility", "forgotten")
    assert "forgotten" in columns(config)
    assert "removed" not in columns(config), "two answers to one question"


def test_tokenizer_and_architecture_come_from_the_base_if_there_is_one(load: Load) -> None:
    config = load({"base": "./base", "fine_tuned": "./model"})
    assert config.models[0].origin == "./base"


def test_a_mixture_over_models_is_one_error(load: Load) -> None:
    first, second = {"base": "./base"}, {"fine_tuned": "./model"}
    (problem,) = problems(load, first, second)
    assert problem == (
        "models.1.base: missing: m1 has no retain model and m0 has one, and a table would rank "
        "them by different numbers; give each model a base, or none of them"
    )


def test_other_benchmarks_need_a_base(load: Load) -> None:
    (problem,) = problems(
        load, {"fine_tuned": "./model"}, data={"source": "tofu"}, forget_fractions=[0.1]
    )
    assert problem == (
        "models.0.base: missing: tofu compares with a retain model, which is trained from the "
        "base; name the model that fine_tuned was trained from"
    )


def test_a_model_without_weights_is_an_error(load: Load) -> None:
    assert problems(load, {}) == [
        "models.0: missing: name a model; `base` has not learned the rows (start and retain "
        "models are trained from it), and `fine_tuned` has learned them"
    ]


def test_retain_models_of_some_splits_are_an_error(load: Load) -> None:
    data = OWN | {"forget": {"a": "a.jsonl", "b": "b.jsonl"}}
    model = {"fine_tuned": "./model", "retain": {"a-retain": "./retain"}}
    (problem,) = problems(load, model, data=data)
    assert problem.startswith("models.0.retain: no b-retain, and no base to train it from")


def test_a_revision_needs_a_base(load: Load) -> None:
    (problem,) = problems(load, {"fine_tuned": "org/name", "revision": "main"})
    assert problem.startswith("models.0.revision: belongs to `base`, which is missing")


def test_a_metric_that_needs_the_retain_model_is_refused_without_one(load: Load) -> None:
    evaluation: dict[str, Any] = {"metrics": {"mia-reference": {}}}
    data = OWN | {"holdout": "holdout.jsonl"}
    assert load({"base": "./base"}, data=data, evaluation=evaluation)
    (problem,) = problems(load, {"fine_tuned": "./model"}, data=data, evaluation=evaluation)
    assert problem == (
        "evaluation.metrics.mia-reference: it compares with the retain model, which these models "
        "do not have; leave the metric out, or give each model a base"
    )


def test_patience_names_the_number_that_there_is(load: Load) -> None:
    evaluation: dict[str, Any] = {"patience": {"metric": "forgotten", "epochs": 1}}
    assert load({"base": "./base"}, evaluation=evaluation)
    (problem,) = problems(load, {"fine_tuned": "./model"}, evaluation=evaluation)
    assert "unknown metric 'forgotten'" in problem


def test_own_data_are_evaluated_by_their_own_profile_unless_one_is_named(load: Load) -> None:
    assert load({"base": "./base"}).evaluation.profile == "unlearnbench"
    named = load({"base": "./base"}, evaluation={"profile": "tofu"})
    assert named.evaluation.profile == "tofu"
