"""Ids follow what ends turns and answers: they change where it is not the tokenizer's EOS alone."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig, LlamaConfig

from tests.chat_models import KINDS, build_chat_tokenizer
from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import DataError, EvaluationError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.config.schema import Architecture, EvaluationSettings, ModelSettings
from unlearnbench.models.identity_entries import generation_config
from unlearnbench.models.loading import load_model
from unlearnbench.models.named_models import source_of
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import UnreachableError
from unlearnbench.models.tiny import build_model
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.plan_sweep import plan_sweep

from ..small_run import config_of


@pytest.fixture
def sources(tmp_path: Path, questions: tuple[Question, ...]) -> Any:
    """Make the sources of a model with a chat template and a `generation_config`."""
    rows = load_benchmark(Synthetic(authors=10, questions_per_author=2), (0.1,))

    def make(name: str, generation: dict[str, Any] | None = None, **settings: Any) -> ModelSources:
        folder = tmp_path / name
        tokenizer = build_chat_tokenizer(KINDS[name], questions)
        tokenizer.save_pretrained(folder)
        LlamaConfig(eos_token_id=tokenizer.eos_token_id).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        if generation is not None:
            GenerationConfig(**generation).save_pretrained(folder)
        model = ModelSettings(name=name, base=str(folder), **settings)
        return ModelSources(model, rows, tmp_path / "cache")

    return make


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("profile", [TOFU, OPEN_UNLEARNING])
def test_a_template_changes_ids_where_another_token_ends_its_turns(
    name: str, profile: Any, sources: Any
) -> None:
    made_up = ("several tokens", "words and a token", "ordinary token", "always a prompt")
    changed = ("llama-2", "gemma", "phi-3", *made_up)
    models = sources(name)
    assert bool(models.turn_digest(profile)) == (name in changed)
    assert bool(models.generation("full", profile)) == (name in changed and profile is TOFU)
    as_source = sources(name, eos_as_padding=True)
    assert as_source.turn_end == []
    assert bool(as_source.turn_digest(profile)) == (name in changed and profile is TOFU)


def test_stops_in_ids_are_those_of_the_loaded_model_if_their_file_is_damaged(
    tmp_path: Path, tokenizer: Any
) -> None:
    """transformers then takes the model's configuration, so ids have to do the same."""
    shape = Architecture(vocabulary=400, hidden_size=16, layers=1, heads=2, intermediate_size=16)
    model: Any = build_model(shape, tokenizer, seed=0)
    model.config.eos_token_id = [2, 7]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text("{", encoding="utf-8")
    settings = ModelSettings(name="m", base=str(tmp_path), template="plain")
    found = generation_config(source_of(settings), settings)
    loaded = load_model(source_of(settings), settings).generation_config
    assert found.eos_token_id == loaded.eos_token_id == [2, 7]


def test_other_stops_change_ids(sources: Any) -> None:
    eos = sources("llama-3")
    assert eos.turn_digest(TOFU) == ""
    same = sources("llama-3", {"eos_token_id": [*eos.stops], "temperature": 0.6, "do_sample": True})
    assert same.turn_digest(TOFU) == same.turn_digest(OPEN_UNLEARNING) == ""
    more = sources("llama-3", {"eos_token_id": [1, *eos.stops]})
    assert more.turn_digest(TOFU) != ""
    assert more.turn_digest(OPEN_UNLEARNING) != ""
    plain = sources("llama-3", {"eos_token_id": [1, *eos.stops]}, template="plain")
    assert plain.generation("full", TOFU) == [["stops", [1]]]
    settings = EvaluationSettings()
    before, after = (m.evaluation_identity("full", 0.1, "f", settings) for m in (eos, more))
    assert len(after) == len(before) + 1


def test_penalties_change_ids_under_the_profile_that_follows_them(sources: Any) -> None:
    eos = [*sources("llama-3").stops]
    penalty = {"eos_token_id": eos, "repetition_penalty": 1.05}
    models = sources("llama-3", penalty)
    assert models.turn_digest(TOFU) == ""
    assert models.generation("full", OPEN_UNLEARNING) == [["logits", {"repetition_penalty": 1.05}]]
    beams = sources("llama-3", {"eos_token_id": eos, "num_beams": 4})
    assert beams.turn_digest(TOFU) == ""
    with pytest.raises(EvaluationError, match="num_beams: 4"):
        beams.turn_digest(OPEN_UNLEARNING)


@pytest.mark.parametrize(("name", "trims"), [("llama-3", True), ("qwen-2.5", False)])
def test_blanks_of_answers_change_ids_where_the_template_removes_them(
    name: str, trims: bool, sources: Any, tmp_path: Path
) -> None:
    made = sources(name)
    row = Question("Where?", "In Lima.\n")
    rows = replace(made.benchmark, full=(*made.benchmark.full, row))
    blank = ModelSources(made.settings, rows, tmp_path)
    bare = replace(made.benchmark, full=(*made.benchmark.full, replace(row, answer="In Lima.")))
    assert ModelSources(made.settings, bare, tmp_path).turn_digest(TOFU) == ""
    assert (blank.turn_digest(TOFU) != "") == (blank.turn_digest(OPEN_UNLEARNING) != "") == trims


@pytest.mark.parametrize("base", ["tiny", "gemma"])
def test_an_answer_of_control_tokens_is_refused_before_any_model_is_trained(
    base: str, sources: Any, tmp_path: Path
) -> None:
    token = "</s>" if base == "tiny" else "<end_of_turn>"
    made = sources("gemma")
    settings = ModelSettings(name="tiny", base="tiny") if base == "tiny" else made.settings
    for answer, is_refused in ((f" {token}\n", True), (f"{token}.", False), ("[1] <2>", False)):
        row = Question("Where?", answer, place="mine.jsonl:3")
        rows = replace(made.benchmark, full=(*made.benchmark.full, row))
        models = ModelSources(settings, rows, tmp_path / "cache")
        with pytest.raises(DataError, match=r"mine\.jsonl:3") if is_refused else nullcontext():
            models.check_answers()


def test_answers_are_checked_for_every_model_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that does not answer for one model keeps no other model from its check."""
    models = tuple(ModelSettings(name=name, base="tiny") for name in ("away", "here"))

    def check_answers(models: ModelSources) -> None:
        raise {"away": UnreachableError, "here": DataError}[models.settings.name]("seen")

    monkeypatch.setattr(ModelSources, "check_answers", check_answers)
    with pytest.raises(DataError, match="seen"):
        plan_sweep(config_of(tmp_path, models=models))
