"""What `plan --memory` estimates for GPUs, and what `plan` estimates for this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from unlearnbench.base.console import Console, format_duration
from unlearnbench.results.run_estimate import (
    ModelToPrepare,
    Rates,
    estimate_plan,
    sweep_seconds,
)

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset
    from unlearnbench.config.plan import Plan
    from unlearnbench.results.run_estimate import Estimate
    from unlearnbench.runs.prepared_models import PlannedModel

DEVICE_MEMORY = 80e9
"""Bytes of a GPU if this machine has none: those of an H100."""
_PARTS_OF_PEAK = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "casts",
    "logits",
    "reference",
    "evaluation",
)
"""What a process has in memory. `peak` is less than the sum, since not all exists at one time."""


@dataclass(frozen=True)
class WallTime:
    """The estimated time of a whole sweep on a number of GPUs.

    On an H100, two runs took 1.05 and 1.4 times as long as estimated. The range allows for more.
    """

    gpus: int
    likely: float
    """In hours."""

    @property
    def low(self) -> float:
        """In hours."""
        return self.likely * 0.7

    @property
    def high(self) -> float:
        """In hours."""
        return self.likely * 1.7

    def document(self) -> dict[str, float]:
        """Return the time as JSON, in hours."""
        return {"gpus": self.gpus, "low": self.low, "likely": self.likely, "high": self.high}

    def sentence(self) -> str:
        """Return the time in words."""
        low, likely, high = (
            format_duration(3600 * hours) for hours in (self.low, self.likely, self.high)
        )
        plural = "s" if self.gpus > 1 else ""
        return (
            f"wall time on {self.gpus} GPU{plural}: about {likely}, between {low} and {high}; "
            "models to prepare, and evaluations of start and retain models, are in it"
        )


@dataclass(frozen=True)
class GpuCosts:
    """Memory and hours of the runs of a plan on GPUs."""

    estimates: Sequence[Estimate]
    """One for each kind of run."""
    unknown: Sequence[str]
    """Reasons why further runs have no estimate."""
    flops: float
    """Operations per second that are assumed for a process."""
    device_memory: int
    """Bytes of a GPU's memory."""
    wall_time: WallTime | None
    """None if a run does not fit, if there are too few GPUs for one, or without estimates."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        rows: Dataset,
        models: Iterable[PlannedModel],
        *,
        flops: float,
        device_gigabytes: float | None,
        gpus: int | None,
    ) -> GpuCosts:
        """Estimate the costs.

        Args:
            plan: With all runs, including those that a search will draw.
            rows: Of the benchmark.
            models: That are trained before the runs.
            flops: Operations per second of a process.
            device_gigabytes: Memory of a GPU in 10⁹ bytes. None means the memory of this machine's
                smallest GPU.
            gpus: For the whole sweep. None means as many as its largest run needs.
        """
        from unlearnbench.models.device import device_memory as memory_of_this_machine

        if device_gigabytes:
            device_memory = int(device_gigabytes * 1e9)
        else:
            device_memory = int(memory_of_this_machine() or DEVICE_MEMORY)
        estimates, unknown = estimate_plan(plan, rows, Rates(flops), device_memory)

        gpus_of_run = max((estimate.resources.gpus or 1 for estimate in estimates), default=1)
        sweep_gpus = math.ceil(gpus_of_run) if gpus is None else gpus
        all_fit = all(estimate.fits for estimate in estimates)
        wall_time: WallTime | None = None
        if estimates and all_fit and sweep_gpus >= gpus_of_run:
            slots = int(sweep_gpus / gpus_of_run)
            seconds = sweep_seconds(estimates, slots, models_to_train(models))
            wall_time = WallTime(sweep_gpus, seconds / 3600)
        return cls(estimates, unknown, flops, device_memory, wall_time)

    def document(self) -> dict[str, Any]:
        """Return the costs as JSON: memory in MiB, and no hours for a run that does not fit."""
        document: dict[str, Any] = {
            "kinds": [_kind_document(estimate) for estimate in self.estimates],
            "flops": self.flops,
            "device_memory_mib": round(self.device_memory / 2**20),
            "unknown": self.unknown,
        }
        if self.wall_time is not None:
            document["wall_hours"] = self.wall_time.document()
        return document

    def print(self, console: Console) -> None:
        """Print a table, what does not fit, the assumptions, and what is not known."""
        if self.estimates:
            self._print_estimates(console)
        for reason in self.unknown:
            console.paragraph(f"not known: {reason}")

    def _print_estimates(self, console: Console) -> None:
        from unlearnbench.models.device import USABLE_SHARE
        from unlearnbench.results.effort import CHARACTERS
        from unlearnbench.results.run_estimate import refusals

        _print_table(self.estimates, console)
        too_large = [estimate for estimate in self.estimates if not estimate.fits]
        total = sum(estimate.gpu_hours for estimate in self.estimates if estimate.fits)
        if total:
            console.print(f"{total:.3g} GPU hours {'of what fits' if too_large else 'in all'}")
        for line in refusals(too_large, self.device_memory):
            console.paragraph(line)
        if self.wall_time is not None:
            console.paragraph(self.wall_time.sentence())
        if not too_large:
            console.paragraph(
                f"all of it fits GPUs of {self.device_memory / 1e9:.3g} GB (--device-memory), of "
                f"which {USABLE_SHARE:.0%} can be used"
            )
        console.print()
        console.paragraph(
            f"assumed: {self.flops:g} FLOP/s of a process in bf16 (--flops; the device's × the "
            f"share of it that is reached), {CHARACTERS} characters a token, and the rates of an "
            "H100"
        )


def _kind_document(estimate: Estimate) -> dict[str, Any]:
    """Return the estimate for one kind of run as JSON."""
    # The speed of decoding depends on free memory, and a run that does not fit leaves none.
    hours = estimate.hours if estimate.fits else None
    return {
        "model": estimate.run.model.name,
        "method": estimate.run.method.label,
        "runs": estimate.runs,
        "gpus": estimate.resources.gpus,
        "processes": estimate.resources.world_size,
        "rows_at_a_time": estimate.setup.items,
        "memory_mib": estimate.memory.to_json(),
        "fits": estimate.fits,
        "hours": None if hours is None else hours.total,
        "hours_by_work": None if hours is None else asdict(hours),
        "gpu_hours": None if hours is None else estimate.gpu_hours,
    }


def _print_table(estimates: Sequence[Estimate], console: Console) -> None:
    """Print a line for each kind of run."""
    lines: list[tuple[Any, ...]] = []
    for estimate in estimates:
        mebibytes = estimate.memory.to_json()
        gibibytes = [f"{mebibytes[part] / 1024:.2f}" for part in (*_PARTS_OF_PEAK, "peak")]
        hours = (
            (f"{estimate.hours.total:.2g}", f"{estimate.gpu_hours:.2g}")
            if estimate.fits
            else ("–", "–")
        )
        lines.append(
            (
                estimate.run.model.name,
                estimate.run.method.label,
                estimate.runs,
                estimate.resources.gpus,
                estimate.setup.items,
                *gibibytes,
                *hours,
            )
        )
    columns = (
        *("model", "method", "runs", "GPUs", "rows at a time"),
        *(*_PARTS_OF_PEAK, "peak GiB"),
        *("hours a run", "GPU hours"),
    )
    title = "memory of each process in GiB, and hours of the longest run: an estimate"
    console.table(columns, lines, title, keys=2)


def models_to_train(models: Iterable[PlannedModel]) -> list[ModelToPrepare]:
    """Return the models that are not prepared yet."""
    return [
        ModelToPrepare(model.model, model.rows * model.epochs, is_awaited=model.target == "base")
        for model in models
        if not model.done
    ]


def time_here(plan: Plan, rows: Dataset, models: Sequence[PlannedModel]) -> str:
    """Estimate the time of runs on this machine's CPU from a short measurement, as a sentence.

    Args:
        plan: With the runs that have no record yet.
        rows: Of the benchmark.
        models: That are trained before the runs.
    """
    from unlearnbench.config.resources import LOCAL_RUNS

    config = plan.config
    needs_gpu = any(config.resources_of(model.name).gpus for model in config.models)
    if config.ray.address or needs_gpu:
        return "estimated time: not known for GPUs and clusters; --memory estimates hours"
    estimates, unknown = estimate_plan(plan, rows, None, None)
    if unknown:
        return f"estimated time: not known, because of {'; '.join(unknown)}"

    slots = min(config.ray.concurrent or LOCAL_RUNS, os.cpu_count() or 1)
    seconds = sweep_seconds(estimates, slots, models_to_train(models))
    minutes = max(1, round(seconds / 60))
    duration = f"{minutes} min" if minutes < 120 else format_duration(seconds)
    uncounted = _attacks_without_estimate(plan)
    without = f", without the training of {' and '.join(uncounted)}" if uncounted else ""
    return f"estimated time: about {duration} at the current load (within a factor of 2){without}"


def _attacks_without_estimate(plan: Plan) -> list[str]:
    """Return the names of attacks that train in a way of their own, whose steps nothing states."""
    from unlearnbench.attacks._training_steps import TrainingAttack
    from unlearnbench.config.entries import attack_from_spec

    names: list[str] = []
    for spec in plan.config.attacks:
        attack = attack_from_spec(spec)
        if getattr(attack, "trains", False) and not isinstance(attack, TrainingAttack):
            names.append(spec.name)
    return names
