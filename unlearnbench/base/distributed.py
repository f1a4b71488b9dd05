"""The process group that carries out one run, as torchrun or `sweep.worker_group` starts it.

All processes run the same code. Only the main process, which has rank 0, writes files and decides
by what is on disk. Without a group, every process is a main process. Functions that are called
*collective* have to be called by each process of the group, in the same order.
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
"""Environment variables that describe a group."""
GLOO_TIMEOUT = timedelta(hours=6)
"""Longest wait over gloo. The others may wait long for the main process, which computes the
references of all rows, or waits itself while another sweep fine-tunes the model that it needs."""
NCCL_TIMEOUT = timedelta(hours=1)
"""Longest wait on GPUs. Their collectives are inside a step or an evaluation, in which processes
drift apart by minutes. If a process dies, the launcher notices at once."""


def join_group(store: Any = None) -> None:
    """Join the group that the environment names, if there is one and it is not joined yet.

    Args:
        store: Store of the group, in the process that serves it. None to find it by the
            environment.
    """
    has_group = all(name in os.environ for name in VARIABLES)
    if distributed.is_initialized() or not has_group:
        return
    size = int(os.environ["WORLD_SIZE"])
    if size == 1:
        return
    uses_gpus = torch.cuda.is_available()
    if uses_gpus:
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    # Python objects go over gloo also on GPUs, so that they take no GPU memory.
    backend = "cpu:gloo,cuda:nccl" if uses_gpus else "gloo"
    location: dict[str, Any] = {}
    if store is not None:
        location = {"store": store, "rank": int(os.environ["RANK"]), "world_size": size}
    distributed.init_process_group(backend, timeout=GLOO_TIMEOUT, **location)
    if uses_gpus:
        group = cast("Any", distributed.group.WORLD)
        group._get_backend(torch.device("cuda"))._set_default_timeout(NCCL_TIMEOUT)


def use_interface(address: str) -> None:
    """Let gloo and NCCL connect through the network interface with an address.

    By default they take the address of the machine's name. That is often a loopback address, which
    no other machine reaches. An interface that the environment names already is kept.

    Args:
        address: Address of this machine that the others reach.
    """
    psutil: Any = import_module("psutil")
    for name, interface_addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in interface_addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            # Without "=", NCCL also takes interfaces whose names begin with this one.
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
            return


def leave_group() -> None:
    """Leave the group, if there is one, at the end of the process. Collective."""
    if distributed.is_initialized():
        # The store ends with the process that serves it, so nobody may leave early.
        barrier()
        # References to the group would keep its threads until after the interpreter's end.
        gc.collect()
        distributed.destroy_process_group()


def world_size() -> int:
    """Return the number of processes in the group; 1 without a group."""
    has_group = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if has_group else 1


def rank() -> int:
    """Return the number of this process in the group, from 0."""
    return distributed.get_rank() if world_size() > 1 else 0


def is_main_process() -> bool:
    """Whether this process writes files and decides by them."""
    return rank() == 0


def barrier() -> None:
    """Wait for all processes. Collective."""
    if world_size() > 1:
        distributed.barrier()


def broadcast_from_main(find: Callable[[], T]) -> T:
    """Return what `find` returns in the main process, in all processes. Collective."""
    if world_size() == 1:
        return find()
    values: list[Any] = [find() if is_main_process() else None]
    distributed.broadcast_object_list(values, src=0)
    found: T = values[0]
    return found


def all_gather(value: T) -> list[T]:
    """Return the values of all processes, by rank. Collective."""
    size = world_size()
    if size == 1:
        return [value]
    values: list[Any] = [None] * size
    distributed.all_gather_object(values, value)
    return values


@contextmanager
def main_process_first() -> Generator[None, None, None]:
    """Run the body in the main process first, then in the others, which find its files on disk.

    This is collective, but the body must not be, because the other processes wait during it.
    """
    if not is_main_process():
        barrier()
    yield
    if is_main_process():
        barrier()
