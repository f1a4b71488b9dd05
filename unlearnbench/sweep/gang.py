"""One run over several processes: a leader, which is the trial or task itself, and its peers.

The peers are actors of ours in the other bundles of the leader's placement group, not a trainer of
Ray's with a controller of its own: they stay from run to run as the leader does, with all that they
have loaded. Each process goes through the same work, an iterator, and the leader's steps are
everyone's. The leader's own part is done in a thread: where a peer has failed, a collective never
ends, and someone has to be left who can say why.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.execution import Resources
from unlearnbench.sweep.placement import alive, strategy

T = TypeVar("T")
Work = Callable[[], Iterator[Any]]

LOOKED_SECONDS = 0.5
"""How often the leader looks whether its peers live."""
GRACE_SECONDS = 10.0
"""For the reason to be known, where what failed is the connection."""
EXIT_SECONDS = 3.0
"""For a broken leader to tell; afterwards its process ends, whatever hangs in it."""


class PeerError(RuntimeError):
    """A process of a run has died."""


def together(work: Callable[[], Iterator[T]], resources: Resources) -> Iterator[T]:
    """`work` in as many processes as `resources` say; yields what it yields here.

    This process has to be an actor or a task in a placement group, with a bundle a process. It may
    leave work undone and begin another. Raises what the first process that failed has raised, or
    PeerError if it died; this process ends soon after.
    """
    if resources.world == 1:
        return work()
    return _gang(resources.world, tuple(resources.each.items())).carry_out(work)


def bundles(resources: Resources) -> Any:
    """A placement group for a task that works `together`, to be removed when that is done."""
    import ray

    nodes = [node["Resources"] for node in alive()]
    return ray.util.placement_group(
        [resources.each] * resources.world, strategy=strategy(nodes, resources)
    )


def first_of(group: Any) -> Any:
    """Where the leader of such a group is placed."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)


@lru_cache(maxsize=1)
def _gang(world: int, each: tuple[tuple[str, float], ...]) -> _Gang:
    return _Gang(world, dict(each))


class _Peer:
    """A process of a run that is not the leader."""

    def node(self) -> str:
        """The machine that it is on."""
        return _node()

    def join(self, place: Mapping[str, str], threads: int) -> None:
        """Join the group of the leader."""
        _join(place, threads)

    def begin(self, work: Work) -> None:
        """Do `work` from now on, in place of what was done before."""
        self._own = iter(work())

    def step(self) -> None:
        """Go on as far as the leader does at a time."""
        next(self._own, None)


class _Gang:
    """The leader's side."""

    def __init__(self, world: int, each: Mapping[str, float]) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        threads = max(1, int(each["CPU"]))
        placed: Any = ray.util.get_current_placement_group()
        self._peers: list[Any] = [
            ray.remote(_Peer)
            .options(
                num_cpus=each["CPU"],
                num_gpus=each.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placed, placement_group_bundle_index=rank
                ),
            )
            .remote()
            for rank in range(1, world)
        ]
        import_module("torch.distributed")  # seconds, in which the peers start
        nodes = [_node(), *self._got([peer.node.remote() for peer in self._peers])]
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        listening = socket.create_server((address, 0))
        port = listening.getsockname()[1]
        places = [_place(rank, nodes, address, port) for rank in range(len(nodes))]
        joined = [
            peer.join.remote(place, threads)
            for peer, place in zip(self._peers, places[1:], strict=True)
        ]
        self._done(lambda: _join(places[0], threads, listening), joined)

    def carry_out(self, work: Callable[[], Iterator[T]]) -> Iterator[T]:
        """`work` in all processes, a step at a time."""
        begun = [peer.begin.remote(work) for peer in self._peers]
        own, end = iter(work()), object()
        while True:
            steps = [peer.step.remote() for peer in self._peers]
            result: Any = self._done(lambda: next(own, end), [*begun, *steps])
            if result is end:
                return
            begun = []
            yield result

    def _done(self, own: Callable[[], T], peers: Sequence[Any]) -> T:
        """What `own` returns, when the peers are done with theirs as well."""
        part = _Part(own)
        while not part.ended.wait(LOOKED_SECONDS) and not _failed(peers):
            pass
        if part.error is None and part.ended.is_set():
            self._got(peers)
            return part.result
        raise self._broken(part, peers)

    def _got(self, peers: Sequence[Any]) -> list[Any]:
        """What the peers return."""
        import ray
        from ray.exceptions import RayError

        try:
            return list(ray.get(list(peers)))
        except RayError:
            raise self._broken(None, peers) from None

    def _broken(self, part: _Part[Any] | None, peers: Sequence[Any]) -> BaseException:
        """The reason for a failure; nobody can go on after it."""
        import ray

        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            errors = _failed(peers) + ([part.error] if part is not None and part.error else [])
            causes = [error for error in errors if not _follows(error)]
            if causes or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        for peer in self._peers:
            ray.kill(peer)
        _gang.cache_clear()
        _end_soon()
        return (causes or errors)[0]


class _Part(Generic[T]):
    """Something done in a thread of its own."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.result: T
        # A daemon: it may hang in a collective when the process is to end.
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self.result = work()
        except BaseException as error:  # raised again by who waits for it
            self.error = error
        self.ended.set()


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _place(rank: int, nodes: Sequence[str], address: str, port: int) -> dict[str, str]:
    """What torchrun tells a process, by the names of its variables."""
    place = {
        "RANK": rank,
        "LOCAL_RANK": nodes[:rank].count(nodes[rank]),
        "WORLD_SIZE": len(nodes),
        "LOCAL_WORLD_SIZE": nodes.count(nodes[rank]),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    if address.startswith("127."):  # a sweep on this machine alone is reached from nowhere else
        (loopback, *_) = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        place |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    return {name: str(value) for name, value in place.items()}


def _join(place: Mapping[str, str], threads: int, listening: socket.socket | None = None) -> None:
    """Join the group; `listening` where it is served here."""
    os.environ.update(place)
    import torch
    from torch import distributed

    from unlearnbench import group

    torch.set_num_threads(threads)
    store: Any = distributed.TCPStore  # type: ignore[attr-defined]
    where = (place["MASTER_ADDR"], int(place["MASTER_PORT"]), int(place["WORLD_SIZE"]))
    if listening is None:
        group.join(store(*where, wait_for_workers=False))
        return
    # A socket of ours, since torch's own would listen on every address of the machine.
    served = {"is_master": True, "master_listen_fd": listening.detach()}
    group.join(store(*where, wait_for_workers=False, **served))


def _failed(peers: Sequence[Any]) -> list[BaseException]:
    """What the peers have failed of so far, if any have."""
    import ray
    from ray.exceptions import RayActorError, RayError

    ready, _ = ray.wait([*peers], num_returns=len(peers), timeout=0)
    errors: list[BaseException] = []
    for one in ready:
        try:
            ray.get(one)
        except RayActorError:
            errors.append(PeerError("another process of the run died: killed, or out of memory"))
        except RayError as error:
            cause = getattr(error, "cause", None)
            errors.append(cause if isinstance(cause, UnlearnbenchError) else error)
    return errors


def _follows(error: BaseException) -> bool:
    """Whether it says no more than that another process is gone."""
    cause = getattr(error, "cause", error)
    from torch.distributed import DistError

    return isinstance(cause, DistError) or "gloo" in str(cause).lower()


def _end_soon() -> None:
    """End this process when it has told why: its thread may hang, its group is broken."""
    timer = threading.Timer(EXIT_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
