"""Run a sweep: plan, prepare, run, report. Every result is recorded as soon as it exists."""

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from unlearnbench.analysis.best_text import stopped_text
from unlearnbench.analysis.settings import PanelKey
from unlearnbench.analysis.start_model import Start
from unlearnbench.base.console import Console
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import TRANSIENT, UnlearnbenchError
from unlearnbench.base.signals import handle_sigterm, install_handler
from unlearnbench.config.plan import Plan
from unlearnbench.config.plan_file import PLAN_FILE
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.resources import Resources
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search import Scheduler
from unlearnbench.report.sweep_tracker import FILES, SweepTracker
from unlearnbench.results.remote_copies import storage_of
from unlearnbench.results.repeated_runs import repeated_runs, repetition_lines
from unlearnbench.results.sweep_folder import (
    check_owner,
    claim_folder,
    lock_folder,
    remove_leftovers,
    set_aside_damaged,
)
from unlearnbench.results.time_to_go import order_runs
from unlearnbench.sweep.code_shipping import WorkerContext
from unlearnbench.sweep.early_bases import EarlyBases, early_bases
from unlearnbench.sweep.failure_texts import reason_in
from unlearnbench.sweep.follow_up_runs import FollowUpRuns
from unlearnbench.sweep.optuna_search import Search
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.progress import LOG_FILE, Progress
from unlearnbench.sweep.ray_cluster import ray_session
from unlearnbench.sweep.sweep_state import SweepResult, SweepState
from unlearnbench.sweep.trials import run_trials
from unlearnbench.sweep.weight_download import download_weights
from unlearnbench.sweep.worker_group import (
    in_bundle,
    run_on_workers,
    worker_placement,
)

EARLY_SECONDS = 0.1
"""Seconds between two looks at the process that trains base models early."""


class _TaskResult(NamedTuple):
    """What a worker reports of a preparation."""

    seconds: float
    warnings: list[str]


class _RunningTask(NamedTuple):
    """A preparation that Ray executes."""

    task: PreparationTask
    placement: Any
    """Ray's placement group of its processes. None for a task of one process."""


def prepare(
    tasks: Sequence[PreparationTask],
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    check_starts: Callable[[], None] | None = None,
    bases: EarlyBases | None = None,
) -> None:
    """Execute the tasks that are not done, as many at a time as runs.

    A task that waits only for a base model that is being trained early begins at once. Its process
    imports meanwhile, and then waits for the lock on the base model.

    Args:
        tasks: All tasks, also those that are done.
        config: The configuration of the sweep.
        pipeline: Executes a task.
        state: The state of the sweep, which shows progress.
        check_starts: Called once all start models are evaluated. Attacks on them may still be at
            work, because they take longer than anything else here. An error that it raises ends the
            sweep.
        bases: The process that trains base models early.

    Raises:
        UnlearnbenchError: If a task fails, since the runs would fail with it.
    """
    import ray

    waiting = [task for task in tasks if not task.done]
    done = {task.id for task in tasks if task.done}
    without_attack = {task.id for task in tasks if not task.attack}
    running: dict[Any, _RunningTask] = {}  # by Ray's reference to the result
    bases = bases or EarlyBases()
    # An early process may have ended already. The user is told of its models all the same.
    early = [task for task in tasks if bases.trains(task)]
    waiting = [task for task in waiting if task not in early]
    done.difference_update(task.id for task in early)
    state.progress.preparing([task.label for task in (*early, *waiting)])
    while waiting or running or early:
        if early and bases.has_ended():
            if bases.has_succeeded:
                for task in early:
                    state.progress.prepared(task.label, bases.seconds)
                    done.add(task.id)
            else:
                waiting = early + waiting
            early = []
        if check_starts is not None and done.issuperset(without_attack):
            check_starts()
            check_starts = None
        soon = done.union(task.id for task in early)
        ready = [task for task in waiting if soon.issuperset(task.after)]
        # Attacks come last: the check waits for everything else. Of the other tasks, the longest
        # comes first, so that none is left over while all slots but one are idle.
        ready.sort(key=lambda task: (bool(task.attack), -task.rows))
        for task in ready[: state.slots - len(running)]:
            reference, running_task = _start(task, config, pipeline, state)
            running[reference] = running_task
            waiting.remove(task)
        state.tracker.open()  # while workers import
        if not running:
            time.sleep(EARLY_SECONDS)
            continue
        seconds = EARLY_SECONDS if early else 2.0
        ended, _ = ray.wait(list(running), num_returns=1, timeout=seconds)
        for reference in ended:
            ended_task = running.pop(reference)
            if ended_task.placement is not None:
                ray.util.remove_placement_group(ended_task.placement)
            result = _result(ended_task.task, reference)
            for line in result.warnings:
                state.progress.warn(line)
            state.progress.prepared(ended_task.task.label, result.seconds)
            done.add(ended_task.task.id)
            if any(task.id in ended_task.task.after for task in early):
                # A worker had to prepare the base model itself, so the early process hangs.
                bases.stop()
    if check_starts is not None:
        check_starts()


def _start(
    task: PreparationTask, config: SweepConfig, pipeline: Pipeline, state: SweepState
) -> tuple[Any, _RunningTask]:
    """Start a task with the resources and retries of a run.

    Returns:
        Ray's reference to the result, and the task.
    """
    import ray

    context = WorkerContext.capture(config, state.folder)
    resources = config.resources_of(task.model)
    needed = resources.per_process
    placement: Any = None
    # Ray accepts a list of exceptions, though its types allow only a bool.
    options: dict[str, Any] = {"retry_exceptions": list(TRANSIENT)}
    if resources.world_size > 1:
        placement = worker_placement(resources)
        # The coordinator needs no resources. It ends after one call, and its workers end with it,
        # before their placement is removed.
        options |= {"scheduling_strategy": in_bundle(placement, 0), "max_calls": 1}
        needed = {"CPU": 0.0}
    # `max_calls` has an effect only here, and none in the method `options` of a remote function.
    as_remote: Any = ray.remote(
        num_cpus=needed["CPU"],
        num_gpus=needed.get("GPU", 0),
        max_retries=config.ray.retries,
        **options,
    )
    reference = as_remote(_execute).remote(task, pipeline, context, resources)
    return reference, _RunningTask(task, placement)


def _execute(
    task: PreparationTask, pipeline: Pipeline, context: WorkerContext, resources: Resources
) -> _TaskResult:
    """Execute a task in a worker, or as the coordinator of several."""
    (seconds,) = run_on_workers(partial(_work, task, pipeline, context), resources)
    return _TaskResult(seconds, drain())


def _work(task: PreparationTask, pipeline: Pipeline, context: WorkerContext) -> Iterator[float]:
    """Execute a task in one of its processes; yield the seconds that it took."""
    config, folder = context.activate()
    yield pipeline.execute(task, config, folder)


def _result(task: PreparationTask, reference: Any) -> _TaskResult:
    """Return the result of an ended task.

    Raises:
        UnlearnbenchError: The task failed.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        result: _TaskResult = ray.get(reference)
        return result
    except RayTaskError as error:
        cause = error.cause
        reason = str(cause) if isinstance(cause, UnlearnbenchError) else reason_in(str(error))
    except RayError as error:
        reason = reason_in(str(error))
    raise UnlearnbenchError(
        f"{task.label}: {reason}; fix that and run the same command again: models already prepared "
        "are reused"
    )


def run_sweep(
    config: SweepConfig,
    console: Console | None = None,
    pipeline: Pipeline | None = None,
    *,
    force: bool = False,
) -> SweepResult:
    """Execute every run that has no record yet, then write the report.

    A failed run is tried again, unless the same error would come again, then recorded as failed;
    the other runs continue.

    Args:
        config: The configuration of the sweep.
        console: Where lines are printed. Defaults to the terminal.
        pipeline: The stages of the sweep. Defaults to those of `Pipeline`.
        force: Sweep also from start models that have not learned their rows, see `start_check`.

    Raises:
        UnlearnbenchError: If the folder belongs to another sweep or is in use, if a preparation
            fails, or if a start model has not learned its rows.
    """
    pipeline = pipeline or Pipeline.usual()
    begin = time.monotonic()
    with early_bases(config, pipeline) as bases:
        plan = pipeline.plan(config)
        check_owner(plan)
        return _run_plan(plan, console or Console(), pipeline, bases, begin, force=force)


def _run_plan(
    plan: Plan,
    console: Console,
    pipeline: Pipeline,
    bases: EarlyBases,
    begin: float,
    *,
    force: bool,
) -> SweepResult:
    """Execute the runs of a plan, then write the report; see `run_sweep`.

    Args:
        plan: The plan.
        console: Where lines are printed.
        pipeline: The stages of the sweep.
        bases: The process that trains base models early.
        begin: When the command began, by `time.monotonic`.
        force: Sweep also from start models that have not learned their rows.
    """
    config = plan.config
    with (
        handle_sigterm(),
        lock_folder(plan.folder),
        Progress(console, config.headline, unit=config.unit) as progress,
    ):
        folder = claim_folder(plan).resolve()
        progress.log_to(folder / LOG_FILE)
        for line in drain():
            progress.warn(line)
        remove_leftovers(folder)
        set_aside_damaged(folder, progress.warn)
        for line in repetition_lines(repeated_runs(plan.runs, folder, plan.references)):
            progress.warn(line)
        storage = storage_of(config, folder)
        storage.check()
        with SweepTracker(
            config.tracking, folder, config, warn=progress.warn, opens_later=True
        ) as tracker:
            state = SweepState(folder, progress, tracker, storage)
            with ExitStack() as stack:
                plan = _Execution(plan, pipeline, state, stack, bases, force=force).run()
                tracker.settle()  # the page shows where its runs are in MLflow
                with _closed_meanwhile(stack):
                    report = pipeline.report(folder)
            for line in (*drain(), *report.results.warnings):
                progress.warn(line)
            files = [file for name in FILES if (file := folder / name).is_file()]
            storage.put([folder / PLAN_FILE, *files])
            tracker.summarize(report.results)
            tracker.log_files(files, complete=not state.failed)
        seconds = time.monotonic() - begin
        progress.concluded(report.results.panels, report.results.conclusions, seconds)
    return state.result(plan.runs, report.page, report.results.panels, seconds)


@contextmanager
def _closed_meanwhile(stack: ExitStack) -> Generator[None, None, None]:
    """Close a stack in a thread while the context does something else.

    The end of Ray takes a second, in which it waits for its processes.
    """
    with ThreadPoolExecutor(1, "end of Ray") as thread:
        closing = thread.submit(stack.pop_all().close)
        yield
        closing.result()


class _Execution:
    """The runs of a sweep, in three phases: search, plan, and selected settings on other seeds.

    Ray starts before the first run, and is not started if no run is left.
    """

    def __init__(
        self,
        plan: Plan,
        pipeline: Pipeline,
        state: SweepState,
        stack: ExitStack,
        bases: EarlyBases,
        *,
        force: bool,
    ) -> None:
        self._force = force
        """Whether runs begin also from start models that have not learned their rows."""
        self._config = plan.config
        self._pipeline = pipeline
        self._state = state
        self._stack = stack
        """Closes Ray at the end."""
        self._bases = bases
        """The process that trains base models early."""
        self._follow_up = FollowUpRuns(plan, state.folder)
        self._plan = plan
        self._unfinished: Collection[str] = ("failed",)
        """Statuses of records whose runs are run again."""
        if not self._config.search.scheduler:
            # A command without a scheduler finishes the runs that an earlier one has stopped.
            self._unfinished = ("failed", "stopped")
        self._tried = {*state.failed}
        """Runs that have ended in this command, finished or not."""
        self._ended: set[str] = set()
        """Runs that have ended in this command, and the finished runs of earlier commands."""
        self._left: list[RunSpec] = []
        """Planned runs that have not ended."""
        self._has_ray = False

    def run(self) -> Plan:
        """Run all phases.

        Returns:
            The plan with all runs that results have added.
        """
        scheduler = self._config.search.scheduler
        if self._follow_up.has_search:
            # Runs that are planned already come before those that results suggest.
            batch = self._next_batch()
            self._run_batch(batch, scheduler, Search(self._follow_up, batch, self._state))
        self._run_planned(scheduler)
        if self._follow_up.ready_to_select(self._ended):
            self._follow_up.select()
            self._run_planned(None)  # the selected settings are reported on whole runs
        return self._plan

    def _run_planned(self, scheduler: Scheduler | None) -> None:
        """Run the planned runs that have not ended, those that wait for others last."""
        while batch := self._next_batch():
            self._run_batch(batch, scheduler)

    def _next_batch(self) -> list[RunSpec]:
        """Update the stored plan, and return its runs that can begin, in their order."""
        self._plan = self._follow_up.current_plan()
        finished = self._state.track_finished(self._plan, self._unfinished)
        self._ended = finished | self._tried
        claim_folder(self._plan)
        models = [model.name for model in self._config.models]
        self._left = [run for run in self._plan.runs if run.id not in self._ended]
        ready = [run for run in self._left if not run.after or run.after in self._ended]
        return order_runs(models, ready)

    def _run_batch(
        self, batch: Sequence[RunSpec], scheduler: Scheduler | None, search: Search | None = None
    ) -> None:
        """Run a batch, or the runs of a search, and prepare them if this is the first batch."""
        state = self._state
        expected = list(self._left)
        if search is not None:
            expected += search.placeholders
        if not self._has_ray:
            self._has_ray = True
            self._start_ray_and_prepare(expected)
        state.tracker.open()
        known = [(run, state.seconds[run.id]) for run in self._plan.runs if run.id in state.seconds]
        done = len(self._plan.runs) - len(self._left)
        state.progress.running(expected, done, state.slots, known, state.start_panels())
        entry_of = self._follow_up.entry_of
        run_trials(batch, self._config, self._pipeline, state, search, scheduler, entry_of)
        self._tried |= {run.id for run in batch}
        if search is not None:
            self._tried |= search.runs.keys()

    def _start_ray_and_prepare(self, expected: Sequence[RunSpec]) -> None:
        """Start Ray, then prepare and evaluate the start and retain models of all phases."""
        state = self._state
        state.slots = self._stack.enter_context(ray_session(self._config))
        install_handler()  # Ray has replaced the handler of SIGTERM
        tasks = self._pipeline.tasks(self._config, expected, state.folder)
        download_weights(self._config, tasks, Console())
        panels = {(run.model.name, run.forget_fraction) for run in expected}
        check_starts = partial(self._check_starts, panels)
        prepare(tasks, self._config, self._pipeline, state, check_starts, self._bases)
        # The evaluations of the prepared models have records now.
        state.track_finished(self._plan, self._unfinished)

    def _check_starts(self, panels: Collection[PanelKey]) -> None:
        """Stop before the first run if a start model has not learned its rows.

        All of them are evaluated by now, and all that fail are named. Their records are kept and
        tracked, so that the same command goes on from there.

        Args:
            panels: Models and splits of the runs that are to begin.

        Raises:
            UnlearnbenchError: Unless the sweep is forced to go on.
        """
        state = self._state
        state.read_references(self._plan)
        starts = [
            self._with_check(panel.start) for panel in state.start_panels() if panel.panel in panels
        ]
        for start in starts:
            if start.doubt:
                state.progress.warn(f"{start.place}: {start.doubt}")
        failed = [start for start in starts if start.stops]
        if not failed:
            return
        if self._force:
            names = "; ".join(start.place for start in failed)
            state.progress.warn(f"going on with --force, though the start model fails: {names}")
            return
        state.track_finished(self._plan, self._unfinished)
        raise UnlearnbenchError(stopped_text(failed, len(starts), state.folder))

    def _with_check(self, start: Start) -> Start:
        """Return a start model with its check, which records of earlier versions do not have."""
        if start.check is not None:
            return start
        check = self._pipeline.start_check(self._config, self._state.folder, *start.panel)
        return replace(start, check=check)
