"""The stages that a sweep drives: plan, prerequisites, runs, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from unlearnbench.config.schema import SweepConfig
from unlearnbench.plan.plan import Plan
from unlearnbench.plan.preparation_task import PreparationTask
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.runtime.deferred_warnings import warn_later


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Pipeline:
    """The stages as functions; Ray ships `execute` and `run_epochs` to its workers."""

    plan: Callable[[SweepConfig], Plan]
    tasks: Callable[[SweepConfig, Sequence[RunSpec], Path], Sequence[PreparationTask]]
    execute: Callable[[PreparationTask, SweepConfig, Path], float]
    """Does a task unless it is done; returns the seconds of work."""
    run_epochs: Callable[[RunSpec, SweepConfig, Path], Iterator[EpochResult]]
    """Yields after each evaluated epoch, and writes the record before it ends."""
    report: Callable[[Path], Path]
    """Writes page and table of a folder; returns the page."""
    steps: Callable[[PreparationTask, Path], tuple[int, int] | None] = _nothing
    """Steps done and total steps of a running task, where they are known."""
    stopped: Callable[[RunSpec, SweepConfig, Path], Record | None] = _nothing
    """The record of a run that was stopped, built from its saved state; None where it has none."""


def default_pipeline() -> Pipeline:
    """The stages of this package; each function's module is imported at its first call.

    Ray unpickles them in every process, and a coordinator of several processes needs no torch.
    """
    runs = "unlearnbench.runs"
    return Pipeline(
        plan=_checked_plan,
        tasks=partial(_call, f"{runs}.prerequisites:preparation_tasks"),
        execute=partial(_call, f"{runs}.prerequisites:execute_task"),
        run_epochs=partial(_call, f"{runs}.run:run_epochs"),
        report=partial(_call, "unlearnbench.reporting.report:write_report"),
        steps=partial(_call, f"{runs}.prerequisites:task_steps"),
        stopped=partial(_call, f"{runs}.training_run:stopped_record"),
    )


def _call(place: str, *arguments: Any) -> Any:
    return resolve_name(place)(*arguments)


def _checked_plan(config: SweepConfig) -> Plan:
    """The plan of `config`. Raises: TrainingError where a run does not fit this machine's GPU."""
    from unlearnbench.estimates.preflight import check_plan
    from unlearnbench.models.device import device_memory
    from unlearnbench.runs.plan_sweep import plan_sweep

    plan, benchmark = plan_sweep(config)
    if config.ray.address is None:  # a cluster's workers check their own GPUs
        records = plan.folder / "records"
        left = tuple(run for run in plan.runs if not (records / run.id).is_dir())
        for line in check_plan(replace(plan, runs=left), benchmark, device_memory()):
            warn_later(line)
    return plan
