"""Work of a GPU that comes again with the same shapes, as a CUDA graph.

A pass over few tokens is hundreds of kernels, most of which a GPU ends before the host has started
the next. A recorded graph starts all of them at once.
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
Shapes = tuple[tuple[int, ...], ...]

# Recording takes as long as some passes, and keeps memory.
_TIMES = 4
_MOST = 24


@dataclass(frozen=True, eq=False)
class Recorded:
    graph: Any
    inputs: Tensor
    """What the graph reads: all arrays, one after the other."""
    result: Tensor


class Replays:
    """Does work on integer arrays of the host, whose kernels depend on the arrays' shapes alone."""

    def __init__(self, device: torch.device, *, recording: bool = True) -> None:
        """`recording`: False where kernels depend on more than shapes."""
        self.device = device
        # Processes that share a model would have to record, or not, together.
        self.recording = recording and device.type == "cuda" and world_size() == 1
        self.recorded: dict[Shapes, Recorded] = {}
        self._seen: Counter[Shapes] = Counter()

    def __call__(self, work: Work, arrays: Sequence[NDArray[np.integer[Any]]]) -> Tensor:
        """The result of `work` for `arrays` on the device, which the next call may overwrite."""
        shapes = tuple(array.shape for array in arrays)
        [sent] = send([torch.from_numpy(np.concatenate([a.ravel() for a in arrays]))], self.device)
        recorded = self.recorded.get(shapes)
        if recorded is not None:
            recorded.inputs.copy_(sent)
        else:
            self._seen[shapes] += 1
            if self.recording and self._seen[shapes] > _TIMES and len(self.recorded) < _MOST:
                recorded = self._record(work, sent, shapes)
            if recorded is None:
                return work(parts_of(sent, shapes))
        recorded.graph.replay()
        return recorded.result

    def _record(self, work: Work, inputs: Tensor, shapes: Shapes) -> Recorded | None:
        pool = next(iter(self.recorded.values())).graph.pool() if self.recorded else None
        parts = parts_of(inputs, shapes)
        try:
            graph: Any = torch.cuda.CUDAGraph()
            if pool is None:
                # A recording that fails here leaves torch's random numbers unusable.
                with _never_waiting():
                    work(parts)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                result = work(parts)
        except RuntimeError:  # the model waits for the GPU, or memory is short
            self.recording = False
            return None
        self.recorded[shapes] = Recorded(graph, inputs, result)
        return self.recorded[shapes]


@contextmanager
def _never_waiting() -> Generator[None, None, None]:
    """Raise RuntimeError where the host waits for the GPU."""
    before: Any = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the mode, once
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def parts_of(flat: Tensor, shapes: Shapes) -> list[Tensor]:
    parts = flat.split([int(np.prod(shape)) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
