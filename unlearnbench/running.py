"""One run, from its spec to its record.

Nothing here knows of Ray or MLflow: a sweep hands these functions to its workers, and
`unlearnbench run` calls them in its own process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

from unlearnbench.device import cuda_variables, deterministic, use_device
from unlearnbench.group import leads, of_leader
from unlearnbench.judged import WrappedRun
from unlearnbench.method import Wrapper
from unlearnbench.models.loading import quiet_transformers
from unlearnbench.notices import taken
from unlearnbench.plan import RunSpec
from unlearnbench.preflight import check_run
from unlearnbench.records import EpochResult, Record, read_record
from unlearnbench.registry import method_from_spec
from unlearnbench.settings import SweepConfig
from unlearnbench.stopping import caught
from unlearnbench.tasks import execute_task, preparation_tasks
from unlearnbench.trained import TrainedRun
from unlearnbench.workspace import workspace


def run_epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    """Train and evaluate; yields after each evaluated epoch and writes the record at the end.

    An interrupted run goes on after its last checkpoint, with the same numbers; the results of
    epochs that it has to train again are those that it stored.
    """
    use_device(config.resources_of(spec.model.name))
    quiet_transformers()
    repeats = config.training_of(spec.method.name).deterministic
    with closing(_epochs(spec, config, folder)) as results:
        while True:
            # Not while the run is suspended: the process may do something else by then.
            with deterministic(repeats):
                result = next(results, None)
            if result is None:
                return
            yield result


def _epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Generator[EpochResult, None, None]:
    space, method = workspace(config.model_dump_json(), folder), method_from_spec(spec.method)
    check_run(spec, config, space.benchmark)
    done = space.record(spec.id)
    if space.storage.url and of_leader(lambda: space.storage.fetch(done)):
        if leads():
            space.storage.push(done)  # it may be all that the last try could not do
        return
    space.fetch_models(spec.model.name, "full")
    if isinstance(method, Wrapper):
        yield from WrappedRun(spec, space).carry_out(method)
        return
    run = TrainedRun(spec, space, method)
    yield from run.results
    yield from run.go_on()


def run_single(
    spec: RunSpec, config: SweepConfig, folder: Path, show: Callable[[str], None]
) -> Record:
    """Prepare and carry out one run in this process, without Ray; `show` gets a line at a time."""
    with caught():
        return _carried_out(spec, config, folder, show)


def _carried_out(
    spec: RunSpec, config: SweepConfig, folder: Path, show: Callable[[str], None]
) -> Record:
    if config.resources_of(spec.model.name).gpu:
        repeats = config.training_of(spec.method.name).deterministic
        os.environ.update(cuda_variables(deterministic=repeats or config.training.deterministic))
    check_run(spec, config, workspace(config.model_dump_json(), folder).benchmark)
    for task in of_leader(lambda: preparation_tasks(config, [spec], folder)):
        if not task.done:
            show(task.label)
            execute_task(task, config, folder)
    place = folder / "records" / spec.id
    if not of_leader(place.is_dir):
        for result in run_epochs(spec, config, folder):
            _warn(show)
            utility, quality = (
                result.metrics[k] for k in ("model_utility", "log10_forget_quality")
            )
            show(f"epoch {result.epoch}: Model Utility {utility}, log10 Forget Quality {quality}")
        _warn(show)
    record = read_record(place)
    if record.ended:
        show(f"ended early: {record.ended}")
    return record


def _warn(show: Callable[[str], None]) -> None:
    """Pass on the notices so far."""
    for line in taken():
        show(f"warning: {line}")
