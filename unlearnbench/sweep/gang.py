"""One run over several processes: its workers, and a coordinator, which is the trial or task.

The coordinator computes nothing and joins no group of torch's, so that it outlives whatever hangs
or dies in a collective: it ends the workers, says why, and can start others. Workers are actors in
the bundles of its placement group, one a rank. They are not Ray Train's, which start anew for every
run: ours stay from run to run, with their imports, their group and their model.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unlearnbench.errors import StartOverError, UnlearnbenchError
from unlearnbench.execution import Resources
from unlearnbench.notices import notice, taken
from unlearnbench.stopping import Stopped, held
from unlearnbench.sweep.faults import Worker
from unlearnbench.sweep.placement import alive, strategy

T = TypeVar("T")
Work = Callable[[], Iterator[Any]]

GRACE_SECONDS = 10.0
"""Longest wait for the cause, after a worker has reported no more than a broken connection."""


class WorkerDiedError(RuntimeError):
    """A process of a run has died."""


def together(work: Callable[[], Iterator[T]], resources: Resources, folder: Path) -> Iterator[T]:
    """`work` in as many processes as `resources` say; yields what rank 0 yields.

    folder  of the sweep, where workers look for the order to stop

    With several processes the caller has to be an actor or a task in a placement group with a
    bundle for each, and its own share of the resources is nothing. It may leave work undone and
    begin another. Where memory ran out in a process, all begin `work` again, with the smaller size
    that is noted. Raises the first error of any worker, WorkerDiedError if it died.
    """
    if resources.world == 1:
        return work()
    return _group(resources.world, tuple(resources.each.items()), folder).carry_out(work)


def bundles(resources: Resources) -> Any:
    """A placement group for a task that works `together`, to be removed when that is done."""
    import ray

    nodes = [node["Resources"] for node in alive()]
    return ray.util.placement_group(
        [resources.each] * resources.world, strategy=strategy(nodes, resources)
    )


def first_of(group: Any) -> Any:
    """Place the coordinator beside rank 0 in such a group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)


@lru_cache(maxsize=1)
def _group(world: int, each: tuple[tuple[str, float], ...], folder: Path) -> WorkerGroup:
    return WorkerGroup(world, dict(each), folder)


class Step(NamedTuple):
    """How far a worker has come."""

    state: str
    """`yielded` a value, `ended`, or `stopped` by SIGTERM."""
    value: Any
    notices: list[str]


class _Worker:
    """A process of a run, as an actor; every call but the first two is collective."""

    def __init__(self, folder: Path) -> None:
        self._watch = Worker(folder)
        self._work: Iterator[Any] = iter(())
        self._listening: socket.socket | None = None
        import_module("torch.distributed")  # seconds, in which the other workers start as well

    def place(self) -> tuple[str, str]:
        """The machine, and its address."""
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return str(ray.get_runtime_context().get_node_id()), address

    def listen(self) -> int:
        """The port at which this worker, rank 0, serves the group's store."""
        _, address = self.place()
        self._listening = socket.create_server((address, 0))
        return int(self._listening.getsockname()[1])

    def join(self, variables: Mapping[str, str], threads: int) -> None:
        """Join the group that `variables` describe."""
        from unlearnbench import group

        group.use_interface(self.place()[1])
        _join(variables, threads, self._listening)

    def begin(self, work: Work) -> None:
        """Do `work` from now on; what was done before is dropped first, with its memory."""
        self._work = iter(())
        self._work = iter(work())

    def step(self) -> Step:
        """Go on to the next value."""
        try:
            with self._watch.busy():
                for value in self._work:
                    return Step("yielded", value, taken())
        except Stopped:  # an exit, which Ray would take for the actor's end
            return Step("stopped", None, taken())
        return Step("ended", None, taken())


class WorkerGroup:
    """The workers of one coordinator: started when they are needed, again after a failure."""

    def __init__(self, world: int, each: Mapping[str, float], folder: Path) -> None:
        self._world, self._each, self._folder = world, each, folder
        self._workers: list[Any] = []
        """By rank; empty before the start and after a failure."""

    def carry_out(self, work: Callable[[], Iterator[T]]) -> Iterator[T]:
        """`work` in all workers, a value at a time; begun again while a smaller size is noted."""
        smallest: int | None = None
        while True:
            try:
                yield from self._attempt(work)
            except StartOverError as error:
                if smallest is not None and error.size >= smallest:
                    raise  # the note was lost: another attempt would end here, too
                smallest = error.size
            else:
                return

    def _attempt(self, work: Work) -> Iterator[Any]:
        if not self._workers:
            self._start()
        self._all("begin", work)
        while True:
            first: Step = self._all("step")[0]
            for line in first.notices:
                notice(line)
            if first.state == "stopped":
                raise Stopped
            if first.state == "ended":
                return
            yield first.value

    def _start(self) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        placed: Any = ray.util.get_current_placement_group()
        self._workers = [
            ray.remote(_Worker)
            .options(
                num_cpus=self._each["CPU"],
                num_gpus=self._each.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placed, placement_group_bundle_index=rank
                ),
            )
            .remote(self._folder)
            for rank in range(self._world)
        ]
        places: list[tuple[str, str]] = self._all("place")
        (port,) = ray.get([self._workers[0].listen.remote()])
        threads = max(1, int(self._each["CPU"]))
        joins = [
            worker.join.remote(variables, threads)
            for worker, variables in zip(self._workers, places_of(places, port), strict=True)
        ]
        self._results(joins)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Call `method` of every worker; the results by rank."""
        return self._results([getattr(one, method).remote(*arguments) for one in self._workers])

    def _results(self, calls: Sequence[Any]) -> list[Any]:
        """The results of `calls`, one to each worker; where one fails, all workers end."""
        import ray

        with held():  # SIGTERM reaches the workers as well, and they save what they have
            waiting = list(calls)
            while waiting:
                (done,), waiting = ray.wait(waiting, num_returns=1)
                if _error(done) is not None:
                    error = _cause(calls)
                    self._end()
                    raise error
            return [ray.get(one) for one in calls]

    def _end(self) -> None:
        import ray

        for worker in self._workers:
            ray.kill(worker)
        self._workers = []


def _cause(calls: Sequence[Any]) -> BaseException:
    """The error that others follow from, out of calls of which at least one has failed."""
    import ray

    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        ended, running = ray.wait([*calls], num_returns=len(calls), timeout=0.1)
        errors = [error for one in ended if (error := _error(one)) is not None]
        causes = [error for error in errors if not _is_broken_connection(error)]
        if causes or not running or time.monotonic() > deadline:
            return (causes or errors)[0]


def _error(call: Any) -> BaseException | None:
    """What a call that has ended failed with; None where it did not."""
    import ray
    from ray.exceptions import RayActorError, RayError

    try:
        ray.get(call)
    except RayActorError:
        return WorkerDiedError("one of the run's processes died: killed, or out of memory")
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, UnlearnbenchError):
            cause.__cause__ = error  # it has the worker's traceback
            return cause
        return error
    return None


def _is_broken_connection(error: BaseException) -> bool:
    """True if the error means no more than that another process is gone."""
    cause = getattr(error, "cause", error)
    return type(cause).__name__.startswith("Dist") or "gloo" in str(cause).lower()


def places_of(places: Sequence[tuple[str, str]], port: int) -> list[dict[str, str]]:
    """The variables of each rank, by torchrun's names, from its (machine, address).

    port  at which rank 0 serves the group's store
    """
    nodes = [node for node, _ in places]
    found = [
        {
            "RANK": rank,
            "LOCAL_RANK": nodes[:rank].count(node),
            "WORLD_SIZE": len(nodes),
            "LOCAL_WORLD_SIZE": nodes.count(node),
            "MASTER_ADDR": places[0][1],
            "MASTER_PORT": port,
        }
        for rank, (node, _) in enumerate(places)
    ]
    return [{name: str(value) for name, value in one.items()} for one in found]


def _join(variables: Mapping[str, str], threads: int, listening: socket.socket | None) -> None:
    """Join the group; `listening` in rank 0, which serves its store."""
    os.environ.update(variables)
    import torch
    from torch import distributed

    from unlearnbench import group

    torch.set_num_threads(threads)
    store: Any = distributed.TCPStore  # type: ignore[attr-defined]
    names = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    host, port, size = (variables[name] for name in names)
    where = (host, int(port), int(size))
    if listening is None:
        group.join(store(*where, wait_for_workers=False))
        return
    # A socket of ours, since torch's own would listen on every address of the machine.
    served = {"is_master": True, "master_listen_fd": listening.detach()}
    group.join(store(*where, wait_for_workers=False, **served))
