"""A GPU does as a CPU does, and shows what only a GPU can.

    make gpu     on a machine with one GPU, in a few minutes; without a network .ci/gpu_kit.py

Random weights, nothing is fetched; no Ray, MLflow or plotly is needed. Measured figures are
properties of the XML report. The default run carries out the same functions on the CPU, as far as
a CPU can, so that they cannot rot.
"""

import copy
import os
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, distributed, nn
from transformers import LlamaForCausalLM

from benchmarks.models import ARCHITECTURES
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.resources import Resources
from unlearnbench.config.schema import ModelSettings
from unlearnbench.evaluation.answers import Answer, Prompt
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.generation import decode
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.models.device import deterministic, use_device
from unlearnbench.models.gpu_probe import TorchProbe
from unlearnbench.models.replays import Replays, permit_recording
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.tiny import build_model
from unlearnbench.results.memory import footprint
from unlearnbench.results.model_shape import config_of, shape_of
from unlearnbench.testing.tiny_lab import TinyLab
from unlearnbench.training import step_replays
from unlearnbench.training.objective import Objective
from unlearnbench.training.trainer import FineTuning, Trainer

# Tests are no package that could be imported by its name.
from ..conftest import QUESTIONS
from ..factories.graphs import graphs_on_cpu
from ..factories.trainers import TRAINED_METHODS, trainer_of, training_rows, weights
from ..numbers.estimates.test_memory import FEWER, Allocated, setup_of, some_rows

# The first product of a thread of autograd's, whatever the work.
pytestmark = pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
ON_A_GPU = pytest.mark.gpu
FEW = ("ce-u", "npo", "rmu", "kl-minimization")
"""Methods that the CPU carries too: one of each kind of reference."""


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """`cpu` or `cuda`; a GPU is seen by `-m gpu` alone."""
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device: run `pytest -m gpu` where there is one")
    return name


on_both = pytest.mark.parametrize("device", ["cpu", GPU], indirect=True)
on_a_gpu = pytest.mark.parametrize("device", [GPU], indirect=True)


def large(tokenizer: Any, size: str = "100m") -> Any:
    """A model of random weights whose sizes are those of a real one."""
    return build_model(ARCHITECTURES[size], tokenizer, seed=0)


def measured(device: str, work: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and the peak of the GPU's memory in bytes, of some work."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begin = time.monotonic()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
        return time.monotonic() - begin, torch.cuda.max_memory_allocated()
    return time.monotonic() - begin, 0


@on_both
def test_a_run_has_the_gpu_that_it_was_given(device: str) -> None:
    if device == "cpu":
        with pytest.raises(UnlearnbenchError, match="torch finds no GPU"):
            use_device(Resources(gpu=1))
        return
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != ""
    use_device(Resources(gpu=1))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@on_both
def test_the_probe_of_shared_gpus_sees_memory_and_busy_time(
    device: str, record_property: Callable[[str, object], None]
) -> None:
    """A gibibyte is held, and the GPU multiplies matrices without a pause."""
    probe = TorchProbe()
    probe.start()
    if device == "cpu":
        assert probe.finish().memory == 0
        return
    held = torch.zeros(2**30, dtype=torch.uint8, device=device)
    matrix = torch.randn(4096, 4096, device=device)
    begin = time.monotonic()
    while time.monotonic() - begin < 4:
        matrix = (matrix @ matrix).clamp(-1, 1)
        torch.cuda.synchronize()
    used = probe.finish()
    record_property("used", used._asdict())
    assert held.nbytes < used.memory <= used.total
    assert used.device == torch.cuda.get_device_name()
    # A part of a GPU (MIG) has no busy time.
    assert used.busy is None or 0.5 < used.busy <= 1


@on_a_gpu
@pytest.mark.usefixtures("device")
def test_a_measured_share_is_all_the_memory_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unlearnbench.base.gpu_share._share_of_process", [0.25])
    try:
        use_device(Resources(gpu="auto"))
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
    finally:
        monkeypatch.undo()
        use_device(Resources(gpu="auto"))
    assert torch.cuda.get_per_process_memory_fraction() == 1


@on_both
def test_a_model_trained_in_bf16_is_evaluated_like_any_other(
    device: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, QUESTIONS)
    trainer = trainer_of(
        model, tokenizer, rows, Objective(FineTuning()), tmp_path, precision="bf16", batch_size=2
    )
    [*_] = trainer.epoch(1)
    assert trainer.accelerator.device.type == device
    tree = build_tree(rows.retain[:1], tuple(rows.retain[0].ids[: rows.retain[0].start]))
    states: list[Tensor] = []
    with trainer.evaluation_model() as trained:
        fresh = copy.deepcopy(trained).eval()
        for one in (trained, fresh):
            predictor = Predictor(one, tree, pad=0, longest=100)
            assert predictor.layer is not None
            assert predictor.packed
            with torch.inference_mode(), predictor.ready():
                states.append(predictor.tree_states([tree]))
    torch.testing.assert_close(*states)


@pytest.mark.parametrize(
    ("device", "name"),
    [*(("cpu", name) for name in FEW)]
    + [pytest.param("cuda", name, marks=ON_A_GPU) for name in TRAINED_METHODS],
    indirect=["device"],
)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 2e-2)])
def test_losses_and_gradients_are_those_of_a_cpu_in_fp32(
    device: str,
    name: str,
    precision: str,
    tolerance: float,
    record_property: Callable[[str, object], None],
) -> None:
    torch.set_float32_matmul_precision("highest")
    method = registry.load("methods", name)()
    wanted = TinyLab(method, dtype=torch.float32).measure()
    there = TinyLab(method, dtype=torch.float32)
    for one in (there.start, there.model):
        nn.Module.to(one, device)  # in place
    half = torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()
    with half:
        found = there.measure()
    away = (found.flat.cpu() - wanted.flat).norm() / wanted.norm
    record_property(f"{name} {precision} gradient", float(away))
    assert found.loss == pytest.approx(wanted.loss, rel=tolerance, abs=tolerance)
    # A gradient adds up the roundings of many products, in bf16 of 8 bits each.
    assert away <= (tolerance if precision == "fp32" else 5 * tolerance)


@on_both
@pytest.mark.parametrize("name", ["gradient-difference", "npo"])
def test_a_run_in_float16_is_near_one_in_float32(
    device: str, name: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """With the first scale of torch, which overflows in some steps, and is halved."""
    torch.set_float32_matmul_precision("highest")
    rows = training_rows(tokenizer, QUESTIONS)
    objective = Objective(registry.load("methods", name)())
    found: dict[str, list[float]] = {}
    for precision in ("fp32", "fp16"):
        trainer = trainer_of(
            model, tokenizer, rows, objective, tmp_path, precision=precision, learning_rate=1e-4
        )
        assert trainer.accelerator.device.type == device
        found[precision] = [step.loss for epoch in (1, 2) for step in trainer.epoch(epoch)]
    assert found["fp16"] == pytest.approx(found["fp32"], rel=3e-3, abs=3e-3)


@on_both
def test_an_evaluation_in_bf16_packs_and_is_near_that_of_a_cpu(
    device: str, model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    sets: Any = {"forget": questions}
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], get_profile("tofu"), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(6.0 if parameter.ndim == 2 else 1.0)  # an answer less sharp
    wanted = evaluator(model).sets["forget"]
    half = model.to(device, torch.bfloat16)
    found = evaluator(half)
    tree = build_tree(*_tree_of(tokenizer))
    assert Predictor(half, tree, pad=0, longest=100).packed
    for name in ("answer_loss", "base_loss"):
        torch.testing.assert_close(
            torch.as_tensor(getattr(found.sets["forget"], name)),
            torch.as_tensor(getattr(wanted, name)),
            atol=0.1,
            rtol=0,
        )


def _tree_of(tokenizer: Any) -> tuple[Any, tuple[int, ...]]:
    row = training_rows(tokenizer, QUESTIONS).retain[0]
    return [row], tuple(row.ids[: row.start])


@on_both
def test_the_estimate_of_memory_is_what_a_step_and_an_evaluation_take(
    device: str,
    tokenizer: Any,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    cuda = device == "cuda"
    architecture = ARCHITECTURES["1b"] if cuda else FEWER
    settings = ModelSettings(name="m", base="tiny", architecture=architecture)
    config, rows = config_of(settings, Source("tiny")), some_rows()
    objective = Objective(registry.load("methods", "gradient-difference")())
    micro = 2
    model: Any = LlamaForCausalLM(config)
    how: dict[str, Any] = {"batch_size": 8, "micro_batch_size": micro, "precision": "bf16"}
    seen, before = Allocated(), torch.cuda.memory_allocated() if cuda else 0
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path, epochs=1, **how)
    del model
    for parameter in trainer.model.parameters():
        seen.see(parameter)
    with seen if device == "cpu" else nullcontext():
        _, peak = measured(device, lambda: [*trainer.epoch(1)])
    setup = setup_of(settings, micro, "bf16", objective.needs.rows_per_item)
    setup = replace(setup, on_gpu=device == "cuda")
    shape = shape_of(
        config, settings, objective.method.trains, autocast=True, width=setup.lengths.longest
    )
    estimate = footprint(shape, objective.method, objective.needs, setup).peak
    found = peak - before if device == "cuda" else seen.peak
    record_property("peak of a step in MiB", found >> 20)
    record_property("estimate in MiB", estimate >> 20)
    record_property("estimate over peak", estimate / found)
    if device == "cpu":  # how far it is off on a GPU is a figure of the report
        assert estimate == pytest.approx(found, rel=0.25)
    profile = get_profile("tofu", max_length=None if cuda else 40)
    sets: Any = {"forget": QUESTIONS if cuda else QUESTIONS[:2]}
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0)
    with trainer.evaluation_model() as trained:
        _, peak = measured(device, lambda: evaluator(trained))
    record_property("peak of an evaluation in MiB", (peak - before) >> 20)
    assert device == "cuda" or peak - before <= 1.15 * estimate


@on_both
def test_a_checkpoint_is_weights_and_two_moments(
    device: str,
    model: Any,
    tokenizer: Any,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    trained = model if device == "cpu" else large(tokenizer, "1b")
    rows = training_rows(tokenizer, QUESTIONS)
    trainer = trainer_of(
        trained, tokenizer, rows, Objective(FineTuning()), tmp_path, precision="bf16"
    )
    next(iter(trainer.epoch(1)))
    file = tmp_path / "state.safetensors"
    seconds, _ = measured(device, lambda: trainer.save(file))
    size, parameters = file.stat().st_size, sum(p.numel() for p in trainer.parameters)
    record_property("checkpoint seconds", seconds)
    record_property("checkpoint bytes", size)
    assert size == pytest.approx(12 * parameters, rel=0.02 if device == "cuda" else 0.25)


@on_both
def test_a_micro_batch_waits_for_the_device_at_most_at_its_end(
    device: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, QUESTIONS)
    trainer = trainer_of(
        model, tokenizer, rows, Objective(FineTuning()), tmp_path, precision="bf16"
    )
    draws = rows.items(trainer.objective.needs, 0, 1)

    def micro_batch() -> None:
        with trainer.accelerator.autocast():
            batch = trainer.batches.batch(trainer.model, draws, step)
            found = trainer.objective.terms(batch)
        trainer.accelerator.backward(torch.stack([*found.values()]).sum())

    step = trainer.step_context(draws, draws)
    micro_batch()  # what is tried out once
    with _no_waiting(device):
        micro_batch()


@contextmanager
def _no_waiting(device: str) -> Generator[None, None, None]:
    """Make every wait of the CPU for the GPU an error; nothing on a CPU."""
    if device == "cpu":
        yield
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the mode, once, after it has set it
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("default")


def test_the_mode_that_refuses_to_wait_is_never_left_on(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []

    def set_mode(mode: str) -> None:
        modes.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with pytest.raises(RuntimeError, match="waits"), _no_waiting("cuda"):
        raise RuntimeError("called a synchronizing CUDA operation: it waits")
    assert modes == ["error", "default"]


@on_both
def test_a_step_that_runs_out_of_memory_is_repeated_in_smaller_parts(
    device: str, model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = model if device == "cpu" else large(tokenizer)
    rows = training_rows(tokenizer, QUESTIONS * 8)

    def trainer(micro: int | None) -> Trainer:
        return trainer_of(
            trained, tokenizer, rows, Objective(FineTuning()), tmp_path, batch_size=40,
            micro_batch_size=micro,
        )  # fmt: skip

    calm = [trainer(1)]
    _, least = measured(device, lambda: next(iter(calm[0].epoch(1))))
    wanted = weights(calm.pop()).cpu()
    scarce = trainer(None)
    if device == "cuda":
        torch.cuda.empty_cache()
        everything = torch.cuda.get_device_properties(0).total_memory
        # So little more suffices with expandable segments, which leave no gaps between tensors.
        torch.cuda.set_per_process_memory_fraction(min(1.0, 1.1 * least / everything))
    else:
        _refuse_many_rows(scarce, monkeypatch)
    try:
        next(iter(scarce.epoch(1)))
    finally:
        if device == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert scarce.passes.oom_retry.rows is not None
    assert 1 <= scarce.passes.oom_retry.rows < 40
    away = (weights(scarce).cpu() - wanted).norm() / wanted.norm()
    assert away <= (1e-4 if device == "cuda" else 1e-6)


def _refuse_many_rows(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = trainer.batches.batch

    def refuse(model: Any, draws: Any, *more: Any, **group: Any) -> Any:
        if len(draws) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return batch(model, draws, *more, **group)

    monkeypatch.setattr(trainer.batches, "batch", refuse)


@on_both
def test_a_group_of_one_reduces_on_its_device(device: str) -> None:
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    store: Any = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        value = torch.full((3,), 2.0, device=device)
        distributed.all_reduce(value)
        assert value.tolist() == [2.0] * 3
        found: list[Any] = [None]
        distributed.all_gather_object(found, "objects go over gloo")
        assert found == ["objects go over gloo"]
    finally:
        distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11
@on_both
def test_attention_is_a_flash_kernel_and_not_cudnns(
    device: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    use_device(Resources(gpu=1 if device == "cuda" else 0))
    rows = training_rows(tokenizer, QUESTIONS)
    trained = model if device == "cpu" else large(tokenizer)
    trainer = trainer_of(
        trained, tokenizer, rows, Objective(FineTuning()), tmp_path, precision="bf16"
    )
    with torch.profiler.profile() as profile:
        next(iter(trainer.epoch(1)))
    names = [event.key for event in profile.key_averages()]
    attention = [name for name in names if "attention" in name or "flash" in name]
    assert attention
    assert not [name for name in names if "cudnn_attention" in name or "cudnn_generated" in name]
    assert any("flash" in name or "efficient" in name for name in attention)


@on_a_gpu
def test_replayed_passes_give_the_answers_of_passes_that_are_not(
    device: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = large(tokenizer).to(device, torch.bfloat16).eval()
    row = training_rows(tokenizer, QUESTIONS).retain[0]
    limits = [(20 + 7 * n, 60 + n) for n in range(24)]
    prompts = [Prompt(tuple(range(5, 5 + length)), limit) for length, limit in limits]
    monkeypatch.setattr("unlearnbench.models.replays._TIMES", 1)
    call, recorded = Replays.__call__, set[Any]()

    def answers() -> list[Answer]:
        predictor = Predictor(model, build_tree([row], ()), pad=0, longest=400)
        with predictor.ready():
            return decode(predictor, prompts, [Answer() for _ in prompts], eos=1)[0]

    def watched(self: Replays, *arguments: Any) -> Tensor:
        result = call(self, *arguments)
        recorded.update(self.recorded)
        return result

    monkeypatch.setattr(Replays, "__call__", watched)
    replayed = answers()
    assert recorded
    monkeypatch.setattr(Replays, "_record", Mock(return_value=None))
    assert answers() == replayed


@pytest.fixture
def recording(device: str, monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Training steps record the second pass of a shape; on a CPU by the stand-in for graphs."""
    if device == "cpu":
        graphs_on_cpu(monkeypatch)
    monkeypatch.setattr(step_replays, "_TIMES", 1)
    # torch asks for it at each product, if algorithms have to be deterministic.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    permit_recording(True)


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize(
    ("device", "name"),
    [*(("cpu", name) for name in FEW)]
    + [pytest.param("cuda", name, marks=ON_A_GPU) for name in TRAINED_METHODS],
    indirect=["device"],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_give_the_bits_of_steps_that_are_not(
    device: str, name: str, precision: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, QUESTIONS)
    objective = Objective(registry.load("methods", name)())
    trained: list[Trainer] = []
    losses: list[list[float]] = []
    with deterministic(enabled=True):
        for is_permitted in (False, True):
            permit_recording(is_permitted)
            trainer = trainer_of(
                model, tokenizer, rows, objective, tmp_path, precision=precision, batch_size=2
            )
            assert trainer.accelerator.device.type == device
            losses.append([step.loss for epoch in (1, 2, 3) for step in trainer.epoch(epoch)])
            trained.append(trainer)
    assert [trainer.passes.replays.replayed > 1 for trainer in trained] == [False, True]
    assert losses[0] == losses[1]
    assert torch.equal(weights(trained[0]), weights(trained[1]))


@pytest.mark.usefixtures("recording")
@on_both
def test_replayed_steps_of_a_real_size_are_near_and_take_less_time(
    device: str,
    model: Any,
    tokenizer: Any,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """With the attention of a run, whose backward pass adds up in any order."""
    started = model if device == "cpu" else large(tokenizer)
    rows = training_rows(tokenizer, QUESTIONS * (1 if device == "cpu" else 8))
    objective = Objective(registry.load("methods", "gradient-difference")())
    found: list[Tensor] = []
    for is_permitted in (False, True):
        permit_recording(is_permitted)
        trainer = trainer_of(
            started, tokenizer, rows, objective, tmp_path, precision="bf16", learning_rate=1e-5
        )
        [*_] = trainer.epoch(1)
        [*_] = trainer.epoch(2)
        begun = trainer.step
        seconds, peak = measured(device, partial(list, trainer.epoch(3)))
        way = "replayed" if is_permitted else "plain"
        record_property(f"milliseconds of a {way} step", 1000 * seconds / (trainer.step - begun))
        record_property(f"peak of {way} steps in MiB", peak >> 20)
        assert bool(trainer.passes.replays.replayed) == is_permitted
        found.append(weights(trainer).cpu())
    away = (found[0] - found[1]).norm() / found[0].norm()
    record_property("relative difference of the weights", float(away))
    assert away < 1e-3


@pytest.mark.usefixtures("recording")
@on_both
def test_a_model_that_waits_in_its_forward_pass_trains_without_recordings(
    device: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, QUESTIONS)
    trainer = trainer_of(
        model, tokenizer, rows, Objective(FineTuning()), tmp_path, precision="bf16", batch_size=2
    )

    def wait(_: nn.Module, __: Any, output: Any) -> None:
        states: Tensor = output[0] if isinstance(output, tuple) else output
        float(states.detach().sum())

    trainer.model.model.layers[0].register_forward_hook(wait)
    for epoch in (1, 2):
        [*_] = trainer.epoch(epoch)
    assert trainer.passes.replays.fills
    assert not trainer.passes.replays.recording
    assert not trainer.passes.replays.replayed
    # A failed recording could leave random numbers unusable.
    assert torch.rand(3, device=device).isfinite().all()
