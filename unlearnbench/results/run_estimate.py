"""Estimates of a run's memory and hours, from a plan before anything is loaded, or from a trainer.

An estimate has three steps: count the work of a run (`Effort`), estimate its memory (`Footprint`),
and divide the work by the rates of a device (`Rates`). The formulas are explained in
docs/tutorials/run-on-a-cluster.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

from unlearnbench.api.benchmark import Dataset
from unlearnbench.api.method import RETAIN_PARTS, LossBatch, Method, Needs, Terms
from unlearnbench.api.modifier import Perturb
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.base.fsdp import is_sharded
from unlearnbench.config.method_specs import method_from_spec, modifiers_from_spec
from unlearnbench.config.plan import Plan
from unlearnbench.config.precision import resolve_precision
from unlearnbench.config.resources import Resources
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import ModelSettings, SweepConfig
from unlearnbench.models.device import CACHE_SHARE, USABLE_SHARE, device_memory, usable_memory
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
_UPDATED = 28
"""Bytes that an optimiser reads and writes for a weight in fp32."""
_STARTED = 20.0
"""Seconds to start Ray and its processes, and to write the page."""
_SAMPLED_ALONE = 4
"""Cost of a token that is sampled outside a batch, in tokens that are scored in a batch."""


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
    from torch.utils.benchmark import Timer

    rows = torch.ones(tokens, hidden)
    up = torch.ones(hidden, inner, requires_grad=True)
    down = torch.ones(inner, hidden, requires_grad=True)
    step = "torch.autograd.grad(((rows @ up).relu() @ down).sum(), (up, down))"
    values = {"torch": torch, "rows": rows, "up": up, "down": down}
    timer: Any = Timer(step, globals=values, num_threads=1)
    # The forward pass has two products and the backward pass three, because the rows need no
    # gradient. Each product takes 2 · tokens · hidden · inner operations.
    flop = 10 * tokens * hidden * inner
    return flop / float(timer.blocked_autorange(min_run_time=0.3).median)


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
    sampling = 2 * n * _SAMPLED_ALONE * effort.sampled
    return effort.trained * (passes + weight_gradients) + sampling


def _rate(rates: Rates, *, in_half: bool) -> float:
    """Return FLOP/s of matrix products in half precision or in fp32."""
    return rates.flops / (1 if in_half else rates.slower)


def _trains_in_half(shape: Shape, setup: Setup) -> bool:
    return setup.autocast or shape.item == 2


def attack_seconds(work: AttackEffort, shape: Shape, setup: Setup, rates: Rates) -> float:
    """Estimate the seconds of training by attacks, which train with a run's precision."""
    world = setup.resources.world_size
    n = shape.matrices
    # The forward pass and the gradients of activations. Checkpointing repeats the forward pass.
    passes = (6 if setup.checkpointing else 4) * n
    weight_gradients = 2 * n
    flop = work.trained * (passes + weight_gradients) + work.adapted * passes
    computing = flop / _rate(rates, in_half=_trains_in_half(shape, setup)) / world

    micro_batches = max(work.steps, math.ceil(work.rows / world / setup.items))
    launching = micro_batches * shape.layers * rates.launched
    seconds = max(computing, launching)
    trains_all_weights = work.trained > 0
    if trains_all_weights:
        seconds += work.steps * _UPDATED * shape.weights / rates.bandwidth
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
    evaluation_rate = _rate(rates, in_half=setup.evaluated_in_half or shape.item == 2)
    scored_flop = effort.whole * effort.scored * 2 * shape.matrices
    scoring = scored_flop / evaluation_rate / setup.resources.world_size
    decoding = _decoding_seconds(effort, shape, setup, memory, rates, limit)
    attacks = attack_seconds(effort.attacks, shape, setup, rates)
    loading = rates.started + 2 * shape.weights / rates.loaded

    # A checkpoint is saved as soon as ten times the seconds that saving takes have passed.
    save = (shape.trained_bytes + optimizer_bytes(shape, setup)) / rates.saved
    save_count = int((training + scoring + decoding) / (10 * save)) if save else 0
    return Hours(
        training=training / 3600,
        scoring=scoring / 3600,
        decoding=decoding / 3600,
        attacks=attacks / 3600,
        loading=loading / 3600,
        checkpoints=save_count * save / 3600,
    )


def _training_seconds(effort: Effort, shape: Shape, setup: Setup, rates: Rates) -> float:
    world = setup.resources.world_size
    flop = setup.passes * training_flop(effort, shape, checkpointing=setup.checkpointing)
    computing = flop / _rate(rates, in_half=_trains_in_half(shape, setup)) / world
    micro_batches = effort.steps * math.ceil(setup.batch_size / world / setup.items)
    # A GPU computes while its host launches the next operations, so the longer of both counts.
    seconds = max(computing, micro_batches * shape.layers * rates.launched)
    seconds += effort.steps * _UPDATED * shape.trained / world / rates.bandwidth
    if world > 1:
        # Processes exchange weights in 2 bytes and gradients in 4 bytes.
        seconds += effort.steps * (2 + 4) * shape.weights / rates.linked
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

    Answers are decoded in slots: as many at a time as their keys and values fit into memory.
    """
    n = shape.matrices
    answers = math.ceil(effort.answers / setup.resources.world_size)
    item = 2 if setup.evaluated_in_half else shape.item
    slots = answers
    if limit is not None:
        free = CACHE_SHARE * max(limit - memory.constant - memory.evaluation, 0)
        cache = min(free, memory.keys)
        slots = min(max(int(cache / (effort.text * shape.keys * item)), 1), answers)
    steps = max(answers * effort.decoded / slots, effort.limit) if answers else 0

    # On a CPU most tokens are drafts that are verified, and cost as much as scored tokens.
    evaluation_rate = _rate(rates, in_half=setup.evaluated_in_half or shape.item == 2)
    computing = 2 * answers * effort.decoded * n / evaluation_rate
    # Each step reads all weights, and on average half of the columns of each slot.
    reading = steps * item * (n + slots * effort.text * shape.keys / 2) / rates.bandwidth
    launching = steps * (shape.layers * rates.decoded + rates.interpreted)
    return effort.whole * (max(computing + reading, launching) + rates.summarised)


@dataclass(frozen=True)
class Estimate:
    """Estimate for all runs of a model with one method and its hyperparameters."""

    run: RunSpec
    """The longest run with the largest forget set. Memory and effort are estimated for it."""
    runs: int
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
        The estimates, and a line for each model whose shape is not known.
    """
    groups: dict[tuple[str, str], list[RunSpec]] = {}
    for run in plan.runs:
        groups.setdefault((run.model.name, run.method.model_dump_json()), []).append(run)
    estimates: list[Estimate] = []
    # Several methods of a model may give the same line. A dict keeps one, in order.
    unknown: dict[str, None] = {}
    for (name, _), runs in groups.items():
        resources = plan.config.resources_of(name)
        # Runs that differ only in seed or learning rate do the same work.
        run_of_work = {_work_of(run): run for run in runs}
        try:
            estimate_of_work = {
                work: estimate_run(run, resources, benchmark, rates, device)
                for work, run in run_of_work.items()
            }
        except ModelError as error:
            unknown[f"{name}: {error}"] = None
            continue
        longest = max(
            estimate_of_work.values(),
            key=lambda estimate: (estimate.effort.rows, estimate.hours.total),
        )
        all_hours = sum(estimate_of_work[_work_of(run)].hours.total for run in runs)
        estimates.append(replace(longest, runs=len(runs), all_hours=all_hours))
    return estimates, list(unknown)


def _work_of(run: RunSpec) -> tuple[Any, ...]:
    """Return what the work of a run depends on, among runs of one model and method."""
    return run.forget_fraction, run.evaluate_at, run.budget


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


def sweep_seconds(
    estimates: Sequence[Estimate], slots: int, prepared: Iterable[tuple[str, int, bool]]
) -> float:
    """Estimate the seconds of a sweep, from its command to the finished page.

    Args:
        estimates: Estimates of all its runs.
        slots: Number of runs at a time.
        prepared: Models to train first: name of the model, rows in all epochs, and whether all
            other work waits for it.
    """
    first = {item.run.model.name: item for item in estimates}
    splits = {(item.run.model.name, item.run.forget_fraction): item for item in estimates}
    result = sum(item.all_hours for item in estimates) * 3600 / slots
    # The last runs leave slots idle.
    result += 1800 * max((item.hours.total for item in estimates), default=0) * (slots > 1)
    for name, rows, alone in prepared:
        if item := first.get(name):
            flop = 6 * item.shape.matrices * rows * item.setup.lengths.mean
            preparation, rates = item.run.model.preparation, item.rates
            half = item.shape.item == 2 or preparation.precision != "fp32"
            flop *= 1 if half else rates.slower
            steps = rows / preparation.batch_size
            launched = steps * item.shape.layers * rates.launched
            updated = steps * _UPDATED * item.shape.weights / rates.bandwidth
            seconds = rates.started + max(flop / rates.flops, launched) + updated
            result += seconds if alone else seconds / slots
    for item in splits.values():  # the start model and the retain model are evaluated once each
        once = item.effort.attacks_once
        hours = (item.hours.scoring + item.hours.decoding) / item.effort.whole
        result += 2 * (1 + once.evaluations) * hours * 3600
        result += 2 * attack_seconds(once, item.shape, item.setup, item.rates)
    return _STARTED + result


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
        spec: Of the run.
        trainer: With the run's own rows and processes.
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
    known = [*rows.forget, *rows.retain] if needs.parts != {"forget"} else rows.forget
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
    kind = "cuda" if on_gpu else "cpu"
    modifiers = modifiers_from_spec(spec.method)
    kinds = [modifier.kind for modifier in modifiers]
    roles = 1 + any(modifier.two_roles for modifier in modifiers)
    kept = sum(
        kind in ("perturb", "filter") or type(modifier).memory.__qualname__ != "Modifier.memory"
        for kind, modifier in zip(kinds, modifiers, strict=True)
    )
    repeated = sum(item.evaluations - 1 for item in modifiers if isinstance(item, Perturb))
    evaluated_in = resolve_precision(kind, spec.model.dtype, spec.evaluation.precision)
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
        evaluated_in_half="float16" in evaluated_in,  # also of bfloat16
        passes=1 + repeated * len(needs.parts - RETAIN_PARTS) / max(len(needs.parts), 1),
        copies=roles + kept if modifiers else 0,
    )


def _shape(config: Any, settings: ModelSettings, method: Method, setup: Setup) -> Shape:
    width = -(-setup.lengths.longest // _GRID) * _GRID
    return shape_of(config, settings, method.trains, autocast=setup.autocast, width=width)


def check_plan(plan: Plan, benchmark: Dataset, device: int | None) -> list[str]:
    """Check that the runs of a plan fit into memory.

    Args:
        plan: With all runs.
        benchmark: Its rows are counted.
        device: Bytes of a GPU's memory. None if there is no GPU, or its memory is not known.

    Returns:
        A line for each model whose shape is not known, so that it could not be checked.

    Raises:
        TrainingError: If runs do not fit.
    """
    if device is None or not any(plan.config.resources_of(m.name).gpu for m in plan.config.models):
        return []
    result, unknown = estimate_plan(plan, benchmark, Rates(1.0), device)
    refused = [item for item in result if not item.fits]
    if refused:
        raise TrainingError("; ".join(refusals(refused, device)))
    return [f"cannot check that runs fit into memory: {line}" for line in unknown]


def check_run(spec: RunSpec, config: SweepConfig, benchmark: Dataset) -> None:
    """Check that a run fits the GPU of this process.

    Raises:
        TrainingError: If it does not. A model of unknown shape is not refused.
    """
    device, resources = device_memory(), config.resources_of(spec.model.name)
    if device is None or not resources.gpu:
        return
    try:
        item = estimate_run(spec, resources, benchmark, Rates(1.0), device)
    except ModelError:
        return
    if not item.fits:
        raise TrainingError("; ".join(refusals([item], device)))


def refusals(refused: Sequence[Estimate], device: int) -> Iterator[str]:
    """Yield a phrase for each model that does not fit: methods, memory needed, and remedies."""
    by_model: dict[str, list[Estimate]] = {}
    for item in refused:
        by_model.setdefault(item.run.model.name, []).append(item)
    for name, items in by_model.items():
        methods = ", ".join(dict.fromkeys(item.run.method.label for item in items))
        peak = max(item.memory.peak for item in items)
        yield (
            f"{name} does not fit its GPU with {methods}: an estimated {peak / 2**30:.1f} GiB of "
            f"{min(items[0].resources.gpu, 1.0) * device / 2**30:.1f} GiB, of which "
            f"{USABLE_SHARE:.0%} can be used; less memory, and the same numbers: "
            "gradient_checkpointing: true of the model, resources.gpu: 2 or more; other numbers: "
            "lora, dtype: bfloat16, an 8-bit optimizer (`plan --memory` estimates each)"
        )
