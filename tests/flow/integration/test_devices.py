"""Training and evaluation on the stand-in GPU: nothing is on the wrong device, and little waits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.inference_method import Prompts
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import LoRA, RetainSpec
from unlearnbench.evaluation.answers import Answer, Prompt
from unlearnbench.evaluation.decoding import Decoding
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.generation import decode
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.lora import add_lora
from unlearnbench.models.prompt_shift import ShiftedModel, mean_states
from unlearnbench.models.replays import Recorded, Replays, Shapes, Work, parts_of
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizer_state import on_host
from unlearnbench.training.trainer import Trainer

from ...conftest import QUESTIONS, build_model_of
from ...factories.marks import some_in_make_test
from ...factories.trainers import TRAINED_METHODS, trainer_of, training_rows
from ...shadow import GPU, ShadowGPU

TINY: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {**TINY, "num_key_value_heads": 1},
    "phi": {**TINY, "num_key_value_heads": 2},
}


@pytest.fixture
def gpu() -> Iterator[ShadowGPU]:
    with ShadowGPU() as made:
        yield made


def model_of(kind: str, *, checkpointing: bool = False) -> Any:
    model = build_model_of(kind, KINDS[kind])
    model.config.use_cache = False
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()
    return model.to("cuda")


def micro_batch(gpu: ShadowGPU, trainer: Trainer) -> int:
    """Train a step of more than two micro-batches; returns the waits of the second."""
    at: list[int] = []
    forward = trainer.batches.batch

    def watched(*args: Any, **how: Any) -> Any:
        at.append(gpu.waits.total())
        return forward(*args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.batches, "batch", watched)
        step = next(trainer.epoch(1))
    assert math.isfinite(step.loss)
    assert all(p.device == GPU for p in trainer.parameters)
    return at[-1] - at[-2]


def trained(model: Any, tokenizer: Any, objective: Objective, folder: Path, **how: Any) -> Trainer:
    rows = training_rows(tokenizer, QUESTIONS[:6])
    how = {"epochs": 1, "batch_size": 3, "micro_batch_size": 1, **how}
    return trainer_of(model, tokenizer, rows, objective, folder, **how)


@pytest.mark.parametrize("name", some_in_make_test(TRAINED_METHODS, 3))
def test_every_method_trains_on_a_gpu(
    name: str, gpu: ShadowGPU, tokenizer: Any, tmp_path: Path
) -> None:
    objective = Objective(registry.load("methods", name)())
    trainer = trained(model_of("llama"), tokenizer, objective, tmp_path)
    assert trainer.batches.reader.packs(trainer.model, trainer.rows.forget)
    # The weights of its tokens come back without their mark, and are compared as on a CPU.
    assert micro_batch(gpu, trainer) == (name == "grpo-ceu")


CASES: list[tuple[str, bool, str, dict[str, Any], str | None]] = [
    ("llama", True, "kl-minimization", {}, None),
    ("llama", True, "rmu", {"layer": 1}, None),
    ("llama", True, "grpo", {"beta": 0.1, "samples": 2}, None),
    ("phi", True, "kl-minimization", {}, None),
    ("phi", False, "npo", {}, "kl"),
]


@pytest.mark.parametrize(("kind", "checkpointing", "name", "hyperparameters", "retain"), CASES)
def test_architectures_and_checkpointing_train_on_a_gpu(
    kind: str,
    checkpointing: bool,
    name: str,
    hyperparameters: dict[str, Any],
    retain: Any,
    gpu: ShadowGPU,
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    """References with distributions and states, and a live one, are made there as well."""
    spec = RetainSpec(term=retain, weight=1.0) if retain else None
    objective = Objective(registry.load("methods", name)(**hyperparameters), spec)
    model = model_of(kind, checkpointing=checkpointing)
    micro_batch(gpu, trained(model, tokenizer, objective, tmp_path))


def test_adapters_train_on_a_gpu(gpu: ShadowGPU, tokenizer: Any, tmp_path: Path) -> None:
    objective = Objective(registry.load("methods", "npo")())
    model = add_lora(build_model_of("llama", KINDS["llama"]), LoRA(rank=2)).to("cuda")
    micro_batch(gpu, trained(model, tokenizer, objective, tmp_path))


@pytest.mark.parametrize("kind", ["packed", "padded", "shifted"])
def test_evaluation_runs_on_a_gpu(
    kind: str,
    gpu: ShadowGPU,
    tokenizer: Any,
    questions: tuple[Question, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile, pad = get_profile("tofu", max_length=80), pad_id(tokenizer)
    sets: Any = {"forget": questions[:2]}
    if kind == "padded":
        packable = "unlearnbench.evaluation.predictor.can_pack"
        monkeypatch.setattr(packable, Mock(return_value=False))
    model: Any = model_of("llama")
    if kind == "shifted":
        encoder = Encoder(tokenizer, TEMPLATES["plain"], profile.max_length)
        prompts = [encoder.prompt(question) for question in questions]
        eco = registry.load("methods", "eco")()
        states = partial(mean_states, model, pad=pad)
        model = ShiftedModel(model, eco.fit(model, Prompts(prompts[:5], prompts[5:], 0, states)))
    steps: list[int] = []
    step: Any = Decoding._step  # pyright: ignore[reportPrivateUsage]

    def watched(*args: Any, **how: Any) -> None:
        before = gpu.waits.total()
        step(*args, **how)
        steps.append(gpu.waits.total() - before)

    monkeypatch.setattr(Decoding, "_step", watched)
    found = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, pad)(model)
    assert all(math.isfinite(loss) for loss in found.sets["forget"].answer_loss)
    assert len(steps) > 10
    assert sorted(steps)[len(steps) // 2] <= (5 if kind == "padded" else 4)


def test_moments_are_in_host_memory_while_an_attack_has_the_gpu(
    gpu: ShadowGPU, tokenizer: Any, tmp_path: Path
) -> None:
    objective = Objective(registry.load("methods", "gradient-difference")())
    trainer = trained(model_of("llama"), tokenizer, objective, tmp_path)
    next(trainer.epoch(1))

    def moments() -> list[Tensor]:
        return [
            values[name]
            for values in trainer.optimizers[0].state.values()
            for name in ("exp_avg", "exp_avg_sq")
        ]

    before = [moment.clone() for moment in moments()]
    assert all(gpu.has(moment) for moment in moments())
    with on_host(trainer.optimizers):
        assert not any(gpu.has(moment) for moment in moments())
    assert all(gpu.has(moment) for moment in moments())
    assert all(map(torch.equal, before, moments()))


@pytest.mark.usefixtures("gpu")
def test_the_first_step_of_answers_is_in_batches_on_a_gpu(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    states = Predictor.row_states

    def counted(self: Predictor, ids: Tensor, *more: Any) -> Tensor:
        sizes.append(len(ids))
        return states(self, ids, *more)

    monkeypatch.setattr(Predictor, "row_states", counted)
    model = model_of("llama").eval()
    tree = build_tree([Encoder(tokenizer, TEMPLATES["plain"], 200).row(QUESTIONS[0])], ())
    predictor = Predictor(model, tree, pad=pad_id(tokenizer), longest=200, batch_tokens=64)
    prompts = [Prompt(tuple(range(5, 5 + n)), 4, (9, 9, 9)) for n in (30, 20, 25, 8)]
    with predictor.ready():
        sizes.clear()  # the trial of packing has read a row of the longest length
        decode(predictor, prompts, [Answer() for _ in prompts], eos=1)
    assert sizes[0] <= 64 < sum(sizes[:2])


@pytest.mark.usefixtures("gpu")
def test_a_recorded_pass_replayed_on_other_tokens_gives_their_answers(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for a graph does again what was recorded, of its inputs as they are then."""
    replayed: list[int] = []

    def record(self: Replays, work: Work, inputs: Tensor, shapes: Shapes) -> Any:
        def replay() -> None:
            result.copy_(work(parts_of(inputs, shapes)))
            replayed.append(len(shapes))

        result = work(parts_of(inputs, shapes))
        kept = Recorded(SimpleNamespace(replay=replay), inputs, result)
        return self.recorded.setdefault(shapes, kept)

    model = model_of("llama").eval()
    tree = build_tree([Encoder(tokenizer, TEMPLATES["plain"], 200).row(QUESTIONS[0])], ())
    predictor = Predictor(model, tree, pad=pad_id(tokenizer), longest=200)
    limits = (90, 70, 90, 40, 12, 80)
    prompts = [Prompt(tuple(range(5 + n, 25 + n)), n) for n in limits]

    def answers() -> list[Answer]:
        with predictor.ready():
            empty = [Answer() for _ in prompts]
            return decode(predictor, prompts, empty, eos=1)[0]

    plain = answers()
    assert max(len(answer.ids) for answer in plain) > 50
    monkeypatch.setattr(Replays, "_record", record)
    assert answers() == plain
    assert len(replayed) > 20
