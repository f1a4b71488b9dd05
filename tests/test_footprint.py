"""Estimates of memory against what tensors really take, step by step, and of time by hand."""

from __future__ import annotations

import copy
import random
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from accelerate import Accelerator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unlearnbench import registry, sizing
from unlearnbench.data.draws import TrainingRows
from unlearnbench.data.encoding import Row
from unlearnbench.errors import ModelError
from unlearnbench.execution import Resources
from unlearnbench.footprint import (
    Effort,
    Lengths,
    Setup,
    fitting,
    footprint,
    reads_logits,
    rows_of_item,
)
from unlearnbench.method import LossBatch, Method
from unlearnbench.models.loading import Source, add_lora
from unlearnbench.models.skeleton import Shape, config_of, shape_of
from unlearnbench.optimisation import Optimisation
from unlearnbench.plan import make_plan
from unlearnbench.recipe import TrainingSettings
from unlearnbench.reference import references_of
from unlearnbench.retain import Objective
from unlearnbench.settings import (
    Architecture,
    LoRA,
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.training import Trainer

from .conftest import PACKED, PADDED

SETTINGS = ModelSettings(
    name="small",
    base="tiny",
    architecture=Architecture(vocabulary=1000, hidden_size=128, layers=6, intermediate_size=384),
)


def everything(_name: str, _layers: int) -> bool:
    """What a method trains that says nothing of it."""
    return True


class Allocated(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most there have been."""

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

    return TrainingRows([row() for _ in range(32)], [row() for _ in range(64)])


def both(
    name: str, settings: ModelSettings, micro: int | None, precision: Any, folder: Path
) -> tuple[int, int]:
    """(measured, estimated) bytes at the peak of an epoch of two steps of 16 rows."""
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
    references = references_of(
        lambda: start, "w", rows, objective.needs, seed=1, epochs=1, pad=0, folder=folder
    )
    how = Optimisation(
        epochs=1,
        batch_size=16,
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
    setup = setup_of(settings, micro, precision, rows_of_item(objective.needs))
    shape = shape_of(
        config, settings, method.trains, autocast=setup.autocast, width=setup.lengths.longest
    )
    return allocated.peak, footprint(shape, method, objective.needs, setup).peak


def setup_of(
    settings: ModelSettings, micro: int | None, precision: str, rows_of_item: int
) -> Setup:
    rows = some_rows()
    return Setup(
        batch_size=16,
        micro_batch_size=micro,
        rows_of_item=rows_of_item,
        lengths=Lengths.of([(len(r.ids), r.scored) for r in [*rows.forget, *rows.retain]]),
        autocast=precision == "bf16",
        checkpointing=settings.gradient_checkpointing,
        optimizer="adamw",
        resources=Resources(),
        on_gpu=False,
    )


CASES: list[tuple[str, dict[str, Any], int | None, str]] = [
    ("gradient-difference", {}, None, "fp32"),
    ("gradient-difference", {}, None, "bf16"),
    ("gradient-difference", {"gradient_checkpointing": True}, None, "fp32"),
    ("gradient-difference", {"gradient_checkpointing": True}, 4, "bf16"),
    ("gradient-difference", {"dtype": "bfloat16"}, 4, "bf16"),
    ("kl-minimization", {}, 4, "fp32"),
    ("npo", {}, None, "bf16"),
    ("rmu", {}, None, "fp32"),
    ("rmu", {"gradient_checkpointing": True}, None, "bf16"),
    ("gradient-ascent", {"lora": LoRA()}, 4, "fp32"),
    ("gradient-ascent", {"lora": LoRA(), "gradient_checkpointing": True}, 4, "bf16"),
]


@pytest.mark.parametrize(("name", "changes", "micro", "precision"), CASES)
def test_the_estimate_is_what_a_step_takes(
    name: str, changes: dict[str, Any], micro: int | None, precision: str, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update=changes)
    measured, estimated = both(name, settings, micro, precision, tmp_path)
    assert estimated == pytest.approx(measured, rel=0.15)


def shape(settings: ModelSettings = SETTINGS) -> Shape:
    config = config_of(settings, Source("tiny"))
    return shape_of(config, settings, everything, autocast=False, width=64)


def test_weights_are_counted_as_they_are() -> None:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config_of(SETTINGS, Source("tiny")))
    found = shape()
    assert found.weights == found.trained == sum(p.numel() for p in model.parameters())
    assert found.matrices == found.weights, "the table of embeddings is the output layer"
    assert found.keys == 2 * 6 * 128
    assert found.layer == sum(p.numel() for p in model.model.layers[0].parameters())


def test_seven_billion_weights_are_counted_without_any() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
    )
    found = shape_of(config, SETTINGS, lambda name, _: "lm_head" in name, autocast=True, width=64)
    assert found.weights == 6_738_415_616
    assert found.trained == found.output == 32000 * 4096
    assert found.matrices == found.weights - found.output


def test_wide_layers_take_what_a_tracker_counts() -> None:
    """Four of Llama 3.2 1B, in all of a step; without the loss, whose logits training cuts up."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=4,
        num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True,
    )  # fmt: skip
    rows, width = 4, 256
    memory: Any = MemTracker()

    def tracked(state: str) -> int:
        return int(memory.get_tracker_snapshot(state)[torch.device("cpu")]["Total"])

    with FakeTensorMode():
        with no_init_weights():
            model: Any = LlamaForCausalLM(config)
        model.tie_weights()
        # As the kernel of a CPU goes: a weight at a time.
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        memory.track_external(model, optimizer)
        ids = torch.ones((rows, width), dtype=torch.long)
        with memory:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(ids, use_cache=False, logits_to_keep=1).logits.sum()
                forward = tracked("current")
            loss.backward()
            backward = tracked("peak")
            optimizer.step()
            step = tracked("peak")
    setup = replace(
        setup_of(SETTINGS, None, "bf16", 1),
        batch_size=rows,
        lengths=Lengths(mean=width, deviation=0, longest=width, scored=1),
    )
    found = shape_of(config, SETTINGS, everything, autocast=True, width=width)
    ce_u = registry.load("methods", "ce-u")()
    parts = footprint(found, ce_u, ce_u.needs, setup)
    passing = parts.activations + parts.casts + 2 * found.output  # which `logits` counts
    assert parts.weights + passing == pytest.approx(forward, rel=0.02)
    assert replace(parts, optimizer=0).peak == pytest.approx(backward, rel=0.02)
    assert parts.peak == pytest.approx(step, rel=0.02)


def test_the_estimate_of_a_trainer_knows_how_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of two processes, of which one is here."""
    from transformers import LlamaForCausalLM

    training = TrainingSettings(batch_size=16, precision="bf16")
    grid = MethodGrid(specs=(MethodSpec(name="gradient-difference"),))
    config = SweepConfig(
        name="small",
        models=(SETTINGS,),
        forget_fractions=(0.5,),
        methods=(grid,),
        learning_rates=(1e-4,),
        training=training,
    )
    spec = make_plan(config, "f").runs[0]
    objective, rows = Objective(registry.load("methods", "gradient-difference")()), some_rows()
    model: Any = LlamaForCausalLM(config_of(SETTINGS, Source("tiny")))
    how = Optimisation(1, 16, 1e-4, seed=1, precision="bf16")
    trainer = Trainer(model.train(), objective, rows, how, 0)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    needs = objective.needs
    setup = replace(setup_of(SETTINGS, None, "bf16", rows_of_item(needs)), evaluated_in_bf16=False)
    found = shape_of(model.config, SETTINGS, everything, autocast=True, width=128)
    peaks: dict[str, int] = {}
    ways: tuple[Any, ...] = ("fsdp", "ddp")
    for parallel in ways:
        monkeypatch.setattr(sizing, "is_sharded", Mock(return_value=parallel == "fsdp"))
        two = replace(setup, resources=Resources(processes=2, parallel=parallel))
        memory = footprint(found, objective.method, needs, two)
        peaks[parallel] = memory.to_json()["peak"]
        assert sizing.estimated_peak(spec, trainer) == peaks[parallel]
    assert peaks["fsdp"] < peaks["ddp"]


def test_processes_share_what_fsdp_shards() -> None:
    method = registry.load("methods", "task-vector")()
    setup = setup_of(SETTINGS, 4, "fp32", 1)
    alone = footprint(shape(), method, method.needs, setup)
    sharded = replace(setup, resources=Resources(processes=4))
    copied = replace(setup, resources=Resources(processes=4, parallel="ddp"))
    four = footprint(shape(), method, method.needs, sharded)
    assert (four.weights, four.optimizer) == (alone.weights // 4, alone.optimizer // 4)
    assert four.copies == alone.copies // 4 > 0
    ddp = footprint(shape(), method, method.needs, copied)
    assert (ddp.weights, ddp.gradients) == (alone.weights, 2 * alone.gradients)
    assert four.held < alone.held == ddp.held
    assert four.peak < ddp.peak


def test_eight_bits_are_two_bytes_a_weight_and_paged_ones_none() -> None:
    method = registry.load("methods", "ce-u")()
    setup = setup_of(SETTINGS, 4, "fp32", 1)
    sizes = [
        footprint(shape(), method, method.needs, replace(setup, optimizer=name)).optimizer
        for name in ("adamw", "adamw-8bit", "paged-adamw-8bit")
    ]
    assert sizes == [shape().trained * 8, shape().trained * 2, 0]


def test_a_whole_step_may_fit_where_most_of_one_does_not() -> None:
    method = registry.load("methods", "ce-u")()
    setup = setup_of(SETTINGS, None, "fp32", 1)
    whole = footprint(shape(), method, method.needs, setup).peak
    most = replace(setup, micro_batch_size=15)  # which holds the gradients of an earlier part, too
    assert footprint(shape(), method, method.needs, most).peak > whole
    assert fitting(shape(), method, method.needs, setup, whole) == setup
    less = fitting(shape(), method, method.needs, setup, whole - 1)
    assert 1 <= less.items < 16
    assert footprint(shape(), method, method.needs, less).peak < whole


def test_a_loss_that_reads_all_logits_holds_them_all() -> None:
    class Dense(Method):
        def loss(self, batch: LossBatch) -> torch.Tensor:
            return batch.forget.logits.sum()

    assert reads_logits(Dense())  # this file has `.logits` in it
    ce_u = registry.load("methods", "ce-u")()
    assert not reads_logits(ce_u)
    setup = setup_of(SETTINGS, None, "fp32", 1)
    dense, fused = (footprint(shape(), m, m.needs, setup).logits for m in (Dense(), ce_u))
    assert dense == pytest.approx(3 * 16 * setup.lengths.scored * 1000 * 4, rel=1e-6)
    assert dense > 2 * fused


EFFORT = Effort(
    trained=1000.0, steps=10, evaluations=2, scored=500.0, answers=40, decoded=30.0, limit=50,
    text=80.0,
)  # fmt: skip


def test_hours_by_hand() -> None:
    """On a CPU, where nothing but FLOP is counted."""
    found, setup, n = shape(), setup_of(SETTINGS, 4, "fp32", 1), shape().weights
    setup = replace(setup, evaluated_in_bf16=False)
    method = registry.load("methods", "ce-u")()
    memory = footprint(found, method, method.needs, setup)
    assert EFFORT.flop(found, checkpointing=False) == 1000 * 6 * n
    assert EFFORT.flop(found, checkpointing=True) == 1000 * 8 * n
    half = replace(found, trained=n // 2)
    assert EFFORT.flop(half, checkpointing=False) == 1000 * (4 * n + n)

    def hours(shape: Shape, setup: Setup, limit: int | None = None) -> tuple[float, ...]:
        made = EFFORT.hours(shape, setup, memory, 1e9, limit)
        seconds = [value * 3600 for value in asdict(made).values()]
        assert made.total * 3600 == pytest.approx(sum(seconds))
        return tuple(seconds)

    training, scoring, decoding = 6000 * n / 1e9, 2 * 500 * 2 * n / 1e9, 2 * 50 * 40 * 2 * n / 1e9
    loading, save = 2 * n / 2e9, 12 * n / 250e6
    saved = save * int(8 * (training + scoring + decoding) / (10 * save))
    wanted = (8 * training, 8 * scoring, 8 * decoding, loading, saved)
    assert hours(found, setup) == pytest.approx(wanted), "all of it in fp32"
    assert saved >= save
    quick = EFFORT.hours(found, setup, memory, 1e12, None)
    assert quick.checkpoints == 0, "what is soon done again is not kept"
    two = replace(setup, resources=Resources(processes=2))
    assert hours(found, two)[:3] == pytest.approx((4 * training, 4 * scoring, 4 * decoding))
    autocast = replace(setup, autocast=True)
    assert hours(found, autocast)[:2] == pytest.approx((training, 8 * scoring))
    judged = replace(setup, evaluated_in_bf16=True)
    assert hours(found, judged)[1:3] == pytest.approx((scoring, decoding))


def test_a_gpu_waits_for_launches_and_for_its_memory() -> None:
    found, method = shape(), registry.load("methods", "ce-u")()
    setup = replace(setup_of(SETTINGS, 4, "bf16", 1), on_gpu=True)
    memory = footprint(found, method, method.needs, setup)
    four = EFFORT.hours(found, setup, memory, 1e15, None)
    whole = EFFORT.hours(found, replace(setup, micro_batch_size=None), memory, 1e15, None)
    assert four.training == pytest.approx(4 * whole.training, rel=0.1), "16 rows in 4 parts"
    assert four.decoding * 3600 == pytest.approx(2 * 50 * 6 * 0.6e-3)
    # Four slots in place of forty: ten times as many steps, of at least 30 tokens each.
    room = int(4.5 * 80 * found.keys * 2 / 0.7)
    limit = memory.held + memory.evaluation + room
    few = EFFORT.hours(found, setup, memory, 1e15, limit)
    assert few.decoding / four.decoding == pytest.approx(40 * 30 / 4 / 50)


def test_a_config_that_cannot_be_had_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model folder"):
        config_of(SETTINGS.model_copy(update={"base": "./there"}), Source("./there"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="its config is not to be had"):
        config_of(SETTINGS.model_copy(update={"base": str(tmp_path)}), Source(str(tmp_path)))


def test_what_cannot_be_counted_is_said(build: Any) -> None:
    model = build("mamba", PADDED["mamba"])
    with pytest.raises(ModelError, match="type 'mamba' cannot be counted"):
        shape_of(model.config, SETTINGS, everything, autocast=True, width=64)


@pytest.mark.parametrize("kind", PACKED)
def test_any_architecture_counts_itself(kind: str, build: Any) -> None:
    changes = PACKED[kind]
    model = build(kind, changes)
    state = torch.random.get_rng_state()
    settings = ModelSettings(name="other", base="x")
    found = shape_of(model.config, settings, everything, autocast=True, width=64)
    assert found.weights == sum(p.numel() for p in model.parameters())
    assert found.row_bytes > 64 * found.layers * found.hidden * 4
    assert torch.equal(state, torch.random.get_rng_state())


def test_what_judges_samples_is_a_second_model() -> None:
    grpo = registry.load("methods", "grpo")(beta=0.3)
    ce_u = registry.load("methods", "ce-u")()
    setup = setup_of(SETTINGS, 4, "fp32", 1)
    found = footprint(shape(), grpo, Objective(grpo).needs, setup)
    assert found.reference == shape().weight_bytes
    assert footprint(shape(), ce_u, ce_u.needs, setup).reference == 0
