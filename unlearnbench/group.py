"""The processes that carry out one run together, as torchrun or `sweep.gang` starts them.

All of them run the same code. What only one may do (write, decide by what is on disk) is done by
the leader, the process of rank 0; without a group every process is a leader. Functions that say so
are collective: each process of the group has to call them, in the same order.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar, cast

import torch
from torch import distributed

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = timedelta(hours=6)
"""Longest wait for another process over gloo, where waiting is legitimate: the leader computes the
references of all rows, or waits while another sweep fine-tunes the model that it needs."""
NCCL_PATIENCE = timedelta(hours=1)
"""Longest wait on the GPUs, whose collectives lie within a step or an evaluation: processes drift
apart by minutes there. One that died is noticed at once, by whatever started it."""


def join(store: Any = None) -> None:
    """Join the group that the environment names, if it names one and this is not done already.

    store  that of the group, for the process that serves it
    """
    if distributed.is_initialized() or not all(name in os.environ for name in VARIABLES):
        return
    size = int(os.environ["WORLD_SIZE"])
    if size == 1:
        return
    backend = "gloo"
    if torch.cuda.is_available():
        # Objects, and what is read from them, go over gloo and take no memory of the GPU.
        backend = "cpu:gloo,cuda:nccl"
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local % torch.cuda.device_count())
    place: dict[str, Any] = {}
    if store is not None:
        place = {"store": store, "rank": int(os.environ["RANK"]), "world_size": size}
    distributed.init_process_group(backend, timeout=PATIENCE, **place)
    if "nccl" in backend:
        whole = cast("Any", distributed.group.WORLD)
        whole._get_backend(torch.device("cuda"))._set_default_timeout(NCCL_PATIENCE)


def use_interface(address: str) -> None:
    """Let gloo and NCCL connect through the interface that has `address`, unless one is chosen.

    By themselves they take what the machine's name resolves to, often a loopback address, which no
    other machine reaches.
    """
    psutil: Any = import_module("psutil")
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address == address for known in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # else names that begin so
            return


def leave() -> None:
    """Leave the group, where there is one; the process is at its end."""
    if distributed.is_initialized():
        wait()  # the first to go takes the store with it
        gc.collect()  # what holds the group keeps its threads beyond the interpreter's end
        distributed.destroy_process_group()


def world() -> int:
    """How many processes share the work."""
    grouped = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if grouped else 1


def rank() -> int:
    """The number of this process among them, from 0."""
    return distributed.get_rank() if world() > 1 else 0


def leads() -> bool:
    """Whether this process is the one that writes and decides."""
    return rank() == 0


def wait() -> None:
    """Go on when all processes are here; collective."""
    if world() > 1:
        distributed.barrier()


def of_leader(find: Callable[[], T]) -> T:
    """What `find` returns in the leader; collective."""
    if world() == 1:
        return find()
    box: list[Any] = [find() if leads() else None]
    distributed.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found


def of_all(value: T) -> list[T]:
    """The `value` of every process, by rank; collective."""
    found: list[Any] = [None] * world()
    if len(found) == 1:
        return [value]
    distributed.all_gather_object(found, value)
    return found


@contextmanager
def leader_first() -> Generator[None, None, None]:
    """The leader does what is inside, then the others, who find on disk what it has left there.

    Collective; what is inside must not be.
    """
    if not leads():
        wait()
    yield
    if leads():
        wait()
