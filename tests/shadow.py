"""A stand-in for a GPU: CPU tensors whose storage is marked as being on `cuda:0`.

While a `ShadowGPU` is entered, `.to("cuda")` and factories' `device=` make marked tensors, results
of operations on marked tensors are marked, and marked tensors answer `cuda:0` for their device.
Marks belong to storages, so that views, saved tensors and gradients keep them. Two modes see every
operation, those of the way back included, and count what costs time on a GPU: the host waiting for
the device. An operation that mixes operands of both, which CUDA refuses, fails the test on leaving.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_MEMORY = 80 * 2**30
_OWN = tuple(str(Path(__file__).parents[1] / name) for name in ("unlearnbench", "methods"))

_aten = torch.ops.aten
_INDEXING = {
    _aten.index.Tensor,
    _aten._unsafe_index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
}
# Their result's size, or the result itself, has to reach the host.
_WAITING = {
    _aten._local_scalar_dense.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.equal.default,
    _aten.repeat_interleave.Tensor,
    _aten.unique_consecutive.default,
    _aten._unique2.default,
    _aten.bincount.default,
}
_COPYING = {_aten.copy_.default, _aten._to_copy.default}


# Of all stand-ins, as what a test leaves behind on one may serve the next.
_MARKS: dict[int, StorageWeakRef] = {}


class ShadowGPU:
    """The stand-in and what it has seen, each with the line that it came from."""

    def __init__(self) -> None:
        self.mixed: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        """The host read something of the device."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ShadowGPU:
        patch = self._stack.enter_context(pytest.MonkeyPatch.context())
        # What asks the machine for its devices, with the answers of one with this GPU.
        patch.setattr("accelerate.Accelerator.device", GPU)
        patch.setattr(torch.cuda, "mem_get_info", lambda *_: (_MEMORY, _MEMORY))  # pyright: ignore
        answers = {
            "memory_reserved": 0,
            "memory_allocated": 0,
            "get_per_process_memory_fraction": 1,
        }
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)  # pyright: ignore
        # A GPU's autocast is that of the CPU which computes in its place.
        patch.setattr(torch, "autocast", _Autocast)
        for name in ("is_autocast_enabled", "get_autocast_dtype"):
            patch.setattr(torch, name, partial(_of_cpu, getattr(torch, name)))
        self._stack.enter_context(_Dispatch(self))
        self._stack.enter_context(_Function(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if kind is None and self.mixed:
            listed = "\n".join(f"{count} × {what}" for what, count in self.mixed.items())
            pytest.fail(f"operands on the CPU and on the GPU:\n{listed}")

    def has(self, tensor: Any) -> bool:
        """True if `tensor` is on the stand-in."""
        key = _key(tensor) if isinstance(tensor, Tensor) else None
        if key is not None and key in _MARKS and _MARKS[key].expired():
            del _MARKS[key]  # the address serves another storage now
        return key in _MARKS

    def mark(self, tensor: Tensor) -> Tensor:
        """The same tensor, on the stand-in from now on."""
        key = _key(tensor)
        if key is not None:
            _MARKS[key] = StorageWeakRef(tensor.untyped_storage())
        return tensor

    def unmark(self, tensor: Tensor) -> Tensor:
        """The same tensor, on the CPU from now on."""
        _MARKS.pop(_key(tensor) or 0, None)
        return tensor

    def on_host(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU."""
        with torch._C.DisableTorchFunction():  # pyright: ignore[reportPrivateUsage]  # no public name
            return self.unmark(tensor.detach().clone())


class _Autocast(torch.autocast):
    def __init__(self, _: str, *args: Any, **how: Any) -> None:
        super().__init__("cpu", *args, **how)


def _of_cpu(function: Callable[[str], Any], _: str) -> Any:
    return function("cpu")


def _key(tensor: Tensor) -> int | None:
    with contextlib.suppress(NotImplementedError, RuntimeError):  # a tensor without a storage
        return int(tensor.untyped_storage()._cdata)  # pyright: ignore[reportPrivateUsage]
    return None


def _line() -> str:
    """The innermost line of the project, or else of a library, that is running."""
    frame: FrameType | None = inspect.currentframe()
    other = "autograd"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_OWN):
            return f"{Path(name).name}:{frame.f_lineno}"
        if other == "autograd" and any(part in name for part in ("transformers", "accelerate")):
            other = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return other


def _tensors(value: Any) -> Iterator[Tensor]:
    """All in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])


class _Dispatch(TorchDispatchMode):
    """Sees every operation of the library's core, and hands marks on."""

    def __init__(self, gpu: ShadowGPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*_tensors(args), *_tensors(kwargs)]
        there = [self.gpu.has(t) for t in given]
        if any(there):
            self._look(func, given, there)
        made = func(*args, **(kwargs or {}))
        if any(there):
            for tensor in _tensors(made):
                self.gpu.mark(tensor)
        return made

    def _look(self, func: Any, given: list[Tensor], there: list[bool]) -> None:
        # A number that is a CPU tensor travels with the kernel's arguments.
        strangers = [t for t, on in zip(given, there, strict=True) if not on and t.ndim]
        indexing = func in _INDEXING
        if strangers and func not in _COPYING:
            kinds = {t.dtype for t in strangers}
            # CUDA takes indices on the CPU.
            if not (indexing and there[0] and kinds <= {torch.long, torch.int32, torch.bool}):
                shapes = [
                    (tuple(t.shape), "GPU" if on else "CPU")
                    for t, on in zip(given, there, strict=True)
                ]
                self.gpu.mixed[f"{func} of {shapes} at {_line()}"] += 1
        masked = indexing and any(t.dtype == torch.bool for t in given[1:])
        if masked or func in _WAITING:
            self.gpu.waits[f"{func}, {_line()}"] += 1


class _Function(TorchFunctionMode):
    """Sees what Python code asks of tensors: their devices, and to be moved."""

    def __init__(self, gpu: ShadowGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        how: dict[str, Any] = dict(kwargs or {})
        first: Any = args[0] if args else None
        there = self.gpu.has(first)
        owner = getattr(func, "__self__", None)
        if func is Tensor.to:
            return self._to(first, *args[1:], **how)
        if func is Tensor.backward:
            with self:  # which is left while it handles a function: the way back is a long one
                return torch.autograd.backward(first, how.pop("gradient", None), **how)
        if there and getattr(func, "__name__", "") == "__get__":
            if owner is Tensor.device:
                return GPU
            if owner is Tensor.is_cuda:
                return True
        if there and func is Tensor.numpy:
            self.gpu.mixed[f"numpy() of a tensor on the GPU at {_line()}"] += 1
        if there and func in (Tensor.cpu, Tensor.tolist):
            self.gpu.waits[f"{func.__name__}, {_line()}"] += 1
            return func(self.gpu.on_host(first))
        if func is Tensor.cuda:
            return self._to(first, GPU)
        if func is Tensor.pin_memory:
            return self.gpu.on_host(first)
        if "device" in how and _wanted(how["device"]):
            return self._made(func, args, how)
        return func(*args, **how)

    def _made(self, func: Callable[..., Any], args: Any, how: dict[str, Any]) -> Any:
        """Tensor that a factory makes on the stand-in."""
        made = func(*args, **{**how, "device": _CPU})
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and self.gpu.has(args[0]):
            return made
        for tensor in _tensors(made):
            self.gpu.mark(tensor)
        return made

    def _to(self, tensor: Tensor, *args: Any, **how: Any) -> Tensor:
        """`Tensor.to`, in each of its forms."""
        rest = [*args]
        device = how.pop("device", None)
        if rest and isinstance(rest[0], Tensor):
            other = rest.pop(0)
            device, how["dtype"] = (GPU if self.gpu.has(other) else _CPU), other.dtype
        elif rest and (rest[0] is None or isinstance(rest[0], str | int | torch.device)):
            device = rest.pop(0)
        if rest:
            how["dtype"] = rest.pop(0)
        how |= dict(zip(("non_blocking", "copy"), rest, strict=False))
        if how.get("dtype", ...) is None:
            del how["dtype"]
        how.pop("non_blocking", None)
        there = self.gpu.has(tensor)
        wanted = there if device is None else _wanted(device)
        if there and not wanted:
            self.gpu.waits[f"copy to the host, {_line()}"] += 1
        moved = tensor.to(**how) if how else tensor
        if wanted == there:
            return moved
        with contextlib.nullcontext() if tensor.requires_grad else torch.no_grad():
            moved = moved.clone() if moved is tensor else moved
        return self.gpu.mark(moved) if wanted else self.gpu.unmark(moved)


def _wanted(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"
