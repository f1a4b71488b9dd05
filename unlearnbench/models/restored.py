"""A model whose weights may be changed for a while."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def restored(model: Any) -> Generator[None, None, None]:
    """Restore weights and buffers bit for bit, what is trained, and the mode, on leaving.

    Copies are held in host memory, so that an attack has the device's. Modules that were put in
    place of others are not put back. Of a sharded model each process restores its own part.
    """
    tensors = dict(_tensors(model))
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(copies[name])
        for name, parameter in model.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(trained.get(name, parameter.requires_grad))
        for module, training in modes.items():
            module.training = training


def _tensors(model: Any) -> Generator[tuple[str, Tensor], None, None]:
    """The tensors in which weights and buffers are stored, by name, each once."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        tensor: Any = value.detach()
        yield name, tensor.to_local() if hasattr(tensor, "to_local") else tensor
