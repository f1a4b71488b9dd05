"""The workers of a run or task over several processes, and their coordinator: a trial of Tune.

The coordinator computes nothing and does not join torch's process group. It therefore survives a
worker that hangs or dies in a collective: it ends all workers, reports the cause, and can start
others. Workers are actors, one for each rank, each in a bundle of the coordinator's placement
group. They stay from run to run, with their imports, their process group and their model. Ray Train
would start new workers for every run.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from unlearnbench.base.deferred_warnings import drain, warn_later
from unlearnbench.base.errors import StartOverError, UnlearnbenchError
from unlearnbench.base.signals import defer_sigterm
from unlearnbench.config.resources import Resources
from unlearnbench.sweep.failure_texts import reason_in

T = TypeVar("T")
Work = Callable[[], Iterator[Any]]
Node = dict[str, float]
"""Resources of a machine, by Ray's names."""

GRACE_SECONDS = 10.0
"""Longest wait for the cause after a worker has reported a broken connection."""


class WorkerDiedError(RuntimeError):
    """A process of a run has died."""


def run_on_workers(work: Callable[[], Iterator[T]], resources: Resources) -> Iterator[T]:
    """Run `work` in as many processes as a run has.

    With several processes the caller has to be an actor or a task without resources of its own, in
    a placement group with a bundle for each process. It may abandon work and run other work. If a
    process runs out of memory, all run `work` again, with the smaller size that was noted.

    Yields:
        The values of rank 0.

    Raises:
        WorkerDiedError: A worker died.
        Exception: The first error of any worker.
    """
    if resources.world_size == 1:
        return work()
    return _group(resources.world_size, tuple(resources.per_process.items())).run(work)


def in_bundle(group: Any, index: int) -> Any:
    """Return Ray's strategy that places a process in a bundle of a placement group.

    A worker uses the bundle of its rank. A coordinator needs no resources and uses that of rank 0.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


@lru_cache(maxsize=1)
def _group(world_size: int, resources: tuple[tuple[str, float], ...]) -> WorkerGroup:
    """Return the workers of this process, which stay as long as runs need the same resources.

    Args:
        world_size: Number of workers.
        resources: Resources of each worker, as pairs of Ray's names and amounts.
    """
    return WorkerGroup(world_size, dict(resources))


class Step(NamedTuple):
    """The progress of a worker."""

    values: list[Any]
    """The next value, or no value at the end of the work."""
    warnings: list[str]
    """Warnings since the step before."""


class _Worker:
    """A process of a run as an actor; `join`, `begin` and `step` are called on all workers."""

    def __init__(self) -> None:
        self._work: Iterator[Any] = iter(())
        self._listening: socket.socket | None = None
        # This takes seconds. Here all workers import it at the same time.
        import_module("torch.distributed")

    def place(self) -> tuple[str, str]:
        """Return Ray's id of the machine, and the machine's address."""
        import ray

        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return str(ray.get_runtime_context().get_node_id()), address

    def listen(self) -> int:
        """Open a port for the store of the process group, which rank 0 serves.

        Returns:
            The number of the port.
        """
        _, address = self.place()
        self._listening = socket.create_server((address, 0))
        return int(self._listening.getsockname()[1])

    def join(self, variables: Mapping[str, str], threads: int) -> None:
        """Join the process group.

        Args:
            variables: Environment variables of this rank, see `rank_variables`.
            threads: Number of threads that torch may use.
        """
        os.environ.update(variables)
        import torch
        from torch import distributed

        from unlearnbench.base import distributed as group

        group.use_interface(self.place()[1])
        torch.set_num_threads(threads)
        served: dict[str, Any] = {}
        if self._listening is not None:
            # The socket is our own, because torch's would listen on every address of the machine.
            served = {"is_master": True, "master_listen_fd": self._listening.detach()}
        host = variables["MASTER_ADDR"]
        port = int(variables["MASTER_PORT"])
        world_size = int(variables["WORLD_SIZE"])
        store_type: Any = distributed.TCPStore  # type: ignore[attr-defined]
        store = store_type(host, port, world_size, wait_for_workers=False, **served)
        group.join_group(store)

    def begin(self, work: Work) -> None:
        """Drop the previous work with its memory, then begin `work`."""
        self._work = iter(())  # frees the previous model before `work` loads its own
        self._work = iter(work())

    def step(self) -> Step:
        """Compute the next value."""
        return Step([*islice(self._work, 1)], drain())


class WorkerGroup:
    """The workers of one coordinator, started at the first use and after a failure."""

    def __init__(self, world_size: int, resources: Mapping[str, float]) -> None:
        """Start no worker yet.

        Args:
            world_size: Number of workers.
            resources: Resources of each worker, by Ray's names.
        """
        self._world_size = world_size
        self._resources = resources
        self._workers: list[Any] = []
        """By rank; empty before the start and after a failure."""

    def run(self, work: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Run `work` in all workers, and again if one of them runs out of memory.

        Yields:
            The values of rank 0. All workers wait until the caller asks for the next one.
        """
        smallest: int | None = None
        while True:
            try:
                yield from self._attempt(work)
            except StartOverError as error:
                if smallest is not None and error.size >= smallest:
                    # The smaller size has been lost, and another attempt would end here, too.
                    raise
                smallest = error.size
            else:
                return

    def _attempt(self, work: Work) -> Iterator[Any]:
        if not self._workers:
            self._start()
        self._call_all("begin", work)
        while True:
            first: Step = self._call_all("step")[0]
            for line in first.warnings:
                warn_later(line)
            if not first.values:
                return
            yield first.values[0]

    def _start(self) -> None:
        import ray

        group: Any = ray.util.get_current_placement_group()
        self._workers = [
            ray.remote(_Worker)
            .options(
                num_cpus=self._resources["CPU"],
                num_gpus=self._resources.get("GPU", 0),
                scheduling_strategy=in_bundle(group, rank),
            )
            .remote()
            for rank in range(self._world_size)
        ]
        places: list[tuple[str, str]] = self._call_all("place")
        (port,) = ray.get([self._workers[0].listen.remote()])
        threads = max(1, int(self._resources["CPU"]))
        joins = [
            worker.join.remote(variables, threads)
            for worker, variables in zip(self._workers, rank_variables(places, port), strict=True)
        ]
        self._results(joins)

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker, and return the results by rank."""
        return self._results(
            [getattr(worker, method).remote(*arguments) for worker in self._workers]
        )

    def _results(self, calls: Sequence[Any]) -> list[Any]:
        """Wait for a call of each worker. If one fails, end all workers and raise the cause."""
        import ray

        # SIGTERM reaches the workers as well. They first save what they have.
        with defer_sigterm():
            waiting = list(calls)
            while waiting:
                (done,), waiting = ray.wait(waiting, num_returns=1)
                if _error(done) is not None:
                    error = _cause(calls)
                    self._end()
                    raise error
            return [ray.get(call) for call in calls]

    def _end(self) -> None:
        import ray

        for worker in self._workers:
            ray.kill(worker)
        self._workers = []


def _cause(calls: Sequence[Any]) -> BaseException:
    """Return the error that caused the others, of calls of which at least one has failed.

    If a worker dies, the others often report a broken connection first.
    """
    import ray

    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        ended, running = ray.wait([*calls], num_returns=len(calls), timeout=0.1)
        errors: list[BaseException] = []
        for call in ended:
            error = _error(call)
            if error is not None:
                errors.append(error)
        causes = [error for error in errors if not _is_broken_connection(error)]
        if causes or not running or time.monotonic() > deadline:
            return (causes or errors)[0]


def _error(call: Any) -> BaseException | None:
    """Return the error of a call that has ended, or None if it succeeded."""
    import ray
    from ray.exceptions import RayActorError, RayError

    try:
        ray.get(call)
    except RayActorError as error:
        return WorkerDiedError(f"one of the run's processes: {reason_in(str(error))}")
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, UnlearnbenchError):
            cause.__cause__ = error  # it has the worker's traceback
            return cause
        return error
    return None


def _is_broken_connection(error: BaseException) -> bool:
    """Whether the error only shows that another process is gone."""
    cause = getattr(error, "cause", error)
    return type(cause).__name__.startswith("Dist") or "gloo" in str(cause).lower()


def rank_variables(places: Sequence[tuple[str, str]], port: int) -> list[dict[str, str]]:
    """Return the environment variables of each rank, by torchrun's names.

    Args:
        places: Machine and address of each rank.
        port: The port at which rank 0 serves the store.
    """
    nodes = [node for node, _ in places]
    _, main_address = places[0]
    return [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(nodes[:rank].count(node)),
            "WORLD_SIZE": str(len(nodes)),
            "LOCAL_WORLD_SIZE": str(nodes.count(node)),
            "MASTER_ADDR": main_address,
            "MASTER_PORT": str(port),
        }
        for rank, node in enumerate(nodes)
    ]


def alive() -> list[dict[str, Any]]:
    """Return the cluster's live machines as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def processes_that_fit(node: Node, resources: Resources) -> int:
    """Return how many processes of a run fit onto one machine."""
    # The small addend keeps 0.3 / 0.1, which is slightly less than 3, from being rounded down to 2.
    return min(
        int(node.get(name, 0.0) / need + 1e-9) for name, need in resources.per_process.items()
    )


def strategy(nodes: Sequence[Node], resources: Resources) -> str:
    """Return Ray's placement strategy for the processes of one run.

    They share a machine if one has room for all of them, because to gather weights over a network
    takes longer than to compute.
    """
    largest = max((processes_that_fit(node, resources) for node in nodes), default=0)
    return "STRICT_PACK" if resources.world_size <= largest else "PACK"


def runs_that_fit(nodes: Sequence[Node], resources: Resources) -> int:
    """Return how many runs fit onto the machines at the same time."""
    processes_by_node = [processes_that_fit(node, resources) for node in nodes]
    if strategy(nodes, resources) == "STRICT_PACK":
        return sum(processes // resources.world_size for processes in processes_by_node)
    return sum(processes_by_node) // resources.world_size
