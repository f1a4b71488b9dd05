"""The process group that carries out one run, as torchrun or `sweep.worker_group` starts it.

All processes run the same code. The main process, of rank 0, alone writes files and decides by
what is on disk; without a group every process is a main process. Collective functions have to be
called by each process of the group, in the same order.
"""

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
GLOO_TIMEOUT = timedelta(hours=6)
"""Longest wait over gloo. It may be long: the main process computes the references of all rows, or
waits while another sweep fine-tunes the model that it needs."""
NCCL_TIMEOUT = timedelta(hours=1)
"""Longest wait on GPUs, whose collectives are inside a step or an evaluation, where processes drift
apart by minutes. A process that died is noticed at once, by the launcher."""


def join_group(store: Any = None) -> None:
    """Join the group that the environment names, if there is one and it is not joined yet.

    store  the group's store, in the process that serves it
    """
    if distributed.is_initialized() or not all(name in os.environ for name in VARIABLES):
        return
    size = int(os.environ["WORLD_SIZE"])
    if size == 1:
        return
    backend = "gloo"
    if torch.cuda.is_available():
        # Objects go over gloo and take no GPU memory.
        backend = "cpu:gloo,cuda:nccl"
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local % torch.cuda.device_count())
    location: dict[str, Any] = {}
    if store is not None:
        location = {"store": store, "rank": int(os.environ["RANK"]), "world_size": size}
    distributed.init_process_group(backend, timeout=GLOO_TIMEOUT, **location)
    if "nccl" in backend:
        whole = cast("Any", distributed.group.WORLD)
        whole._get_backend(torch.device("cuda"))._set_default_timeout(NCCL_TIMEOUT)


def use_interface(address: str) -> None:
    """Let gloo and NCCL connect through the interface that has `address`, unless one is chosen.

    By default they take the address of the machine's name, often a loopback address, which no other
    machine reaches.
    """
    psutil: Any = import_module("psutil")
    for name, addresses in psutil.net_if_addrs().items():
        if any(item.address == address for item in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # else names that begin so
            return


def leave_group() -> None:
    """Leave the group, if there is one, at the end of the process."""
    if distributed.is_initialized():
        barrier()  # the first one that leaves ends the store
        gc.collect()  # references to the group keep its threads beyond the interpreter's end
        distributed.destroy_process_group()


def world_size() -> int:
    """Number of processes in the group; 1 without one."""
    grouped = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if grouped else 1


def rank() -> int:
    """Number of this process in the group, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def is_main_process() -> bool:
    """Return whether this process writes and decides."""
    return rank() == 0


def barrier() -> None:
    """Wait for all processes; collective."""
    if world_size() > 1:
        distributed.barrier()


def broadcast_from_main(find: Callable[[], T]) -> T:
    """Return what `find` returns in the main process; collective."""
    if world_size() == 1:
        return find()
    box: list[Any] = [find() if is_main_process() else None]
    distributed.broadcast_object_list(box, src=0)
    result: T = box[0]
    return result


def all_gather(value: T) -> list[T]:
    """Return the `value` of every process, by rank; collective."""
    result: list[Any] = [None] * world_size()
    if len(result) == 1:
        return [value]
    distributed.all_gather_object(result, value)
    return result


@contextmanager
def main_process_first() -> Generator[None, None, None]:
    """Run the body in the main process first, then in the others, which find its files on disk.

    Collective; the body must not be.
    """
    if not is_main_process():
        barrier()
    yield
    if is_main_process():
        barrier()
