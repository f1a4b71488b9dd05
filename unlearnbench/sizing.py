"""Estimates for runs: from a plan before anything is loaded, and from a trainer beside what is
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unlearnbench.data.benchmark import Benchmark, Question
from unlearnbench.errors import ModelError
from unlearnbench.execution import Resources
from unlearnbench.footprint import Effort, Footprint, Lengths, Setup, footprint, rows_of_item
from unlearnbench.method import Method, Needs
from unlearnbench.models.loading import Source
from unlearnbench.models.skeleton import Shape, config_of, shape_of
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.registry import method_from_spec
from unlearnbench.retain import Objective
from unlearnbench.settings import ModelSettings

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

    model: str
    method: str
    runs: int
    memory: Footprint
    hours: float
    """Of the longest of the runs, with its evaluations."""
    processes: int


def estimates(plan: Plan, benchmark: Benchmark, flops: float) -> tuple[list[Estimate], list[str]]:
    """An estimate for each model × method of `plan`, and what is not known, a line each.

    flops  floating-point operations a second of one process
    """
    groups: dict[tuple[str, str], list[RunSpec]] = {}
    for run in plan.runs:
        groups.setdefault((run.model.name, run.method.model_dump_json()), []).append(run)
    found: list[Estimate] = []
    unknown: dict[str, None] = {}
    for runs in groups.values():
        method = method_from_spec(runs[0].method)
        if not isinstance(method, Method):
            continue  # what trains nothing takes an evaluation
        try:
            found.append(_estimate(runs, method, plan, benchmark, flops))
        except ModelError as error:
            unknown[f"{runs[0].model.name}: {error}"] = None
    return found, list(unknown)


def _estimate(
    runs: Sequence[RunSpec], method: Method, plan: Plan, benchmark: Benchmark, flops: float
) -> Estimate:
    spec = max(runs, key=lambda r: (r.forget_fraction, len(r.evaluate_at), r.epochs))
    split = benchmark.splits[spec.forget_fraction]
    rows = [*split.forget, *split.retain]
    lengths = Lengths.of([_tokens(question, spec.training.max_length) for question in rows])
    needs = Objective(method, spec.method.retain).needs
    resources = plan.config.resources_of(spec.model.name)
    setup = _setup(spec, needs, lengths, resources, on_gpu=True)
    model = spec.model
    base = Source.named(model.base, model.revision)
    config = config_of(model, Source.named(model.fine_tuned) if model.fine_tuned else base)
    shape = _shape(config, spec.model, method, setup)
    effort = Effort(
        trained=len(split.forget) * spec.epochs * setup.rows_of_item * lengths.mean,
        evaluated=len(spec.evaluate_at) * _evaluated_tokens(benchmark, spec),
    )
    return Estimate(
        spec.model.name,
        spec.method.label,
        len(runs),
        footprint(shape, method, needs, setup),
        effort.hours(shape, setup, flops),
        resources.world,
    )


def estimated_peak(spec: RunSpec, trainer: Trainer) -> int | None:
    """MiB that the run should have taken at most, from its own rows; None where nobody can say."""
    rows, needs, method = trainer.rows, trainer.objective.needs, trainer.objective.method
    known = [*rows.forget, *rows.retain] if needs.parts != {"forget"} else rows.forget
    lengths = Lengths.of([(len(row.ids), row.scored) for row in known])
    accelerator: Any = trainer.accelerator
    parallel: Any = "fsdp" if "FSDP" in str(accelerator.distributed_type) else "ddp"
    resources = Resources(processes=accelerator.num_processes, parallel=parallel)
    on_gpu = accelerator.device.type == "cuda"
    setup = _setup(spec, needs, lengths, resources, on_gpu=on_gpu)
    model: Any = accelerator.unwrap_model(trainer.model)
    try:
        shape = _shape(model.config, spec.model, method, setup)
    except ModelError:
        return None
    return footprint(shape, method, needs, setup).to_json()["peak"]


def _setup(
    spec: RunSpec, needs: Needs, lengths: Lengths, resources: Resources, *, on_gpu: bool
) -> Setup:
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


def _evaluated_tokens(benchmark: Benchmark, spec: RunSpec) -> int:
    """Of one evaluation: each question once, each of its answers, and the one that is generated."""
    from unlearnbench.evaluation.profiles import profile_of
    from unlearnbench.evaluation.sets import evaluation_sets

    how = spec.evaluation
    profile = profile_of(how)
    sets = evaluation_sets(benchmark, spec.forget_fraction, profile)
    return sum(
        _count(one.question) + TEMPLATE + sum(map(_count, (*one.scored_answers, one.answer)))
        for questions in sets.values()
        for one in questions
    )
