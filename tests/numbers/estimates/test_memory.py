"""Estimates of memory against the bytes of a step's actual tensors."""

import copy
import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unlearnbench.api import registry
from unlearnbench.config.resources import Resources
from unlearnbench.config.schema import (
    Architecture,
    LoRA,
    ModelSettings,
)
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.lora import add_lora
from unlearnbench.models.source import Source
from unlearnbench.models.token_row import Row
from unlearnbench.results.memory import (
    Lengths,
    Setup,
    fitting,
    footprint,
)
from unlearnbench.results.model_shape import Shape, config_of, shape_of
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import Trainer

SETTINGS = ModelSettings(
    name="small",
    base="tiny",
    architecture=Architecture(vocabulary=1000, hidden_size=128, layers=6, intermediate_size=384),
)
FEWER = SETTINGS.architecture.model_copy(
    update={"layers": 4, "hidden_size": 64, "intermediate_size": 192}
)


def everything(_name: str, _layers: int) -> bool:
    """The default of `Method.trains`."""
    return True


class Allocated(TorchDispatchMode):
    """Bytes of all live tensors, and their maximum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.see(tensor)
        return made

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = int(StorageWeakRef(storage).cdata), storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def some_rows() -> TrainingRows:
    """Rows of 30 to 90 tokens, a third of them prompt."""
    draw = random.Random(1)

    def row() -> Row:
        length = draw.randint(30, 90)
        return Row(tuple(draw.randrange(3, 1000) for _ in range(length)), length // 3)

    return TrainingRows([row() for _ in range(16)], [row() for _ in range(32)])


def both(
    name: str, settings: ModelSettings, micro: int | None, precision: Any, folder: Path
) -> tuple[int, int]:
    """(measured, estimated) bytes at the peak of an epoch of two steps of 8 rows."""
    from transformers import LlamaForCausalLM

    config, rows = config_of(settings, Source("tiny")), some_rows()
    method = registry.load("methods", name)()
    objective = Objective(method)
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config).to(getattr(torch, settings.dtype))
    start = copy.deepcopy(model)
    if settings.lora:
        model = add_lora(model, settings.lora)
    if settings.gradient_checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        model.enable_input_require_grads()
    references = load_references(
        lambda: start, "w", rows, objective.needs, seed=1, epochs=1, pad=0, folder=folder
    )
    how = TrainerSettings(
        epochs=1,
        batch_size=8,
        learning_rate=1e-4,
        seed=1,
        micro_batch_size=micro,
        precision=precision,
    )
    trainer = Trainer(model.train(), objective, rows, how, 0, references)
    allocated = Allocated()
    for parameter in trainer.model.parameters():
        allocated.see(parameter)
    with allocated:
        list(trainer.epoch(1))
    setup = setup_of(settings, micro, precision, objective.needs.rows_per_item)
    shape = shape_of(
        config, settings, method.trains, autocast=setup.autocast, width=setup.lengths.longest
    )
    return allocated.peak, footprint(shape, method, objective.needs, setup).peak


def setup_of(
    settings: ModelSettings, micro: int | None, precision: str, rows_per_item: int
) -> Setup:
    rows = some_rows()
    return Setup(
        batch_size=8,
        micro_batch_size=micro,
        rows_per_item=rows_per_item,
        lengths=Lengths.of([(len(r.ids), r.scored) for r in [*rows.forget, *rows.retain]]),
        autocast=precision == "bf16",
        checkpointing=settings.gradient_checkpointing,
        optimizer="adamw",
        resources=Resources(),
        on_gpu=False,
    )


CASES: list[tuple[str, dict[str, Any], int | None, str]] = [
    ("gradient-difference", {}, None, "bf16"),
    ("gradient-difference", {"gradient_checkpointing": True}, 2, "bf16"),
    ("gradient-difference", {"dtype": "bfloat16"}, 2, "bf16"),
    ("kl-minimization", {}, 2, "fp32"),
    ("npo", {}, None, "bf16"),
    ("rmu", {}, None, "fp32"),
    ("gradient-ascent", {"lora": LoRA(), "gradient_checkpointing": True}, 2, "bf16"),
]


@pytest.mark.parametrize(("name", "changes", "micro", "precision"), CASES)
def test_estimate_matches_the_measured_peak_of_a_step(
    name: str, changes: dict[str, Any], micro: int | None, precision: str, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"architecture": FEWER, **changes})
    measured, estimated = both(name, settings, micro, precision, tmp_path)
    assert estimated == pytest.approx(measured, rel=0.15)


def shape(settings: ModelSettings = SETTINGS) -> Shape:
    config = config_of(settings, Source("tiny"))
    return shape_of(config, settings, everything, autocast=False, width=64)


def test_weights_are_counted() -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config_of(SETTINGS, Source("tiny")))
    found = shape()
    assert found.weights == found.trained == sum(p.numel() for p in model.parameters())
    assert found.matrices == found.weights, "the table of embeddings is the output layer"
    assert found.cache_width == 2 * 6 * 128
    assert found.largest_layer == sum(p.numel() for p in model.model.layers[0].parameters())


def test_fsdp_divides_memory_by_processes() -> None:
    method = registry.load("methods", "task-vector")()
    setup = setup_of(SETTINGS, 2, "fp32", 1)
    alone = footprint(shape(), method, method.needs, setup)
    sharded = replace(setup, resources=Resources(processes=4))
    copied = replace(setup, resources=Resources(processes=4, parallel="ddp"))
    four = footprint(shape(), method, method.needs, sharded)
    assert (four.weights, four.optimizer) == (alone.weights // 4, alone.optimizer // 4)
    assert four.copies == alone.copies // 4 > 0
    ddp = footprint(shape(), method, method.needs, copied)
    assert (ddp.weights, ddp.gradients) == (alone.weights, 2 * alone.gradients)
    assert four.constant < alone.constant == ddp.constant
    assert four.peak < ddp.peak


def test_whole_step_may_need_less_than_micro_batches() -> None:
    method = registry.load("methods", "ce-u")()
    setup = setup_of(SETTINGS, None, "fp32", 1)
    whole = footprint(shape(), method, method.needs, setup).peak
    most = replace(setup, micro_batch_size=7)  # which holds the gradients of an earlier part, too
    assert footprint(shape(), method, method.needs, most).peak > whole
    assert fitting(shape(), method, method.needs, setup, whole) == setup
    less = fitting(shape(), method, method.needs, setup, whole - 1)
    assert 1 <= less.items < 8
    assert footprint(shape(), method, method.needs, less).peak < whole
