"""Estimates of a run's memory and hours: from a plan before anything is loaded, or from a trainer.

docs/tutorials/run-on-a-cluster.md has the estimates as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.api.method import Method, Needs
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.base.fsdp import is_sharded
from unlearnbench.config.method_specs import method_from_spec, modifiers_from_spec
from unlearnbench.config.plan import Plan, RunSpec
from unlearnbench.config.precision import resolve_precision
from unlearnbench.config.resources import Resources
from unlearnbench.config.schema import ModelSettings, SweepConfig
from unlearnbench.models.device import USABLE_SHARE, device_memory, usable_memory
from unlearnbench.models.loading import Source
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


CHARACTERS = 4
"""Characters of a token of English text, about, in current vocabularies."""
TEMPLATE = 10
"""Tokens of a template around question and answer, about."""
_GRID = 64  # row widths are rounded up to it, so that few shapes are counted
_SLOWER = 8  # fp32 against bf16: 67 of 989 TFLOP/s on an H100, of which a larger share is reached
_BANDWIDTH = 2e12  # bytes/s of a GPU's memory: 3.35e12 of an H100, of which a share is reached
_LAUNCHED = 1.25e-3  # seconds a layer to launch forward and back of a micro-batch
_DECODED = 0.6e-3  # seconds a layer to launch a step of decoding
_LOADED = 2e9  # bytes/s of a model's files
_SAVED = 250e6  # bytes/s of a checkpoint, as `runs/checkpoints.py` assumes at first
_UPDATED = 28  # bytes an optimiser reads and writes for a weight in fp32
_FREE = 0.7  # of free memory, for keys and values
ASSUMED = (
    f"{_BANDWIDTH / 1e12:g} TB/s of a GPU's memory, {_LOADED / 1e9:g} GB/s of a model's files, "
    f"{_SAVED / 1e9:g} GB/s of a checkpoint, {1e3 * _LAUNCHED:g} ms a layer to launch a "
    f"micro-batch and {1e3 * _DECODED:g} ms a step of decoding"
)
"""Rates that hours are counted with."""


@dataclass(frozen=True)
class Hours:
    """Hours of a run by phase."""

    training: float
    scoring: float
    decoding: float
    loading: float
    checkpoints: float

    @property
    def total(self) -> float:
        """The sum of all phases."""
        return self.training + self.scoring + self.decoding + self.loading + self.checkpoints


@dataclass(frozen=True)
class Effort:
    """Work of a run."""

    trained: float
    """Trained tokens of all parts."""
    steps: int
    """Optimiser steps."""
    evaluations: int
    scored: float
    """Tokens of an evaluation that are scored."""
    answers: int
    """Answers that are decoded in an evaluation."""
    decoded: float
    """Mean tokens of a decoded answer."""
    limit: int
    """Most tokens of a decoded answer."""
    text: float
    """Tokens of a slot: prompt and answer."""

    def flop(self, shape: Shape, *, checkpointing: bool) -> float:
        """Floating-point operations of training."""
        n = shape.matrices
        return self.trained * ((6 if checkpointing else 4) * n + 2 * min(shape.trained, n))

    def hours(
        self, shape: Shape, setup: Setup, memory: Footprint, flops: float, limit: int | None
    ) -> Hours:
        """Estimate the hours of a run at `flops` operations a second of each process in bf16.

        limit  bytes that a process may use; None for no limit
        """
        world, n = setup.resources.world_size, shape.matrices
        trained_at = flops / (1 if setup.autocast or shape.item == 2 else _SLOWER)
        evaluated_at = flops / (1 if setup.evaluated_in_bf16 or shape.item == 2 else _SLOWER)
        passes = self.steps * math.ceil(setup.batch_size / world / setup.items)
        training = self.flop(shape, checkpointing=setup.checkpointing) / trained_at / world
        training *= setup.passes
        if setup.on_gpu:
            training = max(training, passes * shape.layers * _LAUNCHED)
            training += self.steps * _UPDATED * shape.trained / world / _BANDWIDTH
        scoring = self.evaluations * self.scored * 2 * n / evaluated_at / world
        decoding = self.evaluations * self._decoding(shape, setup, memory, evaluated_at, limit)
        loading = 2 * shape.weights / _LOADED
        save = (shape.trained_bytes + optimizer_bytes(shape, setup)) / _SAVED
        saves = int((training + scoring + decoding) / (10 * save))
        parts = (training, scoring, decoding, loading, saves * save)
        return Hours(*(seconds / 3600 for seconds in parts))

    def _decoding(
        self, shape: Shape, setup: Setup, memory: Footprint, flops: float, limit: int | None
    ) -> float:
        """Seconds of decoding in one evaluation."""
        answers = math.ceil(self.answers / setup.resources.world_size)
        if not answers:
            return 0.0
        item = 2 if setup.evaluated_in_bf16 else shape.item
        slots = answers
        if limit is not None:
            free = _FREE * max(limit - memory.constant - memory.evaluation, 0)
            slots = min(max(int(free / (self.text * shape.keys * item)), 1), answers)
        steps = max(answers * self.decoded / slots, self.limit)
        step = 2 * slots * shape.matrices / flops
        if setup.on_gpu:
            step = max(step + item * shape.matrices / _BANDWIDTH, shape.layers * _DECODED)
        return steps * step


@dataclass(frozen=True)
class Estimate:
    """The estimate of all runs of one model with one method (and one set of hyper-parameters)."""

    run: RunSpec
    """The longest run, of the largest forget set."""
    runs: int
    resources: Resources
    setup: Setup
    memory: Footprint
    hours: Hours
    """Hours of the longest run."""
    gpu_hours: float
    """GPU hours of all runs and processes."""
    limit: int | None
    """Bytes that a process may use; None for no limit."""

    @property
    def fits(self) -> bool:
        """True if the runs fit their device, or nothing limits them."""
        return self.limit is None or self.memory.peak <= self.limit


def estimate_plan(
    plan: Plan, benchmark: Dataset, flops: float, device: int | None
) -> tuple[list[Estimate], list[str]]:
    """Estimate each model × method of `plan`; also return a line per unknown shape.

    flops   floating-point operations a second of one process
    device  bytes of a GPU's memory; None where it is not known
    """
    groups: dict[tuple[str, str], list[RunSpec]] = {}
    for run in plan.runs:
        groups.setdefault((run.model.name, run.method.model_dump_json()), []).append(run)
    estimates: list[Estimate] = []
    unknown: dict[str, None] = {}
    for runs in groups.values():
        if not isinstance(method_from_spec(runs[0].method), Method):
            continue  # what trains nothing takes an evaluation
        name = runs[0].model.name
        resources = plan.config.resources_of(name)
        kinds = [(run.forget_fraction, len(run.evaluate_at), run.epochs) for run in runs]
        try:
            each = {
                kind: estimate_run(run, resources, benchmark, flops, device)
                for kind, run in dict(zip(kinds, runs, strict=True)).items()
            }
        except ModelError as error:
            unknown[f"{name}: {error}"] = None
        else:
            spent = sum(each[kind].gpu_hours for kind in kinds)
            rows = {key: len(split.forget) for key, split in benchmark.splits.items()}
            longest = max(kinds, key=lambda kind: (rows[kind[0]], *kind[1:]))
            estimates.append(replace(each[longest], runs=len(runs), gpu_hours=spent))
    return estimates, list(unknown)


def estimate_run(
    spec: RunSpec, resources: Resources, benchmark: Dataset, flops: float, device: int | None
) -> Estimate:
    """Estimate one run. Raises: ModelError where its model's shape is not known."""
    method: Any = method_from_spec(spec.method)
    split = benchmark.splits[spec.forget_fraction]
    rows = [*split.forget, *split.retain]
    lengths = Lengths.of([row_tokens(question, spec.training.max_length) for question in rows])
    needs = Objective(method, spec.method.retain).needs
    setup = _setup(spec, needs, lengths, resources, on_gpu=True)
    model, limit = spec.model, usable_memory(device, resources)
    base = Source.parse(model.base, model.revision)
    config = config_of(model, Source.parse(model.fine_tuned) if model.fine_tuned else base)
    shape = _shape(config, model, method, setup)
    setup = fitting(shape, method, needs, setup, limit)
    memory = footprint(shape, method, needs, setup)
    trained = len(split.forget) * spec.epochs * setup.rows_per_item * lengths.mean
    effort = effort_of(spec, benchmark, trained, spec.schedule(len(split.forget)).steps)
    hours = effort.hours(shape, setup, memory, flops, limit)
    spent = hours.total * resources.world_size
    return Estimate(spec, 1, resources, setup, memory, hours, spent, limit)


def estimated_peak(spec: RunSpec, trainer: Trainer) -> int | None:
    """Estimate a run's peak in MiB from its own rows; None where its shape is not known."""
    needs, method = trainer.objective.needs, trainer.objective.method
    try:
        shape, setup = _measured(spec, trainer)
    except ModelError:
        return None
    if trainer.budget is not None:
        setup = replace(setup, micro_batch_size=trainer.budget.rows)
    return footprint(shape, method, needs, setup).to_json()["peak"]


def budget_of(spec: RunSpec, trainer: Trainer, limit: int | None) -> Budget | None:
    """Estimate the micro-batch that fits `limit` bytes; None where a whole step does.

    Also None where the configuration states the rows, or the shape is not known.
    """
    if limit is None or spec.training.micro_batch_size is not None:
        return None
    needs, method = trainer.objective.needs, trainer.objective.method
    try:
        shape, setup = _measured(spec, trainer)
    except ModelError:
        return None
    result = fitting(shape, method, needs, setup, limit)
    if result.micro_batch_size is None:
        return None
    packed = trainer.batches.reader.packs(trainer.model, trainer.rows.forget)
    return Budget(result.items, result.tokens if packed else None)


def _measured(spec: RunSpec, trainer: Trainer) -> tuple[Shape, Setup]:
    """The shape and set-up of a run that has begun, from its own rows and processes."""
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
    kept = sum(kind in ("perturb", "filter", "weights") for kind in kinds)
    evaluated_in = resolve_precision(kind, spec.model.dtype, spec.evaluation.precision)
    return Setup(
        batch_size=spec.training.batch_size,
        micro_batch_size=spec.training.micro_batch_size,
        rows_per_item=needs.rows_per_item,
        lengths=lengths,
        autocast=spec.training.precision == "bf16",
        checkpointing=spec.model.gradient_checkpointing,
        optimizer=spec.training.optimizer,
        resources=resources,
        on_gpu=on_gpu,
        evaluated_in_bf16="bfloat16" in evaluated_in,
        passes=1 + ("perturb" in kinds),
        copies=roles + kept if modifiers else 0,
    )


def _shape(config: Any, settings: ModelSettings, method: Method, setup: Setup) -> Shape:
    width = -(-setup.lengths.longest // _GRID) * _GRID
    return shape_of(config, settings, method.trains, autocast=setup.autocast, width=width)


def row_tokens(question: Question, most: int) -> tuple[int, int]:
    """Estimate the tokens of a training row and of its answer from the text's length."""
    answer = _count(question.answer)
    return min(_prompt(question) + answer, most), min(answer, most)


def _prompt(question: Question) -> int:
    turns = [question.question, *("".join(example) for example in question.examples)]
    return sum(_count(text) + TEMPLATE * (question.format == "chat") for text in turns)


def _count(text: str) -> int:
    return -(-len(text) // CHARACTERS)


def effort_of(spec: RunSpec, benchmark: Dataset, trained: float, steps: int) -> Effort:
    """The work of a run with so many trained tokens and steps, including its evaluations.

    Each question is read once, with each of its answers.
    """
    from unlearnbench.config.profiles import profile_of
    from unlearnbench.evaluation.sets import evaluation_sets, is_answered

    profile = profile_of(spec.evaluation)
    sets = evaluation_sets(benchmark, spec.forget_fraction, profile)
    questions = [item for questions in sets.values() for item in questions]
    prompt = fmean(_prompt(item) for item in questions)
    answer = fmean(_count(item.answer) for item in questions)
    roles = spec.data.roles
    answered = [q for name, qs in sets.items() if is_answered(qs, roles[name]) for q in qs]
    rule = profile.max_new_tokens or max(profile.max_length - round(prompt), 1)
    limits = [question.max_new_tokens or rule for question in answered] or [0]
    limit = max(limits)
    scored = sum(_count(text) for item in questions for text in item.scored_answers)
    decoded = (answer + fmean(limits)) / 2
    return Effort(
        trained=trained,
        steps=steps,
        evaluations=len(spec.evaluate_at),
        scored=scored + len(questions) * prompt,
        answers=len(answered),
        decoded=decoded,
        limit=limit,
        text=prompt + limit,
    )


_FLOPS = 1.0  # hours are not used
_SHOWN = 3
"""Methods that a message names."""


def check_plan(plan: Plan, benchmark: Dataset, device: int | None) -> list[str]:
    """Raise TrainingError where runs of `plan` do not fit; returns a line per unknown shape.

    device  bytes of a GPU's memory; None where there is none or it is not known
    """
    if device is None or not any(plan.config.resources_of(m.name).gpu for m in plan.config.models):
        return []
    result, unknown = estimate_plan(plan, benchmark, _FLOPS, device)
    refused = [item for item in result if not item.fits]
    if refused:
        raise TrainingError("; ".join(refusals(refused, device)))
    return [f"cannot check that runs fit into memory: {line}" for line in unknown]


def check_run(spec: RunSpec, config: SweepConfig, benchmark: Dataset) -> None:
    """Raise TrainingError where a run does not fit the GPU of this process."""
    device, resources = device_memory(), config.resources_of(spec.model.name)
    if device is None or not resources.gpu or not isinstance(method_from_spec(spec.method), Method):
        return
    try:
        item = estimate_run(spec, resources, benchmark, _FLOPS, device)
    except ModelError:
        return  # an unknown shape does not refuse the run
    if not item.fits:
        raise TrainingError("; ".join(refusals([item], device)))


def refusals(refused: Sequence[Estimate], device: int) -> Iterator[str]:
    """A phrase for each model: its runs, their memory, the device's, and what needs less."""
    for name in dict.fromkeys(estimate.run.model.name for estimate in refused):
        runs = [estimate for estimate in refused if estimate.run.model.name == name]
        worst = max(runs, key=lambda estimate: estimate.memory.peak)
        methods = list(dict.fromkeys(estimate.run.method.label for estimate in runs))
        others = f" and {len(methods) - _SHOWN} more" if len(methods) > _SHOWN else ""
        share = min(worst.resources.gpu, 1.0)
        part = "" if share == 1 else f"{share:g} of "
        yield (
            f"{name} does not fit its GPU with {', '.join(methods[:_SHOWN])}{others}: an estimated "
            f"{gib(worst.memory.peak)} of {part}{gib(device)}, of which {USABLE_SHARE:.0%} can be "
            "used; less memory, and the same numbers: gradient_checkpointing: true of the model, "
            "resources.gpu: 2 or more; other numbers: lora, dtype: bfloat16, an 8-bit optimizer "
            "(`plan --memory` estimates each)"
        )


def gib(size: float) -> str:
    """`25.1 GiB`."""
    return f"{size / 2**30:.1f} GiB"
