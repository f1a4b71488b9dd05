"""A process that trains the tiny base models of a sweep while the driver plans and starts Ray.

Without it, a sweep with nothing prepared would use one core for a long time: all other models start
from the base, so there is nothing to train beside it. The process is forked from the driver before
the plan exists. It then has the driver's plug-ins, and imports its libraries while the driver
imports its own. Ray's workers begin with the start and retain models meanwhile. They import, too,
and then wait for the lock on the base model.

If the process fails or hangs, a worker gets the lock and prepares the base model, or reports the
error.
"""

import ctypes
import os
import signal
import sys
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.ray_cluster import worker_variables

_SIGNAL_AT_DEATH_OF_PARENT = 1
"""The operation PR_SET_PDEATHSIG of Linux's `prctl`."""


class EarlyBases:
    """The process, and the models whose base it trains."""

    def __init__(
        self,
        models: Sequence[str] = (),
        process: BaseProcess | None = None,
        seconds: Sequence[float] = (),
    ) -> None:
        """Take up a process that has been started.

        Args:
            models: Names of the models, in the order in which their bases are trained.
            process: The process. None: there is nothing to train early.
            seconds: Numbers in shared memory, by model: to each, the process writes how long it
                took.
        """
        self._models = list(models)
        self._process = process
        self._seconds = seconds

    def trains(self, task: PreparationTask) -> bool:
        """Whether the process does a task, or did it until it ended."""
        return task.target == "base" and task.model in self._models

    def has_ended(self) -> bool:
        """Whether the process has ended, in whatever way."""
        return self._process is None or not self._process.is_alive()

    def seconds_of(self, task: PreparationTask) -> float | None:
        """Return how long a base model took, the first one with imports; None if it is not done.

        Args:
            task: A task for which `trains` is true.
        """
        return self._seconds[self._models.index(task.model)] or None

    def stop(self) -> None:
        """End the process. What it has trained is kept up to its last checkpoint."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join()


@contextmanager
def early_bases(config: SweepConfig, pipeline: Pipeline) -> Generator[EarlyBases, None, None]:
    """Train the missing base models of a sweep in the background.

    The sweep's folder must not be locked yet. The process would inherit the lock, and might hold it
    for longer than the driver.

    Yields:
        The process. It is ended with the context.
    """
    names = _names_of_missing(config, pipeline)
    if not names:
        yield EarlyBases()
        return
    context = get_context("fork")
    seconds: Any = context.RawArray("d", len(names))
    arguments = (config, names, pipeline, os.getpid(), seconds)
    process = context.Process(target=_train, args=arguments, daemon=True)
    with warnings.catch_warnings():
        # Newer versions of Python warn of threads, of which numpy has some, and none is in use.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    bases = EarlyBases(names, process, seconds)
    try:
        yield bases
    finally:
        bases.stop()


def _names_of_missing(config: SweepConfig, pipeline: Pipeline) -> Sequence[str]:
    """Return the models whose base can be trained early. Errors are left to the plan."""
    is_local = config.ray.address is None and config.storage is None
    # A sweep with records has its models, or has no run left.
    has_begun = (config.folder / "records").is_dir()
    if not is_local or has_begun or sys.platform != "linux":
        return ()
    resources = [config.resources_of(model.name) for model in config.models]
    if any(needed.gpu or needed.world_size > 1 for needed in resources):
        return ()
    with suppress(UnlearnbenchError):
        return pipeline.missing_bases(config)
    return ()


def _train(
    config: SweepConfig, names: Sequence[str], pipeline: Pipeline, driver: int, seconds: Any
) -> None:
    """Train base models in the forked process.

    Args:
        config: The configuration.
        names: Names of the models.
        pipeline: Trains their bases.
        driver: Id of the process that has forked this one.
        seconds: Gets the seconds that each of them took.
    """
    begin = time.monotonic()
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH_OF_PARENT, signal.SIGTERM)
    if os.getppid() != driver:
        return  # it ended before the call above
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # An error is reported by the worker that meets it again, and nothing else concerns the user.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.environ.update(worker_variables(config))
    for index, name in enumerate(names):
        pipeline.prepare_bases(config, [name])
        now = time.monotonic()
        seconds[index] = now - begin
        begin = now
