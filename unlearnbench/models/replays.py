"""Work that a GPU does again and again with the same shapes, recorded as CUDA graphs.

A pass over few tokens consists of hundreds of kernels. A GPU ends most of them before the host has
started the next one. A recorded graph starts all of them at once.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unlearnbench.base.distributed import world_size
from unlearnbench.models.batching import send

Work = Callable[[Sequence[Tensor]], Tensor]
"""Computes a tensor from tensors on the device."""
Shapes = tuple[tuple[int, ...], ...]
"""Shapes of the arrays that work is done on."""

# A recording takes as long as some passes, and keeps memory.
_TIMES = 4
"""How often shapes come without a recording."""
_MOST = 24
"""Largest number of recordings."""


@dataclass
class _Permission:
    """Whether this process may record. It serves runs whose configurations may differ."""

    is_given: bool = True


_PERMISSION = _Permission()


def permit_recording(is_given: bool) -> None:
    """Let this process record passes, or forbid it, as `resources.cuda_graphs` says."""
    _PERMISSION.is_given = is_given


def can_record(device: torch.device) -> bool:
    """Whether work on a device may be recorded.

    It is not if the device is no GPU, or if processes share a model: these would have to agree on
    when to record.
    """
    return _PERMISSION.is_given and device.type == "cuda" and world_size() == 1


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded graph, with the tensors that it reads and writes."""

    graph: Any
    inputs: Tensor
    """All arrays in one tensor, one after the other."""
    result: Tensor
    """What the work returned. The graph overwrites it each time."""


class Replays:
    """Does work on integer arrays of the host, whose kernels depend only on the arrays' shapes."""

    def __init__(self, device: torch.device, *, recording: bool = True) -> None:
        """Begin without recordings.

        Args:
            device: Where the work is done. Nothing is recorded except on a GPU.
            recording: Whether anything is recorded. False if kernels depend on more than shapes.
        """
        self.device = device
        self.recording = recording and can_record(device)
        self.recorded: dict[Shapes, Recorded] = {}
        self._calls: Counter[Shapes] = Counter()

    def __call__(self, work: Work, arrays: Sequence[NDArray[np.integer[Any]]]) -> Tensor:
        """Return the result of `work` for `arrays`. The next call may overwrite it."""
        shapes = tuple(array.shape for array in arrays)
        flat = np.concatenate([array.ravel() for array in arrays])
        [inputs] = send([torch.from_numpy(flat)], self.device)
        recorded = self.recorded.get(shapes)
        if recorded is not None:
            recorded.inputs.copy_(inputs)
        elif self._is_worth_recording(shapes):
            recorded = self._record(work, inputs, shapes)
        if recorded is None:
            return work(parts_of(inputs, shapes))
        recorded.graph.replay()
        return recorded.result

    def _is_worth_recording(self, shapes: Shapes) -> bool:
        """Count a call with these shapes, and return whether it is to be recorded."""
        self._calls[shapes] += 1
        is_frequent = self._calls[shapes] > _TIMES
        return self.recording and is_frequent and len(self.recorded) < _MOST

    def _record(self, work: Work, inputs: Tensor, shapes: Shapes) -> Recorded | None:
        """Record work without its result; None if it cannot be recorded."""
        # All graphs share the memory of the first one, because only one runs at a time.
        pool = next(iter(self.recorded.values())).graph.pool() if self.recorded else None
        arrays = parts_of(inputs, shapes)
        try:
            graph: Any = torch.cuda.CUDAGraph()
            if pool is None:
                # Tried first without a recording, because one that fails at a wait for the GPU
                # would leave torch's random numbers unusable.
                with never_waiting():
                    work(arrays)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = work(arrays)
        except RuntimeError:  # the model waits for the GPU, or memory is short
            self.recording = False
            return None
        recorded = Recorded(graph, inputs, result)
        self.recorded[shapes] = recorded
        return recorded


@contextmanager
def never_waiting() -> Generator[None, None, None]:
    """Raise RuntimeError if the host waits for the GPU."""
    before: Any = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the mode, once
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def parts_of(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    """Return the arrays with these shapes that stand in a flat tensor one after the other."""
    parts = flat.split([int(np.prod(shape)) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
