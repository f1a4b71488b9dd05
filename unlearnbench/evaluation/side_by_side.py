"""Two threads that share an evaluation's work on a CPU, each with its part of torch's threads.

torch divides one operation at a time among its threads. They wait for each other after each
operation, and all but one of them wait while Python prepares the next one. If other programs use
the machine as well, a thread that is not running keeps all others waiting. So a CPU computes two
batches at a time, each on its part of the threads, and no thread waits for the other.

A forward pass leaves traces in the modules of a model, such as hooks. So each of the two threads
has modules of its own (`Predictor.with_own_modules`), which share the weights.

Each item gets the same result as in a single thread, because nothing that is computed depends on
which of the threads computes it.
"""

import contextvars
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from unlearnbench.base.distributed import world_size
from unlearnbench.evaluation.predictor import Predictor

_COUNT = 2
"""Threads that work side by side. Each of them needs memory for a batch."""

Item = TypeVar("Item")
T = TypeVar("T")


def predictors_side_by_side(predictor: Predictor) -> tuple[Predictor, ...]:
    """Return the predictors of the threads that share the work of `predictor`, itself first.

    It is alone on a GPU, in a group of processes, if torch has a single thread, and if its model
    cannot be copied.

    Args:
        predictor: The model, ready.
    """
    is_on_cpu = predictor.device.type == "cpu"
    can_share = is_on_cpu and world_size() == 1 and torch.get_num_threads() >= _COUNT
    other = predictor.with_own_modules if can_share else None
    return (predictor,) if other is None else (predictor, other)


def map_side_by_side(
    predictors: Sequence[Predictor], work: Callable[[Predictor, Item], T], items: Sequence[Item]
) -> list[T]:
    """Call `work` on every item, with one thread for each predictor.

    Args:
        predictors: The predictor of this thread, ready, and those of further threads.
        work: Is called with the predictor of its thread and an item. Calls for different items may
            run at the same time. Items are begun in their order.
        items: The items.

    Returns:
        The results, in the order of the items.

    Raises:
        Exception: What the first failing call has raised. No further item is begun then.
    """
    if len(predictors) == 1 or len(items) < len(predictors):
        return [work(predictors[0], item) for item in items]

    result_of_index: dict[int, T] = {}
    errors: list[BaseException] = []
    indices: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(items)):
        indices.put(index)

    def take_items(predictor: Predictor) -> None:
        while not errors:
            try:
                index = indices.get_nowait()
            except queue.Empty:
                return
            result_of_index[index] = work(predictor, items[index])

    def take_items_in_thread(predictor: Predictor, torch_threads: int) -> None:
        torch.set_num_threads(torch_threads)  # of this thread alone
        try:
            with predictor.ready():
                take_items(predictor)
        except BaseException as error:
            errors.append(error)

    torch_threads = torch.get_num_threads()
    share = torch_threads // len(predictors)
    threads: list[threading.Thread] = []
    for predictor in predictors[1:]:
        run = contextvars.copy_context().run
        arguments = (take_items_in_thread, predictor, share)
        threads.append(threading.Thread(target=run, args=arguments, daemon=True))
    torch.set_num_threads(torch_threads - share * len(threads))
    try:
        for thread in threads:
            thread.start()
        take_items(predictors[0])
    except BaseException as error:
        errors.insert(0, error)
        raise
    finally:
        for thread in threads:
            thread.join()
        torch.set_num_threads(torch_threads)
    if errors:
        raise errors[0]
    return [result_of_index[index] for index in range(len(items))]


def counting_in_this_thread(count: Callable[[int], None]) -> Callable[[int], None]:
    """Return a `count` that any thread may call. `count` itself is called only by this thread.

    What other threads have counted is passed on at the next call in this thread. `count(0)` passes
    on what is left.
    """
    owner = threading.get_ident()
    lock = threading.Lock()
    counted = 0

    def count_from_any_thread(more: int) -> None:
        nonlocal counted
        with lock:
            counted += more
            if threading.get_ident() != owner:
                return
            passed_on = counted
            counted = 0
        if passed_on:
            count(passed_on)

    return count_from_any_thread
