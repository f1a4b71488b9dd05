"""The stages that a sweep drives: plan, prerequisites, runs, report.

Ray unpickles this module in every process, also in processes that call few of the stages. Therefore
each function imports what it calls, and most processes import no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.garbage_collection import import_torch
from unlearnbench.base.gpu_share import GpuProbe
from unlearnbench.config.plan import Plan
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.results.records import EpochResult, Record

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import SplitKey
    from unlearnbench.evaluation.start_check import StartCheck
    from unlearnbench.report.report import Report


def _plan(config: SweepConfig) -> Plan:
    from unlearnbench.models.device import device_memory
    from unlearnbench.results.run_estimate import check_plan
    from unlearnbench.runs.plan_checks import check_gpus
    from unlearnbench.runs.plan_sweep import plan_sweep

    check_gpus(config)
    plan, benchmark = plan_sweep(config)
    if config.ray.address is not None:
        # Workers of a cluster check their own GPUs.
        return plan
    records = plan.folder / "records"
    left = tuple(run for run in plan.runs if not (records / run.id).is_dir())
    for warning in check_plan(replace(plan, runs=left), benchmark, device_memory()):
        warn_later(warning)
    return plan


def _missing_bases(config: SweepConfig) -> Sequence[str]:
    from unlearnbench.runs.tiny_bases import missing_bases

    return missing_bases(config)


def _no_bases(_config: SweepConfig) -> Sequence[str]:
    return ()


def _prepare_bases(config: SweepConfig, names: Sequence[str]) -> None:
    from unlearnbench.runs.tiny_bases import prepare_bases

    prepare_bases(config, names)


def _tasks(config: SweepConfig, runs: Sequence[RunSpec], folder: Path) -> Sequence[PreparationTask]:
    from unlearnbench.runs.prerequisites import preparation_tasks

    return preparation_tasks(config, runs, folder)


def _execute(task: PreparationTask, config: SweepConfig, folder: Path) -> float:
    import_torch()
    from unlearnbench.runs.prerequisites import execute_task

    return execute_task(task, config, folder)


def _start_check(
    config: SweepConfig, folder: Path, model: str, fraction: SplitKey
) -> StartCheck | None:
    from unlearnbench.runs.prerequisites import start_check

    return start_check(config, folder, model, fraction)


def _run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    import_torch()
    from unlearnbench.runs.run import run_epochs

    return run_epochs(run, config, folder)


def _gpu_probe() -> GpuProbe:
    from unlearnbench.models.gpu_probe import TorchProbe

    return TorchProbe()


def _report(folder: Path) -> Report:
    from unlearnbench.report.report import finish

    return finish(folder)


def _stopped(run: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    from unlearnbench.runs.run import stopped_record

    return stopped_record(run, config, folder)


@dataclass(frozen=True)
class Pipeline:
    """The stages as functions, which a test may replace.

    Ray ships `execute`, `run_epochs` and `gpu_probe` to its workers.

    Attributes:
        plan: Plans a sweep. Raises TrainingError if a run does not fit this machine's GPU.
        tasks: Returns the tasks that must be done before some runs.
        execute: Does a task, unless it is done. Returns the seconds of work.
        run_epochs: Yields after each evaluated epoch, and writes the record before it ends.
        report: Writes the page and the tables of a folder.
        stopped: Builds the record of a stopped run from its stored state. Returns None if there is
            no state.
        start_check: Checks that a start model knows its rows. Returns None if the start model has
            no record. What a record of an earlier version lacks is measured.
        gpu_probe: Creates a probe of the GPU in the process of a run, for `resources.gpu: auto`.
        missing_bases: Returns the names of the models whose tiny base can be trained before the
            sweep is planned. Defaults to none, so that a test trains nothing that it does not name.
        prepare_bases: Trains the tiny bases of models with these names.
    """

    plan: Callable[[SweepConfig], Plan] = _plan
    tasks: Callable[[SweepConfig, Sequence[RunSpec], Path], Sequence[PreparationTask]] = _tasks
    execute: Callable[[PreparationTask, SweepConfig, Path], float] = _execute
    run_epochs: Callable[[RunSpec, SweepConfig, Path], Iterator[EpochResult]] = _run_epochs
    report: Callable[[Path], Report] = _report
    stopped: Callable[[RunSpec, SweepConfig, Path], Record | None] = _stopped
    start_check: Callable[[SweepConfig, Path, str, SplitKey], StartCheck | None] = _start_check
    gpu_probe: Callable[[], GpuProbe] = _gpu_probe
    missing_bases: Callable[[SweepConfig], Sequence[str]] = _no_bases
    prepare_bases: Callable[[SweepConfig, Sequence[str]], None] = _prepare_bases

    @classmethod
    def usual(cls) -> Pipeline:
        """Return the stages of a user's sweep."""
        return cls(missing_bases=_missing_bases)
