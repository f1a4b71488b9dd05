"""Shard a model over processes (FSDP2), and gather it again.

Weights are sharded by decoder layer, and gathered during a layer's forward and backward pass. They
keep their names and dtypes, so that other code works as with an unsharded model.

In mixed precision a layer is gathered in 16 bits. That halves the transfer and needs no second
copy, whereas autocast keeps a copy of all weights on every process until the forward pass ends.
Autocast stays on: activations between layers are fp32, products are not. Embeddings, final norm and
output layer are one group, gathered in fp32. Gradients are summed in fp32.

torch's FSDP is imported where a model is sharded: that takes a second, and most runs shard nothing.
"""

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from unlearnbench.base.distributed import is_main_process

_stored: WeakKeyDictionary[nn.Module, Counter[torch.dtype]] = WeakKeyDictionary()
"""Stored dtypes of sharded models, which a gathered parameter does not show."""


def shard(model: nn.Module, *, products: torch.dtype | None = None) -> None:
    """Shard `model`, which has to be the same in all processes; collective.

    products  dtype of 16 bits that forward and backward passes autocast to; None without autocast
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    _stored[model] = stored_dtypes(model)
    half = any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    # A sum over many processes in half precision would lose digits that one process keeps.
    reduce = torch.float32 if half or products is not None else None
    # Inputs stay fp32: autocast casts them for a product, and for nothing else.
    outer = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
    policy = outer if products is None else replace(outer, param_dtype=products)
    for layer in _layers(model):
        # Norms are computed in fp32, whose kernels take no other weights.
        if products is not None and (norms := _norms(layer)):
            fully_shard(norms, mp_policy=outer)
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=outer)


def _layers(model: nn.Module) -> list[nn.Module]:
    """Find the decoder layers; without any, all weights are one group."""
    config: Any = getattr(model, "config", None)
    count = int(config.get_text_config().num_hidden_layers) if config is not None else 0
    # Not the layers of a vision tower, which may be as many.
    find_decoder = getattr(model, "get_decoder", None)
    decoder: nn.Module = model if find_decoder is None else find_decoder()
    lists = (m for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count)
    return [*next(lists, nn.ModuleList())]


def _norms(layer: nn.Module) -> list[nn.Module]:
    """Find the modules whose parameters are vectors."""
    part = ((module, [*module.parameters(recurse=False)]) for module in layer.modules())
    return [module for module, weights in part if weights and all(p.ndim == 1 for p in weights)]


def stored_dtypes(model: nn.Module) -> Counter[torch.dtype]:
    """Count the weights that are stored in each floating-point type, gathered or not."""
    if model in _stored:
        return _stored[model]
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] += parameter.numel()
    return sizes


def is_sharded(model: nn.Module) -> bool:
    """Return whether this process has only a part of the model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def _is_shard(tensor: Tensor) -> bool:
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


@contextmanager
def unsharded(model: nn.Module, *, exact: bool = False) -> Generator[None, None, None]:
    """Gather the model inside the `with`, for forward passes without other processes; collective.

    exact  use the weights as they are stored, even where layers are gathered in 16 bits
    """
    parts: list[Any] = [module for module in model.modules() if is_sharded(module)]
    stored = dict(model.named_parameters(remove_duplicate=False)) if exact else {}
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        for name, parameter in stored.items() if parts else ():
            path, _, subset = name.rpartition(".")
            module = model.get_submodule(path)
            current: nn.Parameter = getattr(module, subset)
            if current.dtype != parameter.dtype:
                # As FSDP does when it reshards; it allocates again when it gathers.
                current.untyped_storage().resize_(0)
                full = full_tensor(parameter.detach())
                # `reshard` puts the stored parameter back.
                setattr(module, subset, nn.Parameter(full, requires_grad=parameter.requires_grad))
        yield
    finally:
        for part in parts:
            part.reshard()
            # The outermost weights are needed again at once, on the way back.
            part.set_reshard_after_forward(part is not model, recurse=False)


def reshard(model: nn.Module) -> None:
    """Discard the outermost weights, which a pass that nothing goes back through leaves gathered.

    The next pass would read them again, also where the stored ones have changed.
    """
    for part in [module for module in model.modules() if is_sharded(module)]:
        cast("Any", part).reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor if it is sharded; collective."""
    if not _is_shard(tensor):
        return tensor
    part: Any = tensor
    return cast("Tensor", part.full_tensor())


def local_shard(value: Tensor, like: Tensor) -> Tensor:
    """Return the part of `value` that this process has of `like`, which has the same shape."""
    if not _is_shard(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    of: Any = like
    return distribute_tensor(
        value.to(like.device), of.device_mesh, of.placements, src_data_rank=None
    )


def local_part(tensor: Tensor) -> Tensor:
    """Return what this process has of a tensor, sharing its memory."""
    part: Any = tensor
    return cast("Tensor", part.to_local()) if _is_shard(tensor) else tensor


def as_shard(local: Tensor, like: Tensor) -> Tensor:
    """Return a tensor sharded as `like`, of which `local` is this process's part."""
    if not _is_shard(like):
        return local
    from torch.distributed.tensor import DTensor

    of: Any = like
    shape = {"shape": of.shape, "stride": of.stride()}
    return DTensor.from_local(local, of.device_mesh, of.placements, **shape)


@torch.no_grad()
def full_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield each full tensor in turn in the main process, and nothing in the others.

    Collective where tensors are sharded: every process has to iterate to the end.
    """
    for name, tensor in tensors.items():
        value = full_tensor(tensor.detach())
        if is_main_process():
            yield name, value


@torch.no_grad()
def gather_to_main(model: nn.Module, make: Callable[[], Any]) -> Any:
    """Return an unsharded model in the main process, and `model` in the others; collective.

    make  makes a model for the trained weights of a sharded one
    """
    if not is_sharded(model):
        return model
    unsharded_model = make() if is_main_process() else model
    places: dict[str, Tensor] = dict(unsharded_model.named_parameters())
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, value in full_tensors(trained):
        places[name].copy_(value)
    return unsharded_model
