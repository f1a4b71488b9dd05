"""Carry out one run, from its spec to its record, without Ray or MLflow.

The workers of a sweep call these functions, and `unlearnbench run` in its own process.
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

from unlearnbench.api.inference_method import Wrapper
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.distributed import broadcast_from_main, is_main_process
from unlearnbench.base.errors import ModelError
from unlearnbench.base.signals import handle_sigterm
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.device import cuda_variables, deterministic, use_device
from unlearnbench.models.loading import local_contents, quiet_transformers
from unlearnbench.results.records import EpochResult, Record, read_record
from unlearnbench.results.run_estimate import check_run
from unlearnbench.runs.evaluated_run import InferenceRun
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.training_run import TrainingRun
from unlearnbench.runs.workspace import workspace


def run_epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    """Train and evaluate; yields after each evaluated epoch and writes the record at the end.

    An interrupted run continues after its last checkpoint, with the same numbers. For epochs that
    it trains again, its stored results are yielded.
    """
    use_device(config.resources_of(spec.model.name))
    quiet_transformers()
    repeats = config.training_of(spec.method.name).deterministic
    with closing(_epochs(spec, config, folder)) as results:
        while True:
            # Not while the generator is suspended, when the process may do something else.
            with deterministic(repeats):
                result = next(results, None)
            if result is None:
                return
            yield result


def _epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Generator[EpochResult, None, None]:
    space, method = workspace(config, folder), method_from_spec(spec.method)
    check_run(spec, config, space.benchmark)
    if spec.content and local_contents(spec.model) != spec.content:
        raise ModelError(
            f"models.{spec.model.name}: a folder or log has changed since the runs were planned; "
            "start the same command again"
        )
    done = space.record(spec.id)
    if space.storage.url and broadcast_from_main(lambda: space.storage.fetch(done)):
        if is_main_process():
            space.storage.push(done)  # the last attempt may have failed there
        return
    space.fetch_models(spec.model.name, "full")
    if isinstance(method, Wrapper):
        yield from InferenceRun(spec, space).run(method)
        return
    run = TrainingRun(spec, space, method)
    yield from run.state.results
    yield from run.run()


@handle_sigterm()
def run_single(
    spec: RunSpec, config: SweepConfig, folder: Path, show: Callable[[str], None]
) -> Record:
    """Prepare and carry out one run in this process; `show` gets a line at a time."""

    def show_warnings() -> None:
        for line in drain():
            show(f"warning: {line}")

    if config.resources_of(spec.model.name).gpu:
        repeats = config.training_of(spec.method.name).deterministic
        os.environ.update(cuda_variables(deterministic=repeats or config.training.deterministic))
    tasks = broadcast_from_main(lambda: preparation_tasks(config, [spec], folder))
    check_run(spec, config, workspace(config, folder).benchmark)
    for task in tasks:
        if not task.done:
            show(task.label)
            execute_task(task, config, folder)
    path, headline = folder / "records" / spec.id, config.data.headline
    if not broadcast_from_main(path.is_dir):
        for result in run_epochs(spec, config, folder):
            show_warnings()
            numbers = ", ".join(
                f"{item.plain_label} {item.text(result.metrics.get(item.column))}"
                for item in (headline.kept, headline.forgotten)
            )
            show(f"epoch {result.epoch}: {numbers}")
        show_warnings()
    record = read_record(path)
    if record.ended:
        show(f"ended early: {record.ended}")
    return record
