"""Run a sweep: plan, prepare, run, report. Every result is recorded as soon as it exists."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from unlearnbench.analysis.best_settings import PanelKey, Start
from unlearnbench.analysis.best_text import stopped_text
from unlearnbench.base.console import Console
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import TRANSIENT, UnlearnbenchError
from unlearnbench.base.signals import handle_sigterm, install_handler
from unlearnbench.config.plan import PLAN_FILE, Plan, PreparationTask, RunSpec
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

TaskResult = tuple[float, list[str]]
"""Seconds and warnings."""


def prepare(
    tasks: Sequence[PreparationTask],
    config: SweepConfig,
    pipeline: Pipeline,
    state: SweepState,
    check_starts: Callable[[], None] | None = None,
) -> None:
    """Execute the tasks that are not done, as many at a time as runs.

    Args:
        tasks: All tasks, also those that are done.
        config: Of the sweep.
        pipeline: What executes a task.
        state: Of the sweep.
        check_starts: Called once all start models are evaluated. Attacks on them may still be at
            work, because they take longer than anything else here. What it raises ends the sweep.

    Raises:
        UnlearnbenchError: If a task fails, since the runs would fail with it.
    """
    import ray

    waiting = [task for task in tasks if not task.done]
    done = {task.id for task in tasks} - {task.id for task in waiting}
    state.progress.preparing([task.label for task in waiting])
    running: dict[Any, tuple[PreparationTask, Any]] = {}
    """PreparationTask and placement group by Ray's reference."""
    plain = {task.id for task in tasks if not task.attack}
    """Everything but attacks."""
    while waiting or running:
        if check_starts is not None and done.issuperset(plain):
            check_starts()
            check_starts = None
        ready = [task for task in waiting if done.issuperset(task.after)]
        # Attacks come last: the check waits for everything else.
        ready.sort(key=lambda task: bool(task.attack))
        for task in ready[: state.slots - len(running)]:
            reference, group = _start(task, config, pipeline, state)
            running[reference] = task, group
            waiting.remove(task)
        ended, _ = ray.wait(list(running), num_returns=1, timeout=2)
        for reference in ended:
            task, group = running.pop(reference)
            if group is not None:
                ray.util.remove_placement_group(group)
            seconds, warnings = _result(task, reference)
            for line in warnings:
                state.progress.warn(line)
            state.progress.prepared(task.label, seconds)
            done.add(task.id)
    if check_starts is not None:
        check_starts()


def _start(
    task: PreparationTask, config: SweepConfig, pipeline: Pipeline, state: SweepState
) -> tuple[Any, Any]:
    """Start a task with the resources and retries of a run; returns reference and placement."""
    import ray

    context = WorkerContext.capture(config, state.folder)
    resources = config.resources_of(task.model)
    each = resources.per_process
    group: Any = None
    # Ray accepts a list of exceptions, though its types allow only a bool.
    options: dict[str, Any] = {"retry_exceptions": list(TRANSIENT)}
    if resources.world_size > 1:
        group = worker_placement(resources)
        # The coordinator needs no resources. Its workers end with it, before their placement.
        options |= {"scheduling_strategy": in_bundle(group, 0), "max_calls": 1}
        each = {"CPU": 0.0}

    @ray.remote(
        num_cpus=each["CPU"],
        num_gpus=each.get("GPU", 0),
        max_retries=config.ray.retries,
        **options,
    )
    def execute(task: PreparationTask) -> TaskResult:
        def work() -> Iterator[float]:
            yield pipeline.execute(task, *context.activate())

        (seconds,) = run_on_workers(work, resources)
        return seconds, drain()

    return execute.remote(task), group


def _result(task: PreparationTask, reference: Any) -> TaskResult:
    """The result of an ended task. Raises: UnlearnbenchError where it failed."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        result: TaskResult = ray.get(reference)
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
        config: Of the sweep.
        console: Where lines are printed.
        pipeline: The stages of the sweep.
        force: Sweep also from start models that have not learned their rows, see `start_check`.

    Raises:
        UnlearnbenchError: If the folder belongs to another sweep or is in use, if a preparation
            fails, or if a start model has not learned its rows.
    """
    begin = time.monotonic()
    pipeline = pipeline or Pipeline()
    plan = pipeline.plan(config)
    check_owner(plan)
    with (
        handle_sigterm(),
        lock_folder(plan.folder),
        Progress(console or Console(), config.headline, unit=config.unit) as progress,
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
        with SweepTracker(config.tracking, folder, config, warn=progress.warn) as tracker:
            state = SweepState(folder, progress, tracker, storage)
            with ExitStack() as stack:
                plan = _Execution(plan, pipeline, state, stack, force=force).run()
            tracker.settle()  # the page shows where its runs are in MLflow
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


class _Execution:
    """The runs of a sweep while one Ray lives, in three phases; Ray starts before the first run."""

    def __init__(
        self,
        plan: Plan,
        pipeline: Pipeline,
        state: SweepState,
        stack: ExitStack,
        *,
        force: bool,
    ) -> None:
        self._force = force
        """Whether runs begin also from start models that have not learned their rows."""
        self._config, self._pipeline, self._state = plan.config, pipeline, state
        self._stack = stack
        """Closes Ray."""
        self._follow_up = FollowUpRuns(plan, state.folder)
        self._plan = plan
        # A sweep without a scheduler finishes the runs that an earlier one's scheduler stopped.
        self._unfinished = ("failed",) if self._config.search.scheduler else ("failed", "stopped")
        self._tried = {*state.failed}
        """Runs that have ended in this command, finished or not."""
        self._ended: set[str] = set()
        """These and the finished runs of earlier commands."""
        self._left: list[RunSpec] = []
        """Planned runs that have not ended."""
        self._has_ray = False

    def run(self) -> Plan:
        """Run all phases; returns the whole plan."""
        scheduler = self._config.search.scheduler
        if self._follow_up.has_search:  # what is planned, then what results suggest
            batch = self._next_batch()
            self._run_batch(batch, scheduler, Search(self._follow_up, batch, self._state))
        self._run_planned(scheduler)
        if self._follow_up.ready_to_select(self._ended):
            self._follow_up.select()
            self._run_planned(None)  # the selected settings are reported on whole runs
        return self._plan

    def _run_planned(self, scheduler: Scheduler | None) -> None:
        """Run what is planned and has not ended."""
        while batch := self._next_batch():
            self._run_batch(batch, scheduler)

    def _next_batch(self) -> list[RunSpec]:
        """Update the stored plan; returns its runs that can begin, in their order."""
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
        state, expected = self._state, [*self._left, *(search.placeholders if search else ())]
        if not self._has_ray:
            self._has_ray = True
            state.slots = self._stack.enter_context(ray_session(self._config))
            install_handler()  # Ray has replaced the handler of SIGTERM
            tasks = self._pipeline.tasks(self._config, expected, state.folder)
            download_weights(self._config, tasks, Console())
            panels = {(run.model.name, run.forget_fraction) for run in expected}
            check_starts = partial(self._check_starts, panels)
            prepare(tasks, self._config, self._pipeline, state, check_starts)
            # The prepared models have been evaluated.
            state.track_finished(self._plan, self._unfinished)
        known = [(r, state.seconds[r.id]) for r in self._plan.runs if r.id in state.seconds]
        done = len(self._plan.runs) - len(self._left)
        state.progress.running(expected, done, state.slots, known, state.start_panels())
        entry_of = self._follow_up.entry_of
        run_trials(batch, self._config, self._pipeline, state, search, scheduler, entry_of)
        self._tried |= {run.id for run in batch} | (search.runs.keys() if search else set())

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
        """Return a start model with what it knows, which records of earlier versions lack."""
        if start.check is not None:
            return start
        check = self._pipeline.start_check(self._config, self._state.folder, *start.panel)
        return replace(start, check=check)
