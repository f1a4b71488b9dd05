"""A stand-in for CUDA graphs: what a pass did is done again, operation by operation, on a CPU.

A graph on a GPU repeats kernels on the memory that they were recorded with. It repeats no Python
and no autograd. So the stand-in records torch's operations with their tensors, and a replay does
each operation again with the same tensors and writes the result into the memory of the recorded
one. A number that Python has put into an operation is repeated, too, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from unlearnbench.models.replays import can_record
from unlearnbench.training import step_replays

_aten = torch.ops.aten
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.repeat_interleave.Tensor,
}
"""Operations whose result, or its size, has to reach the host."""


class _Operation(NamedTuple):
    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


class _Recorder(TorchDispatchMode):
    """Appends operations to a list, and raises RuntimeError where the host would wait for a GPU."""

    def __init__(self, operations: list[_Operation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _WAITING:
            raise RuntimeError(f"{func}: operation not permitted when stream is capturing")
        options = kwargs or {}
        result = func(*args, **options)
        # A graph knows memory, not tensors: a weight may get other memory later.
        memory: Any = _pytree.tree_map_only(Tensor, _memory_of, (args, options, result))
        self.operations.append(_Operation(func, *memory))
        return result


class OperationGraph:
    """The stand-in for `CudaGraph`."""

    def __init__(self, _: object) -> None:
        self.operations: list[_Operation] = []
        self.replays = 0

    def record(self, work: Callable[[], None]) -> None:
        """Do the work, and note its operations."""
        with _Recorder(self.operations):
            work()
        # A GPU computes nothing while it records.
        for operation in self.operations:
            for tensor in _tensors(operation.result):
                if tensor.is_floating_point() and not _is_argument(tensor, operation):
                    tensor.fill_(float("nan"))

    def replay(self) -> None:
        """Do the operations again."""
        self.replays += 1
        for function, arguments, options, recorded in self.operations:
            result = function(*arguments, **options)
            for old, new in zip(_tensors(recorded), _tensors(result), strict=True):
                if _address(old) != _address(new):
                    old.copy_(new)


def _memory_of(tensor: Tensor) -> Tensor:
    """The memory of a tensor, whose writes autograd does not count: it sees none of a graph's."""
    return tensor.data


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_argument(tensor: Tensor, operation: _Operation) -> bool:
    """Whether a result is an argument or a view of one."""
    arguments = _tensors((operation.arguments, operation.options))
    return any(_address(tensor) == _address(argument) for argument in arguments)


@contextmanager
def _refuse_waits() -> Generator[None]:
    with _Recorder([]):
        yield


class Graphs:
    """What the stand-in has recorded while a test runs."""

    def __init__(self) -> None:
        self.made: list[OperationGraph] = []
        self.permitted = True

    def can_record(self, _: torch.device) -> bool:
        """Whether the test and the process permit recordings."""
        return self.permitted and can_record(torch.device("cuda"))

    def make(self, pool: object) -> OperationGraph:
        """Make a graph, as `CudaGraph` does."""
        self.made.append(OperationGraph(pool))
        return self.made[-1]

    @property
    def replays(self) -> int:
        """How often a graph was replayed."""
        return sum(graph.replays for graph in self.made)


def graphs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    """Let training steps on a CPU pack filler rows and replay passes with the stand-in.

    Returns:
        The recorded graphs. While `permitted` is false, nothing is recorded.
    """
    graphs = Graphs()
    monkeypatch.setattr(step_replays, "_DEVICES", {"cpu"})
    monkeypatch.setattr(step_replays, "can_record", graphs.can_record)
    monkeypatch.setattr(step_replays, "CudaGraph", graphs.make)
    monkeypatch.setattr(step_replays, "new_pool", object)
    monkeypatch.setattr(step_replays, "never_waiting", _refuse_waits)
    monkeypatch.setattr(step_replays, "_TIMES", 1)
    return graphs
