"""What runs wait for, as tasks of Ray: each when those before it are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from unlearnbench.errors import TRANSIENT, UnlearnbenchError
from unlearnbench.ledger import Ledger, Runtime, Task, last_failure
from unlearnbench.notices import taken
from unlearnbench.settings import SweepConfig
from unlearnbench.sweep.devices import own_devices
from unlearnbench.sweep.faults import ClusterHealth, check_ray
from unlearnbench.sweep.gang import bundles, first_of, together
from unlearnbench.sweep.nodes import Luggage

Outcome = tuple[float, dict[str, float], list[str]]
"""Seconds, the devices that they were spent on, and what is to be told."""


def prepare(tasks: Sequence[Task], config: SweepConfig, runtime: Runtime, ledger: Ledger) -> None:
    """Do what is not done, as many tasks at a time as runs.

    Raises: UnlearnbenchError where one fails: the runs would fail with it.
    """
    import ray

    waiting = [task for task in tasks if not task.done]
    done = {task.id for task in tasks} - {task.id for task in waiting}
    ledger.progress.preparing([task.label for task in waiting])
    running: dict[Any, Task] = {}
    placed: dict[Any, Any] = {}
    health = ClusterHealth() if config.ray.address is not None else None
    while waiting or running:
        ready = [task for task in waiting if done.issuperset(task.after)]
        for task in ready[: ledger.spent.slots - len(running)]:
            one, group = _begin(task, config, runtime, ledger)
            running[one], placed[one] = task, group
            waiting.remove(task)
        ended, _ = ray.wait(list(running), num_returns=1, timeout=2)
        check_ray(health)
        for one in ended:
            task, group = running.pop(one), placed.pop(one)
            if group is not None:
                ray.util.remove_placement_group(group)
            seconds, devices, notices = _outcome(task, one)
            for line in notices:
                ledger.progress.warn(line)
            ledger.prepared(task, seconds, devices)
            done.add(task.id)
        ledger.under_way(running.values(), runtime)


def _begin(task: Task, config: SweepConfig, runtime: Runtime, ledger: Ledger) -> tuple[Any, Any]:
    """The task as Ray's, with the resources and the retries of a run; and where it is placed."""
    import ray

    folder = ledger.folder
    luggage, wanted = Luggage.of(config, folder), config.resources_of(task.model)
    slots, each = ledger.spent.slots, wanted.each
    group: Any = None
    # Ray takes a list of exceptions, though its types know only true and false.
    where: dict[str, Any] = {"retry_exceptions": list(TRANSIENT)}
    if wanted.world > 1:
        group = bundles(wanted)
        # The coordinator takes nothing itself. Its workers go with it, before their places do.
        where |= {"scheduling_strategy": first_of(group), "max_calls": 1}
        each = {"CPU": 0.0}

    @ray.remote(
        num_cpus=each["CPU"],
        num_gpus=each.get("GPU", 0),
        max_retries=config.ray.retries,
        **where,
    )
    def execute(task: Task) -> Outcome:
        def work() -> Iterator[tuple[float, dict[str, float]]]:
            yield runtime.execute(task, *luggage.unpack()), own_devices(wanted, slots)

        ((seconds, devices),) = together(work, wanted, folder)
        return seconds, devices, taken()

    return execute.remote(task), group


def _outcome(task: Task, reference: Any) -> Outcome:
    """What a preparation took, and its notices; a user's error where it failed."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        outcome: Outcome = ray.get(reference)
        return outcome
    except RayTaskError as error:
        cause = error.cause
        reason = str(cause) if isinstance(cause, UnlearnbenchError) else last_failure(str(error))[0]
    except RayError:
        check_ray()
        reason = "its process died: killed, or out of memory"
    raise UnlearnbenchError(
        f"{task.label}: {reason}; mend that and start the same command again: what is prepared "
        "already is kept"
    )
