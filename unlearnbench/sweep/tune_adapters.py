"""The classes that Tune calls in the process of the command: events of trials, and the next work.

A trial is a run or a task of the preparation, or it waits for work, see `sweep/worker.py`. This
module imports Ray, which takes a second. It is therefore imported only by a sweep that begins its
runs.

Tune pickles callback, searcher and scheduler so that an experiment can be resumed. No sweep resumes
an experiment of Tune, because the records on disk show what is left to do. These objects also refer
to open files, which cannot be pickled. Each is therefore pickled as an empty object of its base
class.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from unlearnbench.base.errors import no_room
from unlearnbench.base.gpu_share import GpuUse
from unlearnbench.base.signals import raise_if_stopped
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.results.records import Record
from unlearnbench.sweep.gpu_sharing import SharedQueue, Wait
from unlearnbench.sweep.optuna_search import Search
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.sweep_state import SweepState, last_failure
from unlearnbench.sweep.trial_messages import (
    PAUSE,
    decode_report,
    parameters,
    place_of,
    task_parameters,
)
from unlearnbench.sweep.work_queue import Pause, WorkQueue

# ruff: noqa: ARG002  # the signatures are Tune's, which passes all of their arguments by name


class EventCallback(tune.Callback):
    """Passes the events of trials on to the sweep's state, and records to the search."""

    def __init__(
        self,
        state: SweepState,
        config: SweepConfig,
        pipeline: Pipeline,
        runs: Mapping[str, RunSpec],
        search: Search | None,
        queue: WorkQueue,
        sharing: SharedQueue | None = None,
    ) -> None:
        """Connect the trials of a sweep to its state.

        Args:
            state: The sweep's state.
            config: The sweep's configuration.
            pipeline: Builds the record of a run that a scheduler has stopped.
            runs: All runs by id. A search adds runs later.
            search: The search that suggests runs. None if all runs are planned.
            queue: Gives the work of all trials.
            sharing: The queue of runs that share GPUs by measurement. None if no model has `gpu:
                auto`.
        """
        self._queue = queue
        self._sharing = sharing
        self._state = state
        self._config = config
        self._pipeline = pipeline
        self._runs = runs
        self._search = search
        self._last_moment: dict[str, int] = {}
        """By trial, its last epoch or step that has been reported."""
        self._has_tracker = False

    def __reduce__(self) -> tuple[Any, ...]:
        return tune.Callback, ()

    def _open_tracker(self) -> None:
        self._has_tracker = True
        self._state.tracker.open()

    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
        """Stop the sweep if SIGTERM has come. Tune calls this before it waits for events."""
        raise_if_stopped()
        # An exception that a callback raises at the end of a trial would only end the trial.
        self._queue.preparation.advance()
        if trials and not self._has_tracker:
            has_started = all(trial.status != "PENDING" for trial in trials)
            if has_started:
                self._open_tracker()  # while workers import

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Show that a run has begun."""
        if "run" in trial.config:
            self._state.progress.started(self._run(trial))

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Note an evaluated epoch, or that the run has failed for good."""
        for line in result["warnings"]:
            self._state.progress.warn(line)
        if "run" not in trial.config:
            return
        reason = last_failure(result.get("failed", "")).reason
        full_disk = no_room(reason)
        if full_disk:
            raise full_disk  # the other runs would end in the same way
        if result.get("repeated"):
            # The last step of a run brings no new result. Its last model was attacked meanwhile.
            has_succeeded = "failed" not in result and not result.get("crowded")
            if has_succeeded:
                self._state.progress.attacked(self._run(trial), result["time_this_iter_s"])
            return
        epoch = decode_report(result["report"])
        if epoch.epoch > self._last_moment.get(trial.trial_id, 0):
            # The run has got further than ever before, and so it has all of its retries again.
            self._last_moment[trial.trial_id] = epoch.epoch
            trial.max_failures = trial.num_failures + self._config.ray.retries
        self._state.epoch_ended(self._run(trial), epoch, result["time_this_iter_s"])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Record a run that has failed for good, has finished, or was stopped by the scheduler."""
        self._queue.ended(trial.trial_id)
        last_result = trial.last_result
        if "task" in trial.config:
            self._task_ended(trial.config["task"]["id"], last_result)
            return
        if "run" not in trial.config:
            return
        run = self._run(trial)
        if self._sharing is not None and last_result.get("crowded"):
            self._state.progress.crowded(run, self._sharing.repeat_alone(run.id))
            return
        failure = last_result.get("failed")
        self._leave_gpu(trial, None if failure else last_result.get("gpu_use"))
        if failure:
            self._tell_search(self._state.run_ended(run, failure))
        elif self._state.storage.fetch(self._state.folder / "records" / run.id):
            self._tell_search(self._state.run_ended(run))
        else:
            # The scheduler has stopped it between two epochs, before it has written a record.
            stopped = self._pipeline.stopped(run, self._config, self._state.folder)
            self._tell_search(self._state.run_stopped(run, stopped))

    def _task_ended(self, task_id: str, result: Mapping[str, Any]) -> None:
        self._open_tracker()
        preparation = self._queue.preparation
        reason = result.get("failed")
        if reason is None:
            preparation.ended(task_id, result["seconds"])
        else:
            preparation.failed(task_id, reason, is_transient=result["is_transient"])

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Show that a run has failed and is tried again."""
        raise_if_stopped()  # SIGTERM may have ended the run's process
        if "run" in trial.config:
            reason = last_failure(Path(trial.error_file).read_text("utf-8")).reason
            self._state.progress.retrying(self._run(trial), reason)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Record a run that has failed and has no retries left."""
        raise_if_stopped()  # SIGTERM may have ended the run's process
        self._queue.ended(trial.trial_id)
        failures = Path(trial.error_file).read_text("utf-8")
        if "task" in trial.config:
            reason = last_failure(failures).reason
            self._queue.preparation.failed(trial.config["task"]["id"], reason)
        if "run" in trial.config:
            self._leave_gpu(trial, None)
            self._tell_search(self._state.run_ended(self._run(trial), failures))

    def _leave_gpu(self, trial: Any, use: str | None) -> None:
        """Tell the queue that a run has ended.

        Args:
            trial: The run's trial.
            use: What it has used of the GPU as JSON text, if it was measured.
        """
        place = place_of(trial.config["run"])
        if self._sharing is None or place is None:
            return
        measured = None if use is None else GpuUse.read(json.loads(use))
        self._sharing.ended(trial.config["run"]["id"], place, measured)

    def _tell_search(self, record: Record) -> None:
        if self._search is not None:
            self._search.add_record(record)

    def _run(self, trial: Any) -> RunSpec:
        return self._runs[trial.config["run"]["id"]]


class QueueSearcher(Searcher):
    """Gives Tune the next work of a sweep. A search gets records from `EventCallback`."""

    def __init__(self, queue: WorkQueue, *, keeps_processes: bool) -> None:
        """Begin with the first work.

        Args:
            queue: The work.
            keeps_processes: Whether a slot without work has a trial that only waits. Tune ends the
                process of a slot without a trial, and the next one would import everything again.
        """
        super().__init__()
        self._queue = queue
        self._keeps_processes = keeps_processes

    def __reduce__(self) -> tuple[Any, ...]:
        return Searcher, ()

    def suggest(self, trial_id: str) -> Any:
        """Return the parameters of the next trial, Tune's mark of the end, or None to wait."""
        raise_if_stopped()  # Tune calls nothing else while no trial is at work
        work = self._queue.next(trial_id)
        if work is None:
            return Searcher.FINISHED
        if isinstance(work, PreparationTask):
            return {"task": task_parameters(work)}
        if isinstance(work, Pause):
            return dict(PAUSE) if self._keeps_processes else None
        return {"run": parameters(work)}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: `EventCallback` passes records to the search."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: suggestions are stored in the sweep's folder."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: Tune resumes no sweep."""


class SharedGpuSearcher(QueueSearcher):
    """Gives Tune the next run for which there is room on a GPU."""

    def __init__(self, queue: SharedQueue) -> None:
        Searcher.__init__(self)
        self._sharing = queue

    def suggest(self, trial_id: str) -> Any:
        """Return the parameters of the next trial, Tune's mark of the end, or None to wait."""
        placed = self._sharing.next()
        if placed is Wait.WAIT:
            return None
        if placed is None:
            return Searcher.FINISHED
        return {"run": parameters(placed.run, placed.place)}


class WorkScheduler(FIFOScheduler):
    """Ends a trial without work when there is some, and lets a scheduler of runs stop weak ones."""

    def __init__(self, queue: WorkQueue, of_runs: FIFOScheduler | None) -> None:
        """Begin with no trial.

        Args:
            queue: The work.
            of_runs: The scheduler of the runs. None: all runs end.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self._queue = queue
        self._of_runs: Any = FIFOScheduler() if of_runs is None else of_runs  # type: ignore[no-untyped-call]

    def __reduce__(self) -> tuple[Any, ...]:
        return FIFOScheduler, ()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Take up a run that is new to Tune."""
        if "run" in trial.config:
            self._of_runs.on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
        """Decide whether a trial goes on."""
        if "run" in trial.config:
            return str(self._of_runs.on_trial_result(tune_controller, trial, result))
        has_work = "pause" in trial.config and self._queue.has_work()
        return str(self.STOP if has_work else self.CONTINUE)

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Drop a run that Tune gives up before it has begun."""
        if "run" in trial.config:
            self._of_runs.on_trial_remove(tune_controller, trial)
