"""What the driver of a sweep and the process of a trial send each other.

The driver sends the work as the parameters of the trial: `{"run": …}`, `{"task": …}` for a task of
the preparation, or `PAUSE`. The process answers with results of Tune: one for each evaluated epoch
of a run, one for a task. Both contain pydantic models and dataclasses as JSON text.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.results.records import EpochResult
from unlearnbench.sweep.code_shipping import WorkerContext
from unlearnbench.sweep.gpu_sharing import GpuPlace
from unlearnbench.sweep.pipeline import Pipeline

PAUSE: Mapping[str, Any] = {"pause": True}
"""Parameters of a trial without work. It keeps its process until there is work for it."""


def parameters(run: RunSpec, place: GpuPlace | None = None) -> dict[str, Any]:
    """Write a run as the parameters of a trial.

    They contain the whole spec, because the process of the trial cannot look up a run by its id.

    Args:
        run: The run.
        place: Its place on a GPU by measurement. None: the configuration says what it needs.
    """
    return {
        "id": run.id,
        "model": run.model.name,
        "spec": run.model_dump_json(),
        "place": None if place is None else place._asdict(),
    }


def place_of(parameters: Mapping[str, Any]) -> GpuPlace | None:
    """Read the place that the function `parameters` has written."""
    place = parameters.get("place")
    return None if place is None else GpuPlace(**place)


def run_of(parameters: Mapping[str, Any]) -> RunSpec:
    """Read the run that the function `parameters` has written."""
    return RunSpec.model_validate_json(parameters["spec"])


def task_parameters(task: PreparationTask) -> dict[str, Any]:
    """Write a task as the parameters of a trial."""
    return {"id": task.id, "model": task.model, "task": json.dumps(asdict(task))}


def task_of(parameters: Mapping[str, Any]) -> PreparationTask:
    """Read the task that the function `task_parameters` has written."""
    fields = json.loads(parameters["task"])
    return PreparationTask(**fields | {"after": tuple(fields["after"])})


def task_seconds(
    pipeline: Pipeline, task: PreparationTask, context: WorkerContext
) -> Iterator[float]:
    """Execute a task in one of its processes; yield the seconds that it took."""
    config, folder = context.activate()
    yield pipeline.execute(task, config, folder)


def epoch_results(
    pipeline: Pipeline, run: RunSpec, context: WorkerContext
) -> Iterator[dict[str, Any]]:
    """Execute a run in one of its processes.

    Yields:
        Tune's result of each evaluated epoch. A run by steps has the number of the step as `epoch`.
    """
    config, folder = context.activate()
    for result in pipeline.run_epochs(run, config, folder):
        yield {"epoch": result.epoch, "report": encode_report(result), "done": False}


def encode_report(result: EpochResult) -> str:
    """Encode an epoch's result as JSON text.

    Tune keeps statistics of every number in a result for as long as the sweep lasts, which are a
    hundred kilobytes for a run of forty numbers. Of a text it keeps none.
    """
    return json.dumps(vars(result))


def decode_report(text: str) -> EpochResult:
    """Decode the text of `encode_report`."""
    return EpochResult(**json.loads(text))
