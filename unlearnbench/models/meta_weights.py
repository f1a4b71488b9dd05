"""Load a model by way of torch's meta device without sympy.

On the meta device, tensors have shapes but no values. transformers builds a model there before it
reads the weights. torch carries out some functions for such tensors in Python, and imports sympy
for them, which takes as long as a model class of transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_INITIAL_WEIGHTS = "torch.nn.init"
"""Module whose functions fill weights with initial values."""
_ARITHMETIC = {"div", "mul", "pow", "__rpow__", "__rdiv__"}
"""Operators of rotary embeddings: `1 / base ** (torch.arange(0, size, 2) / size)`."""
_MOST_NUMBERS = 1 << 20
"""Largest number of elements of an operand that is made on the CPU."""


class MetaWeights(TorchFunctionMode):
    """Returns the tensors that torch would return, without its functions in Python.

    - Functions of `torch.nn.init` are left out, because they change nothing on the meta device.
    - `torch.arange` and the operators of rotary embeddings are carried out on the CPU.
    - `torch.empty_like` becomes `torch.empty`.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or return what it would return."""
        options = dict(kwargs or {})
        if func is torch.arange and _is_meta_device(options.get("device")):
            numbers = func(*args, **options | {"device": "cpu"})
            return numbers.to("meta")
        if getattr(func, "__module__", None) == _INITIAL_WEIGHTS:
            tensor = options.get("tensor", args[0] if args else None)
            return tensor if _is_meta(tensor) else func(*args, **options)
        if not any(_is_meta(argument) for argument in args):
            return func(*args, **options)
        if func is torch.empty_like and set(options) == {"device"} and args[0].is_contiguous():
            return torch.empty(args[0].shape, dtype=args[0].dtype, **options)
        is_small = all(argument.numel() <= _MOST_NUMBERS for argument in args if _is_meta(argument))
        if func.__name__ in _ARITHMETIC and not options and is_small:
            return func(*map(_on_cpu, args)).to("meta")
        return func(*args, **options)


def _is_meta(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _is_meta_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == "meta"


def _on_cpu(value: object) -> object:
    """Return a tensor of the same shape with values, which do not matter, or another operand."""
    if not isinstance(value, torch.Tensor) or not value.is_meta:
        return value
    return torch.ones(value.shape, dtype=value.dtype, device="cpu")
