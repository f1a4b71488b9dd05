"""Prepare models and evaluate reference models, as tasks of Ray in the order of dependencies."""

from collections.abc import Iterator, Sequence
from typing import Any

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import TRANSIENT, UnlearnbenchError
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.code_shipping import WorkerContext
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.ray_cluster import check_ray
from unlearnbench.sweep.sweep_state import SweepState, last_failure
from unlearnbench.sweep.worker_group import (
    in_bundle,
    run_on_workers,
    worker_placement,
)

TaskResult = tuple[float, list[str]]
"""Seconds and warnings."""


def prepare(
    tasks: Sequence[PreparationTask], config: SweepConfig, pipeline: Pipeline, state: SweepState
) -> None:
    """Execute the tasks that are not done, as many at a time as runs.

    Raises: UnlearnbenchError where one fails: the runs would fail with it.
    """
    import ray

    waiting = [task for task in tasks if not task.done]
    done = {task.id for task in tasks} - {task.id for task in waiting}
    state.progress.preparing([task.label for task in waiting])
    running: dict[Any, tuple[PreparationTask, Any]] = {}
    """PreparationTask and placement group by Ray's reference."""
    while waiting or running:
        ready = [task for task in waiting if done.issuperset(task.after)]
        for task in ready[: state.time_spent.slots - len(running)]:
            reference, group = _start(task, config, pipeline, state)
            running[reference] = task, group
            waiting.remove(task)
        ended, _ = ray.wait(list(running), num_returns=1, timeout=2)
        check_ray(config)
        for reference in ended:
            task, group = running.pop(reference)
            if group is not None:
                ray.util.remove_placement_group(group)
            seconds, warnings = _result(task, reference, config)
            for line in warnings:
                state.progress.warn(line)
            state.time_spent.add("preparing", seconds)
            state.progress.prepared(task.label, seconds)
            done.add(task.id)


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


def _result(task: PreparationTask, reference: Any, config: SweepConfig) -> TaskResult:
    """The result of an ended task. Raises: UnlearnbenchError where it failed."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        result: TaskResult = ray.get(reference)
        return result
    except RayTaskError as error:
        cause = error.cause
        reason = str(cause) if isinstance(cause, UnlearnbenchError) else last_failure(str(error))[0]
    except RayError:
        check_ray(config)
        reason = "its process died: killed, or out of memory"
    raise UnlearnbenchError(
        f"{task.label}: {reason}; fix that and run the same command again: models already prepared "
        "are reused"
    )
