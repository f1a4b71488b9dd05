"""Optimisers, those of bitsandbytes with the package itself where a CPU carries it."""

import ctypes
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.modifier import OptimizerKind
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.config.schema import Architecture, LoRA
from unlearnbench.models.lora import add_lora
from unlearnbench.models.tiny import build_model
from unlearnbench.training.optimizer_state import load_state, state_tensors
from unlearnbench.training.optimizers import TrainerSettings, make_optimizers, norms_and_biases
from unlearnbench.training.trainer import Trainer

from ...factories.trainers import objective_of, trainer_of, training_rows, weights

if TYPE_CHECKING:
    from bitsandbytes.optim.adamw import AdamW8bit
else:
    AdamW8bit = import_optional("bitsandbytes").optim.AdamW8bit
REAL: Any = AdamW8bit
EIGHT: tuple[Any, ...] = ("adamw-8bit", "paged-adamw-8bit")


class Paging(AdamW8bit):
    """Its states are marked as those of `PagedAdamW8bit` are on a GPU."""

    def get_state_buffer(self, p: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        buffer: Any = torch.zeros_like(p, dtype=dtype)
        buffer.is_paged = True
        return buffer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "made"),
    [
        *((name, AdamW8bit) for name in EIGHT),
        ("paged-adamw-8bit", Paging),
    ],
)
def test_eight_bit_resumed_equals_uninterrupted(
    name: Any,
    made: type[Any],
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two steps, a checkpoint, two more in a new trainer: bit for bit four at a stretch."""
    monkeypatch.setattr("bitsandbytes.optim.AdamW8bit", made)
    rows, objective = training_rows(tokenizer, questions), objective_of("ce-u")
    shape = Architecture(
        vocabulary=330, hidden_size=64, layers=1, heads=2, intermediate_size=96, context=256
    )
    model = build_model(shape, tokenizer, seed=3)

    def new() -> Trainer:
        how = {"epochs": 2, "batch_size": -(-len(rows.forget) // 2), "optimizer": name}
        return trainer_of(model, tokenizer, rows, objective, tmp_path, **how)

    through, first, second = new(), new(), new()
    wanted = [step.loss for epoch in (1, 2) for step in through.epoch(epoch)]
    got = [step.loss for step in first.epoch(1)]
    first.save(tmp_path / "state.safetensors")
    second.load(tmp_path / "state.safetensors")
    got += [step.loss for step in second.epoch(2)]
    assert len(got) == 4
    assert got == wanted
    states, others = (
        [trainer.optimizers[0].state[p] for p in trainer.parameters]
        for trainer in (second, through)
    )
    # Both kinds: bitsandbytes keeps 32 bits of what is small.
    kinds = [state["state1"].dtype for state in states]
    assert kinds.count(torch.uint8) > 1
    assert kinds.count(torch.float32) > 1
    for here, there in zip(states, others, strict=True):
        assert here.keys() == there.keys()
        assert here["step"] == 4
        assert type(here["step"]) is int
        for key in here.keys() - {"step"}:
            assert torch.equal(here[key], there[key])
            assert getattr(here[key], "is_paged", None) == getattr(there[key], "is_paged", None)
    maps = {id(state["qmap1"]) for state in states if "qmap1" in state}
    assert len(maps) == 1, "parameters share one map"
    assert torch.equal(weights(second), weights(through))


def test_a_state_of_another_layout_is_refused() -> None:
    """The run then begins again, as `TrainingRun` does with what it cannot take up."""
    weight = nn.Parameter(torch.zeros(64, 64))
    weight.grad = torch.ones_like(weight)
    optimizer = REAL([weight], lr=1.0)
    optimizer.step()
    saved = state_tensors(optimizer)
    saved["0.absmax1"] = saved["0.absmax1"][:-1]
    with pytest.raises(ValueError, match=r"0\.absmax1: expected .* \[16\], found .* \[15\]"):
        load_state(optimizer, saved, saved.__getitem__)


class Library:
    """The functions of its library and of the runtime that bitsandbytes calls, in host memory."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}

    def cget_managed_ptr(self, size: ctypes.c_size_t) -> int:
        memory = ctypes.create_string_buffer(size.value * 4)  # an array of four bytes each
        self.held[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def cfill_uint8(self, to: ctypes.c_void_p, _: None, value: ctypes.c_uint8, n: Any) -> None:
        ctypes.memset(to, value.value, n.value)

    def cudaFree(self, address: ctypes.c_void_p) -> None:  # the runtime's name
        del self.held[address.value or 0]


def test_paged_memory_is_freed_with_the_last_use_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not earlier: a checkpoint may still read it. bitsandbytes itself never frees it."""
    library = Library()
    monkeypatch.setattr("bitsandbytes.functional.lib", library)
    model = nn.Linear(400, 400, device="meta")
    how = TrainerSettings(1, 1, 1e-3, seed=0, optimizer="paged-adamw-8bit")
    (optimizer,) = made = [*make_optimizers(model, how)]
    paged: Any = optimizer
    paged.init_state(paged.param_groups[0], model.weight, 0, 0)
    assert len(library.held) == 2, "two moments"
    read = paged.state[model.weight]["state1"].view(-1)[:5]
    gc.collect()
    assert len(library.held) == 2
    del optimizer, paged, made
    gc.collect()
    assert [*library.held] == [read.data_ptr()]
    assert read.tolist() == [0] * 5
    del read
    assert library.held == {}


def excluded_by_transformers(model: nn.Module) -> set[str]:
    """Names of the parameters that the Trainer of transformers does not decay."""
    from transformers import Trainer as HuggingFaceTrainer

    nobody: Any = None  # the method reads nothing of its trainer
    decayed = HuggingFaceTrainer.get_decay_parameter_names(nobody, model)
    return {name for name, _ in model.named_parameters()} - {*decayed}


def names_of(model: nn.Module, parameters: Any) -> set[str]:
    ids = {id(parameter) for parameter in parameters}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_norms_and_biases_are_those_of_the_trainer_of_transformers(
    architecture: tuple[Any, bool],
) -> None:
    """In every architecture that the tests build, which have four ways of naming them."""
    model, _ = architecture
    excluded = excluded_by_transformers(model)
    assert excluded
    # Its last norm, which its Trainer finds by name in every other architecture.
    unseen = {"backbone.norm_f.weight"} if model.config.model_type == "mamba" else set[str]()
    assert names_of(model, norms_and_biases(model)) == excluded | unseen


def test_matrices_of_adapters_decay(model: Any) -> None:
    adapted = add_lora(model, LoRA(rank=2))
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert not trained & names_of(adapted, norms_and_biases(adapted))
    assert not trained & excluded_by_transformers(adapted)


KINDS = [name for name in registry.names("modifiers") if name in ("dual", "sign", "sophia")]


@pytest.mark.parametrize("decays_all", [True, False])
@pytest.mark.parametrize("name", ["adamw", "muon", *EIGHT, *KINDS])
def test_what_does_not_decay_stays_in_a_step_without_gradient(
    name: str, decays_all: bool, build: Any
) -> None:
    """Of GPT-2, whose layers have biases; all other weights lose the rate times the decay."""
    model = build("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)  # biases begin at 0, and would stay there
    is_kind = name in KINDS
    kind: OptimizerKind | None = registry.load("modifiers", name)() if is_kind else None
    how = TrainerSettings(
        1,
        1,
        0.1,
        seed=0,
        optimizer="adamw" if is_kind else name,
        embedding_learning_rate=0.1,
        weight_decay=0.5,
        decay_norms_and_biases=decays_all,
    )
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizers = [*make_optimizers(model, how, kind)]
    for optimizer in optimizers:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    steps = 2 if name == "dual" else 1
    still = set[str]() if decays_all else excluded_by_transformers(model)
    assert decays_all or len(still) == 18
    for parameter_name, parameter in model.named_parameters():
        factor = 1.0 if parameter_name in still else (1 - 0.1 * 0.5) ** steps
        torch.testing.assert_close(parameter.detach(), before[parameter_name] * factor)


def test_an_optimiser_that_hides_its_decay_is_refused(model: Any) -> None:
    class Hidden(OptimizerKind):
        """Without `weight_decay` in its groups."""

        def make(self, weights: Any, rate: float, decay: float) -> torch.optim.Optimizer:
            return torch.optim.Rprop(weights.values(), rate * (1 - decay))

    how = TrainerSettings(1, 1, 1e-3, 0, weight_decay=0.1, decay_norms_and_biases=False)
    with pytest.raises(TrainingError, match="Rprop has none there; leave the key out"):
        list(make_optimizers(model, how, Hidden()))
    list(make_optimizers(model, TrainerSettings(1, 1, 1e-3, 0, weight_decay=0.1), Hidden()))
