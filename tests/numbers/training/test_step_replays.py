"""Steps with replayed passes are equal to steps without, on the stand-in for CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.method import LossBatch, Method, Needs
from unlearnbench.config.resources import Resources
from unlearnbench.config.schema import LoRA, RetainSpec
from unlearnbench.models.device import use_device
from unlearnbench.models.limits import pad_id
from unlearnbench.models.replays import can_record, permit_recording
from unlearnbench.training import step_replays
from unlearnbench.training.fine_tuning import FineTuner
from unlearnbench.training.micro_batches import Budget
from unlearnbench.training.objective import Objective
from unlearnbench.training.trainer import FineTuning, Trainer

from ...conftest import QUESTIONS, build_model_of
from ...factories.graphs import Graphs, OperationGraph, graphs_on_cpu
from ...factories.marks import some_in_make_test
from ...factories.trainers import (
    TRAINED_METHODS,
    Extras,
    assert_resumes,
    losses,
    objective_of,
    plain_encoder,
    trainer_of,
    training_rows,
    weights,
)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    return graphs_on_cpu(monkeypatch)


@pytest.fixture
def make(model: Any, tokenizer: Any, tmp_path: Path) -> Callable[..., Trainer]:
    """Make a trainer with batches of two, whose shapes come again."""
    rows = training_rows(tokenizer, QUESTIONS)

    def made(objective: Objective, extras: Extras | None = None, **settings: Any) -> Trainer:
        trained = settings.pop("model", model)
        settings = {"batch_size": 2, **settings}
        torch.manual_seed(0)  # new adapters are random
        return trainer_of(
            trained, tokenizer, rows, objective, tmp_path, extras or Extras(), **settings
        )

    return made


def assert_replays_change_nothing(
    graphs: Graphs, make: Callable[[], Trainer], epochs: int = 3, *, are_recorded: bool = True
) -> None:
    """Train with and without recordings, and compare all losses and weights bit for bit."""
    graphs.permitted = False
    plain = make()
    expected = losses(plain, epochs)
    assert not graphs.made
    graphs.permitted = True
    replayed = make()
    found = losses(replayed, epochs)
    assert (graphs.replays > 3) == are_recorded
    assert found == expected
    assert torch.equal(weights(replayed), weights(plain))


@pytest.mark.parametrize("method", some_in_make_test(TRAINED_METHODS, 3))
def test_replayed_steps_of_every_method_give_the_same_bits(
    method: str, graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    assert_replays_change_nothing(graphs, lambda: make(objective_of(method)))


SETTINGS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "micro-batches of one": {"micro_batch_size": 1, "batch_size": 4},
    "weight decay": {"weight_decay": 0.1},
    "muon": {"optimizer": "muon"},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_replayed_steps_give_the_same_bits_under_every_setting(
    setting: str, graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    objective = Objective(registry.load("methods", "npo")(), RetainSpec(term="kl"))
    extras = Extras(starts_at_reference=True)
    assert_replays_change_nothing(graphs, lambda: make(objective, extras, **SETTINGS[setting]))


@pytest.mark.parametrize("is_tied", [False, True])
def test_gradients_of_a_tied_weight_are_added_in_the_same_order(
    is_tied: bool, graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    model = build_model_of("llama", {"tie_word_embeddings": is_tied})
    # From the second micro-batch on, the order of the sum shows in its last bit.
    settings: dict[str, Any] = {"micro_batch_size": 1, "batch_size": 4, "model": model}
    objective = objective_of("gradient-difference")
    assert_replays_change_nothing(graphs, lambda: make(objective, **settings))


def test_adapters_are_trained_with_the_same_bits(
    graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    extras = Extras(lora=LoRA(rank=2))
    assert_replays_change_nothing(graphs, lambda: make(objective_of("npo"), extras))


@pytest.mark.parametrize("modifier", some_in_make_test(registry.names("modifiers"), 3))
def test_every_modifier_gets_the_same_gradients(
    modifier: str, graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    def trainer() -> Trainer:
        extras = Extras(modifiers=(registry.load("modifiers", modifier)(),))
        return make(objective_of("gradient-difference"), extras)

    # Gradients of zeroth order come from losses alone.
    is_backward = modifier != "zeroth-order"
    assert_replays_change_nothing(graphs, trainer, are_recorded=is_backward)


def test_other_architectures_are_replayed_or_read_as_before(
    architecture: tuple[Any, bool], graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    model, packed = architecture
    objective = objective_of("gradient-difference")
    settings: dict[str, Any] = {"model": model, "removes_dropout": True}
    # Transformers' GPT-2 looks for padding in the tokens of every pass, on the host.
    is_recorded = packed and model.config.model_type != "gpt2"
    assert_replays_change_nothing(
        graphs, lambda: make(objective, **settings), epochs=2, are_recorded=is_recorded
    )


def test_a_resumed_training_with_replays_is_one_that_was_never_stopped(
    graphs: Graphs, make: Callable[..., Trainer], tmp_path: Path
) -> None:
    assert_resumes(lambda: make(objective_of("npo")), tmp_path)
    assert graphs.replays


@pytest.mark.parametrize("lora_rank", [None, 2])
def test_an_attack_trains_with_the_same_bits(
    lora_rank: int | None, model: Any, tokenizer: Any, graphs: Graphs
) -> None:
    """Its steps take the same few rows again and again. Adapters are added and removed."""
    tuner = FineTuner(plain_encoder(tokenizer), pad_id(tokenizer))
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    results: list[list[Tensor]] = []
    for graphs.permitted in (False, True):
        model.load_state_dict(start)
        steps = tuner(
            model, QUESTIONS[:4], steps=5, learning_rate=1e-3, batch_size=4, lora_rank=lora_rank
        )
        outputs: list[Tensor] = []
        for _ in steps:
            with torch.no_grad():
                outputs.append(model(torch.arange(5, 20).unsqueeze(0)).logits)
        results.append(outputs)
    assert graphs.replays > 4
    assert all(map(torch.equal, *results))


def test_filler_rows_change_no_more_than_rounding(
    model: Any, graphs: Graphs, make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = model.double()
    filled = make(objective_of("kl-minimization"), model=exact)
    found = losses(filled, 2)
    assert filled.passes.replays.fills
    assert graphs.replays
    monkeypatch.setattr(step_replays, "_DEVICES", frozenset[str]())
    plain = make(objective_of("kl-minimization"), model=exact)
    assert found == pytest.approx(losses(plain, 2), rel=1e-9)
    assert not plain.passes.replays.fills
    torch.testing.assert_close(weights(filled), weights(plain), rtol=1e-7, atol=1e-9)


class ReadsOtherStates(Method):
    """A loss that reads final states at first, and later only those after the first layer."""

    needs: ClassVar[Needs] = Needs(parts={"forget"}, layers={1})

    def loss(self, batch: LossBatch) -> Tensor:
        """Return the mean of squared states."""
        inner = batch.forget.hidden_states(1).square().mean()
        if batch.progress < 0.6:
            return inner + batch.forget.mean_tokens(batch.forget.cross_entropy())
        return inner


def test_a_loss_that_reads_other_states_gets_the_gradients_of_these(
    graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    """Weights without a gradient must not decay, and those with a gradient of 0 do."""
    assert_replays_change_nothing(
        graphs, lambda: make(Objective(ReadsOtherStates()), weight_decay=0.5)
    )


def test_a_model_that_waits_for_the_gpu_is_not_recorded(
    model: Any, graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    def wait(*_: Any) -> None:
        float(model.get_input_embeddings().weight.detach().sum())

    def trainer() -> Trainer:
        made = make(objective_of("npo"))
        made.model.model.layers[0].register_forward_hook(wait)
        return made

    assert_replays_change_nothing(graphs, trainer, are_recorded=False)
    assert len(graphs.made) == 1, "it was tried again"


def test_a_loss_may_wait_for_the_gpu(graphs: Graphs, make: Callable[..., Trainer]) -> None:
    class Waiting(FineTuning):
        def loss(self, batch: LossBatch) -> Tensor:
            value = super().loss(batch)
            return value * (2.0 if float(value.detach()) > 1 else 1.0)

    assert_replays_change_nothing(graphs, lambda: make(Objective(Waiting())))


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_numbers_stay_the_same_if_memory_is_short_while_recording(
    failing: int,
    graphs: Graphs,
    make: Callable[..., Trainer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Odd recordings are of the way forward, even ones of the way back."""
    recordings = 0
    record = OperationGraph.record

    def failing_record(self: OperationGraph, work: Callable[[], None]) -> None:
        nonlocal recordings
        recordings += 1
        if recordings == failing:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        record(self, work)

    monkeypatch.setattr(OperationGraph, "record", failing_record)
    trainers: list[Trainer] = []

    def trainer() -> Trainer:
        trainers.append(make(objective_of("gradient-difference")))
        return trainers[-1]

    assert_replays_change_nothing(graphs, trainer, are_recorded=failing > 2)
    assert recordings == failing
    assert not trainers[-1].passes.replays.passes
    assert trainers[-1].passes.oom_retry.rows is None


def test_a_step_that_runs_out_of_memory_first_gives_up_recordings(
    graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    objective = objective_of("gradient-difference")
    graphs.permitted = False
    plain = make(objective)
    expected = losses(plain, 3)
    graphs.permitted = True
    trainer = make(objective)
    batch = trainer.batches.batch

    def scarce(*arguments: Any, **how: Any) -> LossBatch:
        if len(trainer.passes.replays.passes) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return batch(*arguments, **how)

    trainer.batches.batch = scarce  # type: ignore[method-assign]
    assert losses(trainer, 3) == expected
    assert torch.equal(weights(trainer), weights(plain))
    assert not trainer.passes.replays.recording
    assert trainer.passes.oom_retry.seen == []


def test_recordings_are_discarded_if_weights_are_in_other_memory(
    graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    objective = objective_of("gradient-difference")
    results: list[tuple[list[float], Tensor]] = []
    for graphs.permitted in (False, True):
        trainer = make(objective)
        found: list[float] = []
        for epoch in (1, 2, 3):
            found += [step.loss for step in trainer.epoch(epoch)]
            for parameter in trainer.model.parameters():
                parameter.data = parameter.data.clone()
        results.append((found, weights(trainer)))
    assert results[0][0] == results[1][0]
    assert torch.equal(results[0][1], results[1][1])
    assert graphs.replays > 4


def test_few_shapes_are_recorded(
    graphs: Graphs, make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_replays, "_MOST", 1)
    trainer = make(objective_of("gradient-difference"))
    losses(trainer, 3)
    assert len(trainer.passes.replays.passes) == 1
    assert len(graphs.made) == 2
    trainer.free_states()
    assert not trainer.passes.replays.passes


def test_models_that_draw_random_numbers_or_are_large_are_read_as_before(
    graphs: Graphs, make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = objective_of("npo")

    def fills(**how: Any) -> bool:
        trainer = make(objective, **how)
        losses(trainer, 2)
        return trainer.passes.replays.fills

    dropping = build_model_of("llama", {"attention_dropout": 0.1})
    assert not fills(model=dropping)
    assert not graphs.made
    adapted = make(objective, Extras(lora=LoRA(rank=2, dropout=0.1)))
    losses(adapted, 2)
    assert not adapted.passes.replays.fills
    checkpointed = build_model_of("llama", {})
    checkpointed.config.use_cache = False
    enable = getattr(checkpointed, "activation_checkpointing_enable", None)
    (enable or checkpointed.gradient_checkpointing_enable)()
    assert not fills(model=checkpointed)
    assert not graphs.made
    assert fills(model=dropping, removes_dropout=True)
    assert graphs.made
    monkeypatch.setattr(step_replays, "MOST_WEIGHTS", 1000)
    assert not fills()


def test_a_divided_step_is_replayed_with_the_same_bits(
    graphs: Graphs, make: Callable[..., Trainer]
) -> None:
    def trainer() -> Trainer:
        made = make(objective_of("npo"), batch_size=5)
        made.passes.budget = Budget(rows=2, tokens=120)
        return made

    assert_replays_change_nothing(graphs, trainer)


def test_the_configuration_forbids_recordings() -> None:
    gpu = torch.device("cuda")
    assert can_record(gpu)
    assert not can_record(torch.device("cpu"))
    try:
        use_device(Resources(cuda_graphs=False))
        assert not can_record(gpu)
        use_device(Resources())
        assert can_record(gpu)
    finally:
        permit_recording(True)
