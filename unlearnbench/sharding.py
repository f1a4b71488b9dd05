"""A model of which every process holds a part (FSDP2), and how to see it whole.

Weights are shared out by decoder layer, and gathered for the time of a layer's forward and backward
pass. They keep their names and dtypes, so that everything else works as with a whole model.

In mixed precision a layer is gathered in bf16: half of the transfer, and no copy beside it, where
autocast keeps one of all weights on every process until the forward pass ends. Activations are as
under autocast, which stays on: what runs through the layers is fp32, products are bf16. Embeddings,
final norm and output layer are one group, gathered in fp32. Gradients are summed in fp32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from unlearnbench.group import leads

_stored: WeakKeyDictionary[nn.Module, Counter[torch.dtype]] = WeakKeyDictionary()
"""Of models that are sharded: a gathered parameter does not show what is stored."""


def shard(model: nn.Module, *, mixed: bool = False) -> None:
    """Leave this process its part of `model`, which has to be the same in all; collective.

    mixed  forward and backward passes are made under autocast to bf16
    """
    _stored[model] = stored_dtypes(model)
    half = any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    # A sum over many processes in half precision would lose digits that one process keeps.
    reduce = torch.float32 if half or mixed else None
    # Inputs stay fp32: autocast casts them for a product, and for nothing else.
    outer = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
    policy = replace(outer, param_dtype=torch.bfloat16) if mixed else outer
    for layer in _layers(model):
        # Norms are computed in fp32, whose kernels take no other weights.
        if mixed and (norms := _norms(layer)):
            fully_shard(norms, mp_policy=outer)
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=outer)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers; none where they are not found, then all weights are one group."""
    config: Any = getattr(model, "config", None)
    count = int(config.get_text_config().num_hidden_layers) if config is not None else 0
    lists = (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return [*next(lists, nn.ModuleList())]


def _norms(layer: nn.Module) -> list[nn.Module]:
    """The modules whose weights are one vector for each."""
    own = ((module, [*module.parameters(recurse=False)]) for module in layer.modules())
    return [module for module, held in own if held and all(p.ndim == 1 for p in held)]


def stored_dtypes(model: nn.Module) -> Counter[torch.dtype]:
    """How many weights are stored in each floating-point type, however they are gathered now."""
    if model in _stored:
        return _stored[model]
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] += parameter.numel()
    return sizes


def is_sharded(model: nn.Module) -> bool:
    """Whether this process holds a part of the model only."""
    return isinstance(model, FSDPModule)


@contextmanager
def whole(model: nn.Module, *, exact: bool = False) -> Generator[None, None, None]:
    """While it lasts, forward passes need no other process; collective. Nothing is trained then.

    exact  with weights as they are stored, also where layers are gathered in bf16
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    stored = dict(model.named_parameters(remove_duplicate=False)) if exact else {}
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        for name, parameter in stored.items() if parts else ():
            path, _, own = name.rpartition(".")
            holder = model.get_submodule(path)
            shown: nn.Parameter = getattr(holder, own)
            if shown.dtype != parameter.dtype:
                # FSDP does so when it reshards, and makes it anew when it gathers again.
                shown.untyped_storage().resize_(0)
                full = gathered(parameter.detach())
                # Until `reshard` puts back the parameter that is stored.
                setattr(holder, own, nn.Parameter(full, requires_grad=parameter.requires_grad))
        yield
    finally:
        for part in parts:
            part.reshard()
            # The outermost weights are needed again at once, on the way back.
            part.set_reshard_after_forward(part is not model, recurse=False)


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor, whatever part of it is here; collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def parted(value: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that a process holds of `like`, which has the same shape."""
    if not isinstance(like, DTensor):
        return value
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def whole_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor in turn, whole, in the leader; nothing in the other processes.

    Collective where tensors are sharded: every process goes through all of them.
    """
    for name, tensor in tensors.items():
        value = gathered(tensor.detach())
        if leads():
            yield name, value


@torch.no_grad()
def unsharded(model: nn.Module, make: Callable[[], Any]) -> Any:
    """What the leader may save: `model`, or one of `make` with its trained weights; collective.

    The other processes get what they have.
    """
    if not is_sharded(model):
        return model
    made = make() if leads() else model
    places: dict[str, Tensor] = dict(made.named_parameters())
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, value in whole_tensors(trained):
        places[name].copy_(value)
    return made
