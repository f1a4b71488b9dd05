"""Run a sweep: plan, prepare, run, report. Every result is recorded as soon as it exists."""

import time
from collections.abc import Collection, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from unlearnbench.base.console import Console
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.signals import handle_sigterm, install_handler
from unlearnbench.config.plan import Plan
from unlearnbench.config.plan_file import PLAN_FILE
from unlearnbench.config.preparation_task import PreparationTask
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
from unlearnbench.sweep.early_bases import EarlyBases, early_bases
from unlearnbench.sweep.follow_up_runs import FollowUpRuns
from unlearnbench.sweep.optuna_search import Search
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.preparation import Preparation
from unlearnbench.sweep.progress import LOG_FILE, Progress
from unlearnbench.sweep.ray_cluster import ray_session
from unlearnbench.sweep.start_checks import StartChecks
from unlearnbench.sweep.sweep_state import SweepResult, SweepState
from unlearnbench.sweep.trials import Batch, run_trials
from unlearnbench.sweep.weight_download import download_weights


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
        self, runs: Sequence[RunSpec], scheduler: Scheduler | None, search: Search | None = None
    ) -> None:
        """Run a batch, or the runs of a search, and prepare all runs if this is the first batch."""
        state = self._state
        expected = list(self._left)
        if search is not None:
            expected += search.placeholders
        if not self._has_ray:
            self._has_ray = True
            preparation = self._start_ray(expected)
        else:
            preparation = self._preparation((), ())
        preparation.advance()
        if preparation.is_over:
            state.tracker.open()
        batch = Batch(
            preparation,
            runs,
            search,
            scheduler,
            self._follow_up.entry_of,
            partial(self._show_begin, expected),
        )
        run_trials(batch, self._config, self._pipeline, state)
        self._tried |= {run.id for run in runs}
        if search is not None:
            self._tried |= search.runs.keys()

    def _show_begin(self, expected: Sequence[RunSpec]) -> None:
        """Show that the first run of a batch begins."""
        state = self._state
        known = [(run, state.seconds[run.id]) for run in self._plan.runs if run.id in state.seconds]
        done = len(self._plan.runs) - len(self._left)
        state.progress.running(expected, done, state.slots, known, state.start_panels())

    def _start_ray(self, expected: Sequence[RunSpec]) -> Preparation:
        """Start Ray, and return the tasks of all phases."""
        state = self._state
        state.slots = self._stack.enter_context(ray_session(self._config))
        install_handler()  # Ray has replaced the handler of SIGTERM
        tasks = self._pipeline.tasks(self._config, expected, state.folder)
        download_weights(self._config, tasks, Console())
        return self._preparation(tasks, expected)

    def _preparation(
        self, tasks: Sequence[PreparationTask], expected: Sequence[RunSpec]
    ) -> Preparation:
        """Return the preparation of runs."""
        checks = StartChecks(
            self._plan, self._pipeline, self._state, self._unfinished, force=self._force
        )
        return Preparation(
            tasks,
            expected,
            self._state,
            checks,
            retries=self._config.ray.retries,
            in_sequence=self._config.requests == "in-sequence",
            bases=self._bases if tasks else None,
        )
