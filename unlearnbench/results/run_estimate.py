"""Estimates of a run's memory and hours, from a plan before anything is loaded, or from a trainer.

An estimate has three steps: count the work of a run (`Effort`), estimate its memory (`Footprint`),
and divide the work by the rates of a device (`Rates`). The formulas are explained in
docs/tutorials/run-on-a-cluster.md.

A run has one or several *processes*, each with a device: a share of a GPU, a GPU, or a core. A
model *scores* a given answer in one forward pass, and *decodes* (generates) an answer token by
token. Decoding works in *slots*: a slot holds the keys and values of one answer at a time, and is
filled again when the answer ends. "Half" is a precision of 2 bytes, bf16 or fp16. The sizes of a
model are a `Shape`, and the batches, precisions and processes of a run a `Setup`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from unlearnbench.api.benchmark import Dataset, SplitKey
from unlearnbench.api.method import RETAIN_PARTS, LossBatch, Method, Needs, Part, Terms
from unlearnbench.api.modifier import Modifier, Perturb
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.base.fsdp import is_sharded
from unlearnbench.base.gpu_share import CACHE_SHARE
from unlearnbench.config.method_specs import method_from_spec, modifiers_from_spec
from unlearnbench.config.plan import Plan
from unlearnbench.config.precision import resolve_precision
from unlearnbench.config.resources import Resources
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import ModelSettings, SweepConfig
from unlearnbench.models.device import USABLE_SHARE, device_memory, usable_memory
from unlearnbench.models.named_models import source_of
from unlearnbench.results.effort import AttackEffort, Effort, effort_of, row_lengths
from unlearnbench.results.memory import (
    Footprint,
    Lengths,
    Setup,
    fitting,
    footprint,
    optimizer_bytes,
)
from unlearnbench.results.model_shape import Shape, config_of, shape_of
from unlearnbench.training.micro_batches import Budget
from unlearnbench.training.objective import Objective

if TYPE_CHECKING:
    from unlearnbench.training.trainer import Trainer

_GRID = 64
"""Widths of rows are rounded up to a multiple of this, so that few shapes have to be counted."""
_UPDATE_BYTES = 28
"""Bytes that an optimiser reads and writes for a weight in fp32."""
_SWEEP_START = 20.0
"""Seconds to start Ray and its processes, and to write the page."""
_SAMPLED_ALONE = 4
"""Cost of a token that is sampled outside a batch, in tokens that are scored in a batch."""
_WEIGHT_BYTES_SENT = 2
"""Bytes of a weight that processes exchange for a step."""
_GRADIENT_BYTES_SENT = 4
"""Bytes of a weight's gradient that processes exchange for a step."""
_CHECKPOINT_INTERVAL = 10
"""A checkpoint is saved once this many times the seconds have passed that saving takes."""


@dataclass(frozen=True)
class Rates:
    """Rates of one device, which turn work into time. Nothing else differs between devices."""

    flops: float
    """FLOP/s of a process; of a GPU in bf16."""
    slower: float = 8
    """How many times longer products take in fp32 than in bf16. An H100 has 67 instead of 989
    TFLOP/s, and reaches a larger fraction of the smaller rate."""
    bandwidth: float = 2e12
    """Bytes/s of its memory. An H100 has 3.35e12, of which a fraction is reached."""
    launched: float = 3e-3
    """Seconds per layer to launch the forward and backward pass of a micro-batch, as measured on
    the host of an H100."""
    decoded: float = 0.6e-3
    """Seconds per layer to launch a step of decoding."""
    loaded: float = 2e9
    """Bytes/s at which the files of a model are read."""
    saved: float = 250e6
    """Bytes/s at which a checkpoint is written, as `runs/checkpoints.py` assumes at first."""
    interpreted: float = 5e-3
    """Seconds that Python needs to prepare each step of decoding."""
    summarised: float = 4.0
    """Seconds of an evaluation outside the model, fitted to runs of 1.2B and 6.7B on an H100."""
    linked: float = 2e11
    """Bytes/s between GPUs that share a model."""
    started: float = 2.0
    """Seconds of a run that do not depend on its tokens."""


def core_rates(shape: Shape) -> Rates:
    """Measure the rates of one core of this machine, with matrices of a model's widths.

    A model reaches 80 % of the measured rate, because attention, norms and the optimiser are not
    matrix products.
    """
    flops = 0.8 * measured_flops(shape.hidden, 4 * shape.hidden)
    # Arithmetic takes nearly all of the time on a CPU, so the other costs are left out.
    return Rates(
        flops=flops,
        slower=1,
        bandwidth=inf,
        launched=0,
        decoded=0,
        loaded=inf,
        interpreted=0,
        summarised=0,
        linked=inf,
        started=3.5,  # measured with the quickstart on two cores
    )


@lru_cache(maxsize=8)
def measured_flops(hidden: int, inner: int, tokens: int = 1024) -> float:
    """Measure the FLOP/s of one thread, forward and back, in a third of a second."""
    import torch

    rows = torch.ones(tokens, hidden)
    up = torch.ones(hidden, inner, requires_grad=True)
    down = torch.ones(inner, hidden, requires_grad=True)

    def step() -> None:
        value = ((rows @ up).relu() @ down).sum()
        torch.autograd.grad(value, (up, down))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = _median_seconds(step, total=0.3)
    finally:
        torch.set_num_threads(threads)
    # The forward pass has two products and the backward pass three, because the rows need no
    # gradient. Each product takes 2 · tokens · hidden · inner operations.
    return 10 * tokens * hidden * inner / seconds


def _median_seconds(step: Callable[[], None], total: float) -> float:
    """Return the median time of a step that is repeated for `total` seconds.

    `torch.utils.benchmark` would do the same, but it imports setuptools.
    """
    step()
    times: list[float] = []
    while sum(times) < total:
        start = perf_counter()
        step()
        times.append(perf_counter() - start)
    return median(times)


@dataclass(frozen=True)
class Hours:
    """Hours of a run by phase."""

    training: float
    scoring: float
    decoding: float
    attacks: float
    """Training by attacks. Their evaluations are parts of scoring and decoding."""
    loading: float
    checkpoints: float

    @property
    def total(self) -> float:
        """The sum of all phases."""
        evaluating = self.scoring + self.decoding
        return self.training + evaluating + self.attacks + self.loading + self.checkpoints


def training_flop(effort: Effort, shape: Shape, *, checkpointing: bool) -> float:
    """Return the floating-point operations of training.

    A token takes 2n operations in the forward pass through n weights, 2n for the gradients of
    activations, and 2 for each trained weight's gradient. Checkpointing repeats the forward pass.
    """
    n = shape.matrices
    passes = 6 * n if checkpointing else 4 * n
    weight_gradients = 2 * min(shape.trained, n)
    sampling = 2 * n * _SAMPLED_ALONE * effort.sampled_tokens
    return effort.trained_tokens * (passes + weight_gradients) + sampling


def _evaluates_in_half(shape: Shape, setup: Setup) -> bool:
    """Whether matrix products of an evaluation are in half precision."""
    return setup.evaluated_in_half or shape.element_bytes == 2


def _rate(rates: Rates, *, in_half: bool) -> float:
    """Return FLOP/s of matrix products in half precision or in fp32."""
    return rates.flops / (1 if in_half else rates.slower)


def _trains_in_half(shape: Shape, setup: Setup) -> bool:
    """Whether matrix products of training are in half precision."""
    return setup.autocast or shape.element_bytes == 2


def attack_seconds(work: AttackEffort, shape: Shape, setup: Setup, rates: Rates) -> float:
    """Estimate the seconds of training by attacks, which train with a run's precision.

    Args:
        work: Work of the attacks.
        shape: Model that is attacked.
        setup: Batches, precisions and processes of the run.
        rates: Rates of the device of each process.
    """
    world = setup.resources.world_size
    n = shape.matrices
    # As in `training_flop`, but an attack trains all weights or only its own small adapters.
    passes = (6 if setup.checkpointing else 4) * n
    weight_gradients = 2 * n
    flop = work.trained_tokens * (passes + weight_gradients) + work.adapted_tokens * passes
    computing = flop / _rate(rates, in_half=_trains_in_half(shape, setup)) / world

    micro_batches = max(work.steps, math.ceil(work.rows / world / setup.items))
    launching = micro_batches * shape.layers * rates.launched
    seconds = max(computing, launching)
    trains_all_weights = work.trained_tokens > 0
    if trains_all_weights:
        seconds += work.steps * _UPDATE_BYTES * shape.weights / rates.bandwidth
    return seconds


def hours_of(
    effort: Effort, shape: Shape, setup: Setup, memory: Footprint, rates: Rates, limit: int | None
) -> Hours:
    """Estimate the hours of a run, of which each process has a device with these rates.

    Args:
        effort: Work of the run.
        shape: Its model.
        setup: Its batches, precisions and processes.
        memory: Its estimated memory.
        rates: Rates of the device of each process.
        limit: Bytes that a process may use. None for no limit.
    """
    training = _training_seconds(effort, shape, setup, rates)
    evaluation_rate = _rate(rates, in_half=_evaluates_in_half(shape, setup))
    scored_flop = effort.whole_evaluations * effort.scored_tokens * 2 * shape.matrices
    scoring = scored_flop / evaluation_rate / setup.resources.world_size
    decoding = _decoding_seconds(effort, shape, setup, memory, rates, limit)
    attacks = attack_seconds(effort.attacks, shape, setup, rates)
    loading = rates.started + 2 * shape.weights / rates.loaded

    seconds_of_save = (shape.trained_bytes + optimizer_bytes(shape, setup)) / rates.saved
    save_count = 0
    if seconds_of_save:
        running = training + scoring + decoding
        save_count = int(running / (_CHECKPOINT_INTERVAL * seconds_of_save))
    return Hours(
        training=training / 3600,
        scoring=scoring / 3600,
        decoding=decoding / 3600,
        attacks=attacks / 3600,
        loading=loading / 3600,
        checkpoints=save_count * seconds_of_save / 3600,
    )


def _training_seconds(effort: Effort, shape: Shape, setup: Setup, rates: Rates) -> float:
    """Estimate the seconds of all optimiser steps of a run."""
    world = setup.resources.world_size
    flop = setup.passes * training_flop(effort, shape, checkpointing=setup.checkpointing)
    computing = flop / _rate(rates, in_half=_trains_in_half(shape, setup)) / world
    micro_batches = effort.steps * math.ceil(setup.batch_size / world / setup.items)
    # A GPU computes while its host launches the next operations, so the longer of both counts.
    seconds = max(computing, micro_batches * shape.layers * rates.launched)
    seconds += effort.steps * _UPDATE_BYTES * shape.trained / world / rates.bandwidth
    if world > 1:
        bytes_sent = (_WEIGHT_BYTES_SENT + _GRADIENT_BYTES_SENT) * shape.weights
        seconds += effort.steps * bytes_sent / rates.linked
    return seconds


def _decoding_seconds(
    effort: Effort,
    shape: Shape,
    setup: Setup,
    memory: Footprint,
    rates: Rates,
    limit: int | None,
) -> float:
    """Estimate the seconds in which all evaluations of a run generate answers.

    Answers are decoded in slots: as many at a time as their keys and values fit into memory. A
    *step* of decoding makes one token in each slot.

    Args:
        effort: Work of the run.
        shape: Its model.
        setup: Its batches, precisions and processes.
        memory: Its estimated memory.
        rates: Rates of the device of each process.
        limit: Bytes that a process may use. None for no limit, so that each answer has a slot.
    """
    n = shape.matrices
    # Answers of one evaluation in one process.
    answers = math.ceil(effort.answers / setup.resources.world_size)
    element_bytes = 2 if setup.evaluated_in_half else shape.element_bytes
    slots = answers
    if limit is not None:
        free = CACHE_SHARE * max(limit - memory.constant - memory.evaluation, 0)
        bytes_of_slots = min(free, memory.keys)
        bytes_of_slot = effort.slot_tokens * shape.cache_width * element_bytes
        slots = min(max(int(bytes_of_slots / bytes_of_slot), 1), answers)
    steps = 0.0
    if answers:
        # The slots empty and fill again until the end, which the longest answer may determine.
        steps = max(answers * effort.answer_tokens / slots, effort.longest_answer)

    # A token takes 2n operations in the forward pass through n weights.
    # On a CPU most tokens are drafts that are verified, and cost as much as scored tokens.
    evaluation_rate = _rate(rates, in_half=_evaluates_in_half(shape, setup))
    computing = 2 * answers * effort.answer_tokens * n / evaluation_rate
    # Each step reads all weights. Slots are half full on average, so half of their keys and values
    # are read.
    elements = n + slots * effort.slot_tokens * shape.cache_width / 2
    reading = steps * element_bytes * elements / rates.bandwidth
    # A GPU works while its host launches the next operations, so the longer of both counts.
    launching = steps * (shape.layers * rates.decoded + rates.interpreted)
    seconds_of_evaluation = max(computing + reading, launching) + rates.summarised
    return effort.whole_evaluations * seconds_of_evaluation


@dataclass(frozen=True)
class Estimate:
    """Estimate for all runs of a model with one method and its hyperparameters."""

    run: RunSpec
    """The longest run with the largest forget set. Memory and effort are estimated for it."""
    runs: int
    """Number of runs that the estimate is for."""
    resources: Resources
    shape: Shape
    setup: Setup
    memory: Footprint
    effort: Effort
    rates: Rates
    hours: Hours
    """Hours of the longest run."""
    all_hours: float
    """Hours of all runs, one after the other."""
    limit: int | None
    """Bytes that a process may use. None for no limit."""

    @property
    def fits(self) -> bool:
        """Whether the runs fit their device, or have no limit."""
        return self.limit is None or self.memory.peak <= self.limit

    @property
    def gpu_hours(self) -> float:
        """GPU hours of all runs and processes."""
        return self.all_hours * self.resources.world_size


def estimate_plan(
    plan: Plan, benchmark: Dataset, rates: Rates | None, device: int | None
) -> tuple[list[Estimate], list[str]]:
    """Estimate the runs of each model and method of a plan.

    Args:
        plan: With all runs.
        benchmark: Its rows are counted.
        rates: Rates of the device of each process. If None, a core of this machine is measured.
        device: Bytes of a GPU's memory. None if they are not known.

    Returns:
        The estimates, in the order of the plan, and a line for each model whose shape is not known.
    """
    runs_of_group: dict[tuple[str, str], list[RunSpec]] = {}
    for run in plan.runs:
        model_and_method = (run.model.name, run.method.model_dump_json())
        runs_of_group.setdefault(model_and_method, []).append(run)
    estimates: list[Estimate] = []
    # Several methods of a model may give the same line. A dict keeps one, in order.
    unknown: dict[str, None] = {}
    for (model_name, _), runs in runs_of_group.items():
        resources = plan.config.resources_of(model_name)
        try:
            estimates.append(_estimate_runs(runs, resources, benchmark, rates, device))
        except ModelError as error:
            unknown[f"{model_name}: {error}"] = None
    return estimates, list(unknown)


def _estimate_runs(
    runs: Sequence[RunSpec],
    resources: Resources,
    benchmark: Dataset,
    rates: Rates | None,
    device: int | None,
) -> Estimate:
    """Estimate the runs of one model and method together.

    Args:
        runs: The runs.
        resources: Processes and GPUs of each run.
        benchmark: As in `estimate_plan`.
        rates: As in `estimate_plan`.
        device: As in `estimate_plan`.

    Raises:
        ModelError: If the shape of the model is not known.
    """
    # Runs that differ only in seed or learning rate do the same work, and are estimated once.
    run_of_work = {_work_of(run): run for run in runs}
    estimate_of_work: dict[_Work, Estimate] = {}
    for work, run in run_of_work.items():
        estimate_of_work[work] = estimate_run(run, resources, benchmark, rates, device)
    longest = max(
        estimate_of_work.values(),
        key=lambda estimate: (estimate.effort.rows, estimate.hours.total),
    )
    all_hours = sum(estimate_of_work[_work_of(run)].hours.total for run in runs)
    return replace(longest, runs=len(runs), all_hours=all_hours)


class _Work(NamedTuple):
    """What the work of a run depends on, among runs of one model and method."""

    forget_fraction: SplitKey
    evaluate_at: tuple[int, ...]
    """Epochs, or steps in a sweep by steps."""
    budget: int
    """Number of epochs of the run, or of steps."""


def _work_of(run: RunSpec) -> _Work:
    """Return the key by which equal work of several runs is found."""
    return _Work(run.forget_fraction, run.evaluate_at, run.budget)


def estimate_run(
    spec: RunSpec,
    resources: Resources,
    benchmark: Dataset,
    rates: Rates | None,
    device: int | None,
) -> Estimate:
    """Estimate one run, see `estimate_plan`.

    Raises:
        ModelError: If the shape of its model is not known.
    """
    model = spec.model
    named_method = method_from_spec(spec.method)
    method = named_method if isinstance(named_method, Method) else _NoTraining()
    # The shape depends on lengths and precision, and the micro-batch that fits memory on the shape.
    lengths = Lengths.of(row_lengths(spec, benchmark))
    needs = Objective(method, spec.method.retain).needs
    setup = _setup(spec, needs, lengths, resources, on_gpu=rates is not None)
    limit = usable_memory(device, resources)
    config = config_of(model, source_of(model, model.fine_tuned))
    shape = _shape(config, model, method, setup)
    setup = fitting(shape, method, needs, setup, limit)
    memory = footprint(shape, method, needs, setup)
    effort = effort_of(spec, benchmark)
    rates = rates or core_rates(shape)
    hours = hours_of(effort, shape, setup, memory, rates, limit)
    return Estimate(
        run=spec,
        runs=1,
        resources=resources,
        shape=shape,
        setup=setup,
        memory=memory,
        effort=effort,
        rates=rates,
        hours=hours,
        all_hours=hours.total,
        limit=limit,
    )


class _NoTraining(Method):
    """Stands for a method that trains nothing, such as one at inference time."""

    needs = Needs(parts={"forget"})

    def trains(self, parameter: str, layers: int) -> bool:  # noqa: ARG002
        return False

    def loss(self, batch: LossBatch) -> Terms:
        raise NotImplementedError


class ModelToPrepare(NamedTuple):
    """A model that is trained before the runs that need it."""

    name: str
    """Name of the model, whose start or retain model this is."""
    rows: int
    """Rows of all epochs of its training."""
    is_awaited: bool
    """Whether all other work waits for it."""


def sweep_seconds(
    estimates: Sequence[Estimate], slots: int, prepared: Iterable[ModelToPrepare]
) -> float:
    """Estimate the seconds of a sweep, from its command to the finished page.

    Args:
        estimates: Estimates of all its runs.
        slots: Number of runs at a time.
        prepared: Models to train first.
    """
    seconds = sum(estimate.all_hours for estimate in estimates) * 3600 / slots
    if slots > 1:
        # At the end some slots are idle while others work: for half of a run, on average.
        longest_hours = max((estimate.hours.total for estimate in estimates), default=0)
        seconds += 3600 / 2 * longest_hours

    # The last estimate of a model stands for all of its methods, which differ little here.
    by_model = {estimate.run.model.name: estimate for estimate in estimates}
    for model in prepared:
        if model.name in by_model:
            preparation = _preparation_seconds(model, by_model[model.name])
            seconds += preparation if model.is_awaited else preparation / slots

    by_split = {
        (estimate.run.model.name, estimate.run.forget_fraction): estimate for estimate in estimates
    }
    for estimate in by_split.values():
        # The start model and the retain model are evaluated and attacked once each.
        attacks = estimate.effort.attacks_once
        evaluating = estimate.hours.scoring + estimate.hours.decoding
        hours_of_evaluation = evaluating / estimate.effort.whole_evaluations
        seconds += 2 * (1 + attacks.evaluations) * hours_of_evaluation * 3600
        seconds += 2 * attack_seconds(attacks, estimate.shape, estimate.setup, estimate.rates)
    return _SWEEP_START + seconds


def _preparation_seconds(model: ModelToPrepare, estimate: Estimate) -> float:
    """Estimate the seconds of training a start or retain model.

    Args:
        model: The model.
        estimate: Estimate of any run that begins from it, for its shape and rates.
    """
    shape, rates = estimate.shape, estimate.rates
    preparation = estimate.run.model.preparation
    flop = 6 * shape.matrices * model.rows * estimate.setup.lengths.mean
    is_in_half = shape.element_bytes == 2 or preparation.precision != "fp32"
    flop *= 1 if is_in_half else rates.slower
    steps = model.rows / preparation.batch_size
    launching = steps * shape.layers * rates.launched
    updating = steps * _UPDATE_BYTES * shape.weights / rates.bandwidth
    return rates.started + max(flop / rates.flops, launching) + updating


def estimated_peak(spec: RunSpec, trainer: Trainer) -> int | None:
    """Estimate the peak memory in MiB of a run from its own rows.

    Returns:
        None if the shape of its model is not known.
    """
    with suppress(ModelError):
        shape, setup = _measured(spec, trainer)
        if trainer.passes.budget is not None:
            setup = replace(setup, micro_batch_size=trainer.passes.budget.rows)
        objective = trainer.objective
        return footprint(shape, objective.method, objective.needs, setup).to_json()["peak"]
    return None


def budget_of(spec: RunSpec, trainer: Trainer, limit: int | None) -> Budget | None:
    """Estimate the largest micro-batch that fits into memory.

    Args:
        spec: Specification of the run.
        trainer: Its trainer, which knows the run's own rows and processes.
        limit: Bytes that a process may use. None for no limit.

    Returns:
        None if a whole step fits, if the configuration states the rows of a micro-batch, or if the
        shape of the model is not known.
    """
    if limit is None or spec.training.micro_batch_size is not None:
        return None
    with suppress(ModelError):
        shape, setup = _measured(spec, trainer)
        objective, reader = trainer.objective, trainer.batches.reader
        result = fitting(shape, objective.method, objective.needs, setup, limit)
        if result.micro_batch_size is not None:
            packed = reader.packs(trainer.model, trainer.rows.forget)
            return Budget(result.items, result.tokens if packed else None)
    return None


def _measured(spec: RunSpec, trainer: Trainer) -> tuple[Shape, Setup]:
    """Return the shape and set-up of a run that has begun, from its own rows and processes."""
    rows, needs = trainer.rows, trainer.objective.needs
    reads_only_forget_rows = needs.parts == frozenset[Part]({"forget"})
    known = rows.forget if reads_only_forget_rows else [*rows.forget, *rows.retain]
    lengths = Lengths.of([(len(row.ids), row.scored) for row in known])
    accelerator: Any = trainer.accelerator
    parallel: Any = "fsdp" if is_sharded(trainer.model) else "ddp"
    resources = Resources(processes=accelerator.num_processes, parallel=parallel)
    on_gpu = accelerator.device.type == "cuda"
    setup = _setup(spec, needs, lengths, resources, on_gpu=on_gpu)
    model: Any = accelerator.unwrap_model(trainer.model)
    return _shape(model.config, spec.model, trainer.objective.method, setup), setup


def _setup(
    spec: RunSpec, needs: Needs, lengths: Lengths, resources: Resources, *, on_gpu: bool
) -> Setup:
    """Collect the settings of a run that its memory and time depend on.

    Args:
        spec: Specification of the run.
        needs: Inputs of its loss and its retain term.
        lengths: Tokens of its rows.
        resources: Its processes.
        on_gpu: Whether they have GPUs.
    """
    modifiers = modifiers_from_spec(spec.method)
    evaluated_in = resolve_precision(
        "cuda" if on_gpu else "cpu", spec.model.dtype, spec.evaluation.precision
    )
    return Setup(
        batch_size=spec.training.batch_size,
        micro_batch_size=spec.training.micro_batch_size,
        rows_per_item=needs.rows_per_item,
        lengths=lengths,
        autocast=spec.training.precision != "fp32",
        checkpointing=spec.model.gradient_checkpointing,
        optimizer=spec.training.optimizer,
        resources=resources,
        on_gpu=on_gpu,
        evaluated_in_half="float16" in evaluated_in,  # `bfloat16` contains it, too
        passes=_passes_of_step(modifiers, needs),
        copies=_tensors_per_weight(modifiers),
    )


def _passes_of_step(modifiers: Sequence[Modifier], needs: Needs) -> float:
    """Return the forward and backward passes of a step, on average over its rows.

    Modifiers that perturb the weights evaluate the loss of the forget parts again at the perturbed
    weights. Retain parts go through the model once.
    """
    repetitions = sum(
        modifier.evaluations - 1 for modifier in modifiers if isinstance(modifier, Perturb)
    )
    forget_parts = needs.parts - RETAIN_PARTS
    return 1 + repetitions * len(forget_parts) / max(len(needs.parts), 1)


def _tensors_per_weight(modifiers: Sequence[Modifier]) -> int:
    """Return the number of fp32 tensors that modifiers keep for each trained weight."""
    if not modifiers:
        return 0
    # The gradient as a whole, or one for forget and one for retain rows.
    gradients = 2 if any(modifier.two_roles for modifier in modifiers) else 1
    # A perturbation keeps its offset, a filter its mask, and any modifier may keep a memory.
    with_own_tensor = [
        modifier
        for modifier in modifiers
        if modifier.kind in ("perturb", "filter") or _has_memory(modifier)
    ]
    return gradients + len(with_own_tensor)


def _has_memory(modifier: Modifier) -> bool:
    """Whether the modifier's class defines `Modifier.memory`."""
    return type(modifier).memory.__qualname__ != "Modifier.memory"


def _shape(config: Any, settings: ModelSettings, method: Method, setup: Setup) -> Shape:
    """Count the sizes of a model for rows as long as a run's longest one."""
    width = math.ceil(setup.lengths.longest / _GRID) * _GRID
    return shape_of(config, settings, method.trains, autocast=setup.autocast, width=width)


def check_plan(plan: Plan, benchmark: Dataset, device: int | None) -> list[str]:
    """Check that the runs of a plan fit into memory.

    Args:
        plan: With all runs.
        benchmark: Its rows are counted.
        device: Bytes of a GPU's memory. None if there is no GPU, or its memory is not known. Then
            nothing is checked.

    Returns:
        A line for each model whose shape is not known, so that it could not be checked.

    Raises:
        TrainingError: If runs do not fit.
    """
    uses_gpu = any(plan.config.resources_of(model.name).gpus for model in plan.config.models)
    if device is None or not uses_gpu:
        return []
    # Any rates will do, because only memory is of interest.
    estimates, unknown = estimate_plan(plan, benchmark, Rates(1.0), device)
    too_large = [estimate for estimate in estimates if not estimate.fits]
    if too_large:
        raise TrainingError("; ".join(refusals(too_large, device)))
    return [f"cannot check that runs fit into memory: {line}" for line in unknown]


def check_run(spec: RunSpec, config: SweepConfig, benchmark: Dataset) -> None:
    """Check that a run fits the GPU of this process.

    Raises:
        TrainingError: If it does not. A model of unknown shape is not refused.
    """
    device = device_memory()
    resources = config.resources_of(spec.model.name)
    if device is None or not resources.gpus:
        return
    try:
        estimate = estimate_run(spec, resources, benchmark, Rates(1.0), device)
    except ModelError:
        return
    if not estimate.fits:
        raise TrainingError("; ".join(refusals([estimate], device)))


def refusals(too_large: Sequence[Estimate], device: int) -> Iterator[str]:
    """Yield a phrase for each model that does not fit: methods, memory needed, and remedies.

    Args:
        too_large: Estimates that do not fit.
        device: Bytes of a GPU's memory.
    """
    by_model: dict[str, list[Estimate]] = {}
    for estimate in too_large:
        by_model.setdefault(estimate.run.model.name, []).append(estimate)
    for name, estimates in by_model.items():
        methods = ", ".join(dict.fromkeys(estimate.run.method.label for estimate in estimates))
        peak = max(estimate.memory.peak for estimate in estimates)
        # Runs may share a GPU, or use several with a process on each.
        share_of_gpu = min(estimates[0].resources.gpus, 1.0)
        yield (
            f"{name} does not fit its GPU with {methods}: an estimated {peak / 2**30:.1f} GiB of "
            f"{share_of_gpu * device / 2**30:.1f} GiB, of which "
            f"{USABLE_SHARE:.0%} can be used; less memory, and the same numbers: "
            "gradient_checkpointing: true of the model, resources.gpu: 2 or more; other numbers: "
            "lora, dtype: bfloat16, an 8-bit optimizer (`plan --memory` estimates each)"
        )
