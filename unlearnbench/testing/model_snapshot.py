"""A model as it is at a moment, to find what of it was changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class ModelSnapshot:
    """The tensors of a model bit for bit, its modules, hooks, modes, and what is trained."""

    def __init__(self, model: Any) -> None:
        self.modules = dict(model.named_modules())
        self.hooks = {name: _hooks(module) for name, module in self.modules.items()}
        self.modes = {name: module.training for name, module in self.modules.items()}
        self.tensors = dict(_tensors(model))
        self.bits = {name: _bits(tensor) for name, tensor in self.tensors.items()}
        self.trained = {name: tensor.requires_grad for name, tensor in self.tensors.items()}
        self.gradients = {name: tensor.grad is None for name, tensor in self.tensors.items()}

    def difference(self, model: Any) -> str:
        """Describe the first difference of a model from the snapshot of it; empty if none."""
        return next(self._differences(model), "")

    def _differences(self, model: Any) -> Iterator[str]:
        modules, tensors = dict(model.named_modules()), dict(_tensors(model))
        for what, own, now in (
            ("module", self.modules, modules),
            ("weight or buffer", self.tensors, tensors),
        ):
            for name in {**own, **now}:
                if name not in now:
                    yield f"{what} {name!r} is gone"
                elif name not in own:
                    yield f"{what} {name!r} is new"
                elif own[name] is not now[name]:
                    yield f"{what} {name!r} is another object, which nobody else knows"
        for name, module in modules.items():
            if self.hooks[name] != _hooks(module):
                yield f"module {name!r} has other hooks, or another forward"
            if self.modes[name] != module.training:
                yield f"module {name!r} has training={module.training}"
        for name, tensor in tensors.items():
            if self.bits[name] != _bits(tensor):
                yield f"{name!r} has other values"
            if self.trained[name] != tensor.requires_grad:
                yield f"{name!r} has requires_grad={tensor.requires_grad}"
            if self.gradients[name] != (tensor.grad is None):
                yield f"{name!r} has a gradient"


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights and buffers by name; one that is shared, by each of its names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    values = tensor.detach().to("cpu").contiguous()
    return tensor.dtype, tensor.shape, values.flatten().view(torch.uint8).numpy().tobytes()


def _hooks(module: Any) -> dict[str, tuple[int, ...]]:
    """The keys of its hooks by kind, and its own forward function if it has one."""
    own = vars(module)
    hooks = {k: tuple(v) for k, v in own.items() if k.endswith("_hooks") and isinstance(v, dict)}
    return hooks | ({"forward": (id(own["forward"]),)} if "forward" in own else {})
