"""The process of a trial, in which a sweep's runs and the tasks of its preparation are executed.

A trial is a run or a task of the preparation, or it waits for work. A step of a run is its way to
its next evaluation: an epoch, or several optimiser steps. A task has one step.

Each process of a sweep imports this module, so it imports nothing that only the process of the
command needs.
"""

import gc
import json
import time
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

from ray import tune

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import TRANSIENT, UnlearnbenchError, is_deterministic, no_room
from unlearnbench.base.gpu_share import WHOLE, GpuProbe, gpu_share, set_gpu_share
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.code_shipping import WorkerContext
from unlearnbench.sweep.failure_texts import reason_in
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.trial_messages import (
    epoch_results,
    place_of,
    run_of,
    task_of,
    task_seconds,
)
from unlearnbench.sweep.worker_group import run_on_workers

PAUSE_SECONDS = (0.1, 0.5)
"""Seconds of a step of a trial without work: of the first ones, and of those after a long wait."""


class Worker(tune.Trainable):
    """A process of a sweep, which executes runs and tasks of the preparation, one after the other.

    Between them the process keeps only the models that it has loaded.
    """

    def setup(self, config: dict[str, Any], **for_all: Any) -> None:
        """Begin with the first trial of this process.

        Args:
            config: Parameters of the trial, see `trial_messages`.
            for_all: Values that are the same for all trials: `pipeline` with the stages of the
                sweep, its configuration `sweep`, and `context`, which sets a process up.
        """
        self._pipeline: Pipeline = for_all["pipeline"]
        self._sweep: SweepConfig = for_all["sweep"]
        self._context: WorkerContext = for_all["context"]
        # Each run collects garbage before it begins. The modules that are imported by now stay for
        # ever, and the collector need not look at them.
        gc.freeze()
        self._probe: GpuProbe | None = None
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Prepare for the next trial.

        Returns:
            True: the process can be used for it.
        """
        # `step` reads the spec, because an error that is raised here would end the process.
        self._work: dict[str, Any] = new_config
        # If the run before was stopped, this closes its generator, which frees its model.
        self._remaining: Iterator[dict[str, Any]] | None = None
        self._latest: dict[str, Any] = {}
        self._waited = 0
        """Number of steps without work."""
        if self._probe is not None:  # the run before was stopped, or has failed
            self._probe.finish()
            self._probe = None
        place = place_of(new_config["run"]) if "run" in new_config else None
        set_gpu_share(WHOLE if place is None else place.share)
        return True

    def step(self) -> dict[str, Any]:
        """Do a part of the work.

        Returns:
            A result of Tune with `warnings`. See `_run_to_evaluation` for a run, and `_execute` for
            a task of the preparation.
        """
        if "run" in self._work:
            result = self._run_to_evaluation()
        elif "task" in self._work:
            result = self._execute()
        else:
            shortest, longest = PAUSE_SECONDS
            self._waited += 1
            time.sleep(min(longest, shortest + 0.01 * self._waited))
            result = {"done": False}
        return {**result, "warnings": drain()}

    def _execute(self) -> dict[str, Any]:
        """Execute a task of the preparation.

        Returns:
            `seconds` that it took; or `failed` with the reason, and whether it `is_transient`.
        """
        try:
            task = task_of(self._work["task"])
            work = partial(task_seconds, self._pipeline, task, self._context)
            (seconds,) = run_on_workers(work, self._sweep.resources_of(task.model))
        except Exception as error:  # any library may raise any exception
            reason = str(error)
            if not isinstance(error, UnlearnbenchError):
                reason = reason_in("".join(traceback.format_exception(error)))
            return {"failed": reason, "is_transient": isinstance(error, TRANSIENT), "done": True}
        return {"seconds": seconds, "done": True}

    def _run_to_evaluation(self) -> dict[str, Any]:
        """Train and evaluate up to the next evaluation.

        Returns:
            The result of `epoch_results`. A result with `repeated` only ends the trial, and has the
            last report once more. `failed` is the traceback of an error for which Tune need not try
            the run again. `crowded` says that memory ran out because other runs are on the same
            GPU. `gpu_use` is what a measured run has used of the GPU.
        """
        try:
            return self._next_result(self._work["run"])
        except Exception as error:  # any method or library may raise any exception
            end = {"done": True, "repeated": True}
            if gpu_share() < WHOLE and _is_caused_by_memory(error):
                self._remaining = iter(())  # frees the run's memory, and it is repeated alone
                return {**self._latest, **end, "crowded": True}
            is_final = is_deterministic(error) or no_room(str(error)) is not None
            if not is_final:
                raise  # Tune tries the run again
            text = "".join(traceback.format_exception(error))
            return {**self._latest, **end, "failed": text}

    def _next_result(self, run: dict[str, Any]) -> dict[str, Any]:
        if self._remaining is None:
            place = place_of(run)
            if place is not None and place.is_measured:
                self._probe = self._pipeline.gpu_probe()
                self._probe.start()
            work = partial(epoch_results, self._pipeline, run_of(run), self._context)
            self._remaining = run_on_workers(work, self._sweep.resources_of(run["model"]))
        result = next(self._remaining, None)
        if result is None:
            end = {**self._latest, "done": True, "repeated": True}
            if self._probe is not None:
                end["gpu_use"] = json.dumps(self._probe.finish()._asdict())
                self._probe = None
            return end
        self._latest = result
        return result


def _is_caused_by_memory(error: BaseException) -> bool:
    """Whether memory ran out. A method may wrap what torch raises in an error of its own."""
    from unlearnbench.base.out_of_memory import is_out_of_memory  # it imports torch

    cause: BaseException | None = error
    while cause is not None:
        if is_out_of_memory(cause):
            return True
        cause = cause.__cause__
    return False
