"""Gradients: they reach every adapter and nothing frozen, with checkpointing as without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import LossBatch, Method
from unlearnbench.base.errors import TrainingError
from unlearnbench.config.schema import LoRA, ModelSettings, RetainSpec
from unlearnbench.models.limits import pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.source import Source
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import Trainer

from ...factories.trainers import objective_of, trainer_of, training_rows, weights


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    """The small Llama on disk, from where a run loads it."""
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def loaded(folder: Path, **changes: Any) -> Any:
    settings = ModelSettings(name="small", base=str(folder), **changes)
    return load_model(Source(str(folder)), settings, train=True)


def trained(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], folder: Path, objective: Objective
) -> Trainer:
    """Around the model itself, as it was loaded; its own weights are the start."""
    rows, pad = training_rows(tokenizer, questions), pad_id(tokenizer)
    how = TrainerSettings(epochs=2, batch_size=4, micro_batch_size=2, learning_rate=1e-3, seed=5)
    references = load_references(
        lambda: model,
        "weights",
        rows,
        objective.needs,
        seed=how.seed,
        epochs=how.epochs or 0,
        pad=pad,
        folder=folder / "reference",
    )
    return Trainer(model, objective, rows, how, pad, references)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_every_adapter_and_nothing_else(
    checkpointing: bool,
    folder: Path,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    lora = LoRA(rank=2, alpha=4)
    model = loaded(folder, lora=lora, gradient_checkpointing=checkpointing)
    trainer = trained(model, tokenizer, questions, tmp_path, objective_of("gradient-ascent"))
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    seen: dict[str, float] = {}
    clip = trainer._clip  # pyright: ignore[reportPrivateUsage]

    def looks() -> Tensor:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                seen[name] = seen.get(name, 0.0) + float(parameter.grad.abs().sum())
        return clip()

    trainer._clip = looks  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
    list(trainer.epoch(1))
    adapters = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(adapters) == 2 * 7 * 2, "two matrices around seven layers of each of two blocks"
    assert all("lora_" in name for name in adapters)
    assert seen.keys() == adapters
    # From the second step on both matrices of a pair have one that is not zero.
    assert all(total > 0 for total in seen.values())
    for name, before in frozen.items():
        assert torch.equal(before, model.get_parameter(name))


CHECKPOINTED = [
    ("gradient-difference", None, None),
    ("rmu", None, None),
    ("npo", RetainSpec(term="kl"), None),
    ("gradient-ascent", None, LoRA(rank=2)),
]


@pytest.mark.parametrize(("name", "retain", "lora"), CHECKPOINTED)
def test_checkpointing_changes_no_number(
    name: str,
    retain: RetainSpec | None,
    lora: LoRA | None,
    folder: Path,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    """Layers of packed rows run twice with it."""
    objective = Objective(registry.load("methods", name)(), retain)
    ends: list[Tensor] = []
    losses: list[list[float]] = []
    for checkpointing in (False, True):
        torch.manual_seed(7)  # what adapters begin with
        model = loaded(folder, lora=lora, gradient_checkpointing=checkpointing).double()
        trainer = trained(model, tokenizer, questions, tmp_path, objective)
        row = trainer.rows.forget[:2]
        assert trainer.batches.reader.packs(model, row)
        losses.append([step.loss for epoch in (1, 2) for step in trainer.epoch(epoch)])
        ends.append(weights(trainer))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-5, atol=1e-6)


def test_a_weight_that_no_gradient_reaches_is_named(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    """Adapters below a checkpoint that cuts the graph are an example."""

    class FirstLayer(Method):
        def needed(self) -> Any:
            return registry.load("methods", "rmu")(layer=1).needed()

        def loss(self, batch: LossBatch) -> Tensor:
            return batch.forget.hidden_states(1).square().mean()

    rows = training_rows(tokenizer, questions)
    trainer = trainer_of(model, tokenizer, rows, Objective(FirstLayer()), tmp_path)
    before = weights(trainer)
    with pytest.raises(TrainingError, match=r"no gradient has reached model\.layers\.1.*more\)"):
        next(trainer.epoch(1))
    assert torch.equal(before, weights(trainer))
