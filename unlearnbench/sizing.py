"""Estimates for runs: from a plan before anything is loaded, and from a trainer beside what is
measured.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unlearnbench.data.benchmark import Benchmark, Question
from unlearnbench.device import usable
from unlearnbench.errors import ModelError
from unlearnbench.evaluation.precision import precision_on
from unlearnbench.execution import Resources
from unlearnbench.footprint import (
    Budget,
    Effort,
    Footprint,
    Hours,
    Lengths,
    Setup,
    fitting,
    footprint,
    rows_of_item,
)
from unlearnbench.method import Method, Needs
from unlearnbench.models.loading import Source
from unlearnbench.models.skeleton import Shape, config_of, shape_of
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.registry import method_from_spec
from unlearnbench.retain import Objective
from unlearnbench.settings import ModelSettings
from unlearnbench.sharding import is_sharded

if TYPE_CHECKING:  # it imports accelerate, which a plan has no need of
    from unlearnbench.training import Trainer

CHARACTERS = 4
"""Of a token of English text, about, in the vocabularies of today."""
TEMPLATE = 10
"""Tokens that a template puts around question and answer, about."""
_GRID = 64  # row widths are rounded up to it, so that shapes are counted for few of them


@dataclass(frozen=True)
class Estimate:
    """Of all runs of one model with one method (and one set of hyper-parameters)."""

    run: RunSpec
    """The longest of them, of the largest forget set."""
    runs: int
    resources: Resources
    setup: Setup
    memory: Footprint
    hours: Hours
    """Of the longest of the runs."""
    gpu_hours: float
    """Of all runs and processes."""
    limit: int | None
    """Bytes that a process may take; None where nothing limits it."""

    @property
    def fits(self) -> bool:
        """True if nothing is known that would keep the runs from their device."""
        return self.limit is None or self.memory.peak <= self.limit


def estimates(
    plan: Plan, benchmark: Benchmark, flops: float, device: int | None
) -> tuple[list[Estimate], list[str]]:
    """An estimate for each model × method of `plan`, and what is not known, a line each.

    flops   floating-point operations a second of one process
    device  bytes of a GPU's memory; None where it is not known
    """
    groups: dict[tuple[str, str], list[RunSpec]] = {}
    for run in plan.runs:
        groups.setdefault((run.model.name, run.method.model_dump_json()), []).append(run)
    found: list[Estimate] = []
    unknown: dict[str, None] = {}
    for runs in groups.values():
        if not isinstance(method_from_spec(runs[0].method), Method):
            continue  # what trains nothing takes an evaluation
        spec = max(runs, key=lambda r: (r.forget_fraction, len(r.evaluate_at), r.epochs))
        resources = plan.config.resources_of(spec.model.name)
        kinds = Counter((r.forget_fraction, len(r.evaluate_at), r.epochs) for r in runs)
        alike = {(r.forget_fraction, len(r.evaluate_at), r.epochs): r for r in runs}
        try:
            one = estimate_of(spec, resources, benchmark, flops, device)
            each = (estimate_of(alike[k], resources, benchmark, flops, device) for k in kinds)
            spent = sum(e.gpu_hours * n for e, n in zip(each, kinds.values(), strict=True))
        except ModelError as error:
            unknown[f"{runs[0].model.name}: {error}"] = None
        else:
            found.append(replace(one, runs=len(runs), gpu_hours=spent))
    return found, list(unknown)


def estimate_of(
    spec: RunSpec, resources: Resources, benchmark: Benchmark, flops: float, device: int | None
) -> Estimate:
    """The estimate of one run. Raises: ModelError where its model's shape is not to be had."""
    method: Any = method_from_spec(spec.method)
    split = benchmark.splits[spec.forget_fraction]
    rows = [*split.forget, *split.retain]
    lengths = Lengths.of([_tokens(question, spec.training.max_length) for question in rows])
    needs = Objective(method, spec.method.retain).needs
    setup = _setup(spec, needs, lengths, resources, on_gpu=True)
    model, limit = spec.model, usable(device, resources)
    base = Source.named(model.base, model.revision)
    config = config_of(model, Source.named(model.fine_tuned) if model.fine_tuned else base)
    shape = _shape(config, model, method, setup)
    setup = fitting(shape, method, needs, setup, limit)
    memory = footprint(shape, method, needs, setup)
    trained = len(split.forget) * spec.epochs * setup.rows_of_item * lengths.mean
    effort = _effort(spec, benchmark, trained, spec.schedule(len(split.forget)).steps)
    hours = effort.hours(shape, setup, memory, flops, limit)
    spent = hours.total * resources.world
    return Estimate(spec, 1, resources, setup, memory, hours, spent, limit)


def estimated_peak(spec: RunSpec, trainer: Trainer) -> int | None:
    """MiB that the run should have taken at most, from its own rows; None where nobody can say."""
    needs, method = trainer.objective.needs, trainer.objective.method
    try:
        shape, setup = _measured(spec, trainer)
    except ModelError:
        return None
    if trainer.budget is not None:
        setup = replace(setup, micro_batch_size=trainer.budget.rows)
    return footprint(shape, method, needs, setup).to_json()["peak"]


def budget_of(spec: RunSpec, trainer: Trainer, limit: int | None) -> Budget | None:
    """What fits `limit` bytes at a time by the estimate; None where a whole step does.

    Nor is there a budget where the configuration states the rows, or the shape is not known.
    """
    if limit is None or spec.training.micro_batch_size is not None:
        return None
    needs, method = trainer.objective.needs, trainer.objective.method
    try:
        shape, setup = _measured(spec, trainer)
    except ModelError:
        return None
    found = fitting(shape, method, needs, setup, limit)
    if found.micro_batch_size is None:
        return None
    packed = trainer.batches.reader.packs(trainer.model, trainer.rows.forget)
    return Budget(found.items, found.tokens if packed else None)


def _measured(spec: RunSpec, trainer: Trainer) -> tuple[Shape, Setup]:
    """Shape and set-up of a run that has begun, from its own rows and processes."""
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
    judged_in = precision_on(kind, spec.model.dtype, spec.evaluation.precision)
    return Setup(
        batch_size=spec.training.batch_size,
        micro_batch_size=spec.training.micro_batch_size,
        rows_of_item=rows_of_item(needs),
        lengths=lengths,
        autocast=spec.training.precision == "bf16",
        checkpointing=spec.model.gradient_checkpointing,
        optimizer=spec.training.optimizer,
        resources=resources,
        on_gpu=on_gpu,
        evaluated_in_bf16="bfloat16" in judged_in,
    )


def _shape(config: Any, settings: ModelSettings, method: Method, setup: Setup) -> Shape:
    width = -(-setup.lengths.longest // _GRID) * _GRID
    return shape_of(config, settings, method.trains, autocast=setup.autocast, width=width)


def _tokens(question: Question, most: int) -> tuple[int, int]:
    """Tokens of a training row and of its answer, from the text's length."""
    asked, answer = (_count(text) for text in (question.question, question.answer))
    return min(asked + answer + TEMPLATE, most), answer


def _count(text: str) -> int:
    return -(-len(text) // CHARACTERS)


def _effort(spec: RunSpec, benchmark: Benchmark, trained: float, steps: int) -> Effort:
    """What a run of so many trained tokens and steps does, its evaluations included.

    Each question is read once, and with it each of its answers.
    """
    from unlearnbench.evaluation.profiles import profile_of
    from unlearnbench.evaluation.sets import evaluation_sets

    profile = profile_of(spec.evaluation)
    sets = evaluation_sets(benchmark, spec.forget_fraction, profile)
    questions = [one for questions in sets.values() for one in questions]
    prompt = fmean(_count(one.question) + TEMPLATE for one in questions)
    answer = fmean(_count(one.answer) for one in questions)
    limit = profile.max_new_tokens or max(profile.max_length - round(prompt), 1)
    scored = sum(_count(text) for one in questions for text in one.scored_answers)
    decoded = (answer + limit) / 2
    return Effort(
        trained=trained,
        steps=steps,
        evaluations=len(spec.evaluate_at),
        scored=scored + len(questions) * prompt,
        answers=len(questions),
        decoded=decoded,
        limit=limit,
        text=prompt + limit,
    )
