"""Ids follow corrected faults of an architecture, and those of other architectures stay."""

from pathlib import Path
from typing import Any, Literal

import pytest

from unlearnbench.api.method import Method
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.entries import AttackSpec, attack_specs
from unlearnbench.config.method_specs import method_from_spec, method_spec
from unlearnbench.config.plan import ModelFacts, make_plan
from unlearnbench.config.schema import (
    EvaluationSettings,
    LoRA,
    MethodGrid,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.corrections import (
    EXPERTS,
    MASKS,
    TIED,
    corrections_of,
    corrections_under,
)
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.workspace import Workspace

from ...families import FAMILIES
from ..small_run import config_of

MIXTURES = {"llama4", "mixtral", "qwen3-moe", "olmoe", "deepseek-v3", "gpt-oss"}
QUANTIZATION = attack_specs({"quantization": {}})
RELEARNING = attack_specs({"relearning": {}})


@pytest.fixture
def settings(tmp_path: Path, tokenizer: Any) -> Any:
    """Make the settings of a model of a family, which has no weights."""

    def make(name: str) -> ModelSettings:
        FAMILIES[name].config().save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return ModelSettings(name="m", base=str(tmp_path / name), template="plain")

    return make


@pytest.mark.parametrize("name", FAMILIES)
def test_corrections_concern_llama_4_and_mixtures(name: str, settings: Any) -> None:
    expected = {MASKS} if name == "llama4" else set[str]()
    if name in MIXTURES:
        expected.add(EXPERTS)
    assert corrections_of(settings(name)) == expected


def test_a_tiny_model_reads_nothing() -> None:
    assert corrections_of(ModelSettings(name="m", base="tiny")) == frozenset()


@pytest.mark.parametrize("name", ["tiny", "gpt2", "llama", "gemma"])
def test_an_adapter_on_tied_weights_was_merged_into_both(name: str, settings: Any) -> None:
    model = ModelSettings(name="m", base="tiny") if name == "tiny" else settings(name)
    embedding = "wte" if name == "gpt2" else "embed_tokens"
    is_tied = name != "llama"
    cases: dict[tuple[str, ...] | Literal["all-linear"], bool] = {
        (embedding,): True,
        ("q_proj", "lm_head"): True,
        ("q_proj",): False,
        "all-linear": False,
    }
    for targets, names_one in cases.items():
        adapted = model.model_copy(update={"lora": LoRA(target_modules=targets)})
        expected = {TIED} if is_tied and names_one else set[str]()
        assert corrections_of(adapted) == expected


@pytest.mark.parametrize("attacks", [(), QUANTIZATION, RELEARNING], ids=["", "quantised", "taught"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "llama4"])
def test_runs_have_other_ids_only_if_their_numbers_differ(
    name: str, attacks: tuple[AttackSpec, ...], settings: Any
) -> None:
    model = settings(name)
    config = SweepConfig(
        name="small",
        models=(model,),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(method_spec("npo", {"beta": 0.1}),)),),
        learning_rates=(1e-5,),
        epochs=1,
        seeds=(0,),
        attacks=attacks,
    )
    (before,) = make_plan(config, "rows").runs
    facts = ModelFacts(corrections=corrections_under(corrections_of(model), attacks))
    (now,) = make_plan(config, "rows", {"m": facts}).runs
    is_corrected = name == "llama4" or (name == "mixtral" and attacks == QUANTIZATION)
    assert (now.id != before.id) is is_corrected


@pytest.mark.parametrize("name", ["llama", "mixtral", "llama4"])
def test_models_that_runs_are_compared_with_follow(
    name: str, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1,))

    def ids() -> list[Any]:
        models = ModelSources(settings(name), rows, tmp_path / "cache")
        published = models.settings.model_copy(update={"fine_tuned": models.settings.base})
        given = ModelSources(published, rows, tmp_path / "cache")
        identity = given.evaluation_identity("full", 0.1, "rows", EvaluationSettings())
        attacked = [
            given.attack_id(identity, spec, TrainingSettings())
            for spec in (*QUANTIZATION, *RELEARNING)
        ]
        return [models.folder("full"), identity, *attacked]

    def none(_: ModelSettings) -> frozenset[str]:
        return frozenset()

    now = ids()
    monkeypatch.setattr("unlearnbench.runs.model_sources.corrections_of", none)
    changed = [one != other for one, other in zip(ids(), now, strict=True)]
    assert (
        changed
        == {
            "llama": [False, False, False, False],
            "mixtral": [False, False, True, False],
            "llama4": [True, True, True, True],
        }[name]
    )


def test_published_models_keep_their_ids_if_only_prepared_ones_were_merged(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1,))
    adapted = settings("gpt2").model_copy(update={"lora": LoRA(target_modules=("wte",))})
    published = adapted.model_copy(update={"fine_tuned": adapted.base})

    def ids() -> list[Any]:
        prepared = ModelSources(adapted, rows, tmp_path / "cache").folder("full")
        given = ModelSources(published, rows, tmp_path / "cache")
        identity = given.evaluation_identity("full", 0.1, "rows", EvaluationSettings())
        (attack,) = RELEARNING
        return [prepared, identity, given.attack_id(identity, attack, TrainingSettings())]

    def none(_: ModelSettings) -> frozenset[str]:
        return frozenset()

    now = ids()
    monkeypatch.setattr("unlearnbench.runs.model_sources.corrections_of", none)
    assert [one != other for one, other in zip(ids(), now, strict=True)] == [True, False, False]


def test_a_run_of_an_earlier_plan_reads_no_predictions_that_were_wrong(
    tmp_path: Path, tokenizer: Any
) -> None:
    """Stored predictions are named by the model's corrections, whatever the plan knew of them."""
    folder = str(tmp_path / "llama4")
    FAMILIES["llama4"].build().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model = ModelSettings(name="m", base=folder, fine_tuned=folder, template="plain")
    spec = method_spec("kl-minimization", {})
    config = config_of(tmp_path, models=(model,), methods=(MethodGrid(specs=(spec,)),))
    plan = plan_sweep(config)[0]
    run = plan.runs[0]
    assert run.corrections == (MASKS,)
    space = Workspace(plan.config, plan.folder)
    method = method_from_spec(spec)
    assert isinstance(method, Method)
    stored: list[set[Path]] = []
    for planned in (run, run.model_copy(update={"corrections": ()})):
        build_trainer(planned, space, method)
        stored.append({*(space.cache / "reference").iterdir()})
    assert stored[0] == stored[1] != set()
