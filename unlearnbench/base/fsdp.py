"""Shard a model over processes (FSDP2), and gather it again.

Weights are sharded by decoder layer, and gathered during a layer's forward and backward pass. They
keep their names and dtypes, so that other code works as with an unsharded model. Embeddings, final
norm and output layer are one group, the root module's.

In mixed precision a layer is gathered in 16 bits. That halves the transfer and needs no second
copy, whereas autocast keeps a copy of all weights on every process until the forward pass ends.
Autocast stays on, so that matrix products are in 16 bits and activations between layers are in
fp32. The root module's group is gathered in fp32, and gradients are summed in fp32.

torch's FSDP is imported when a model is sharded, because the import takes a second and most runs
shard nothing. Functions that are called *collective* have to be called by all processes.
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
"""Stored dtypes of sharded models. A parameter that is gathered has another dtype."""


def shard(model: nn.Module, *, products: torch.dtype | None = None) -> None:
    """Shard a model, which has to be the same in all processes. Collective.

    Args:
        model: Model with all of its weights.
        products: Dtype of 16 bits that forward and backward passes autocast to. None without
            autocast.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    _stored[model] = stored_dtypes(model)
    has_half_weights = any(
        weight.dtype in (torch.bfloat16, torch.float16) for weight in model.parameters()
    )
    # A sum over many processes in half precision would lose digits that one process keeps.
    sum_dtype = torch.float32 if has_half_weights or products is not None else None
    # Inputs stay in fp32. Autocast casts them for products, and for nothing else.
    as_stored = MixedPrecisionPolicy(reduce_dtype=sum_dtype, cast_forward_inputs=False)
    in_half = as_stored if products is None else replace(as_stored, param_dtype=products)
    for layer in _layers(model):
        norms = _norms(layer)
        # Norms are computed in fp32, and their kernels take only weights in fp32.
        if products is not None and norms:
            fully_shard(norms, mp_policy=as_stored)
        fully_shard(layer, mp_policy=in_half)
    fully_shard(model, mp_policy=as_stored)


def _layers(model: nn.Module) -> list[nn.Module]:
    """Find the decoder layers. If there are none, all weights are one group."""
    config: Any = getattr(model, "config", None)
    count = int(config.get_text_config().num_hidden_layers) if config is not None else 0
    # The search is limited to the decoder, because a vision tower may have as many layers.
    find_decoder = getattr(model, "get_decoder", None)
    decoder: nn.Module = model if find_decoder is None else find_decoder()
    for module in decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []


def _norms(layer: nn.Module) -> list[nn.Module]:
    """Find the norms of a layer: the modules whose own parameters are all vectors."""
    norms: list[nn.Module] = []
    for module in layer.modules():
        weights = list(module.parameters(recurse=False))
        if weights and all(weight.ndim == 1 for weight in weights):
            norms.append(module)
    return norms


def stored_dtypes(model: nn.Module) -> Counter[torch.dtype]:
    """Count the weights that are stored in each floating-point type, whether gathered or not."""
    if model in _stored:
        return _stored[model]
    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] += parameter.numel()
    return sizes


def is_sharded(model: nn.Module) -> bool:
    """Whether this process has only a part of the model."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def _is_shard(tensor: Tensor) -> bool:
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


@contextmanager
def unsharded(model: nn.Module, *, exact: bool = False) -> Generator[None, None, None]:
    """Gather the model inside the context, for forward passes without other processes. Collective.

    Args:
        model: Model, which need not be sharded.
        exact: Whether to use the weights as they are stored, even if layers are gathered in 16
            bits.
    """
    modules = _sharded_modules(model)
    stored_parameters = dict(model.named_parameters(remove_duplicate=False)) if exact else {}
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        if modules:
            for name, stored in stored_parameters.items():
                _restore_dtype(model, name, stored)
        yield
    finally:
        for module in modules:
            module.reshard()
            # The root module's weights stay gathered after a forward pass, because the backward
            # pass needs them again at once.
            module.set_reshard_after_forward(module is not model, recurse=False)


def _sharded_modules(model: nn.Module) -> list[Any]:
    """Return the modules that FSDP gathers: the layers, their norms and the root module."""
    return [module for module in model.modules() if is_sharded(module)]


def _restore_dtype(model: nn.Module, name: str, stored: nn.Parameter) -> None:
    """Replace a gathered parameter by the stored weight, if its dtype differs. Collective.

    Args:
        model: Gathered model.
        name: Name of the parameter.
        stored: The parameter before it was gathered. FSDP puts it back when it reshards.
    """
    path, _, attribute = name.rpartition(".")
    module = model.get_submodule(path)
    gathered: nn.Parameter = getattr(module, attribute)
    if gathered.dtype == stored.dtype:
        return
    # Free the gathered weight, as FSDP does when it reshards. FSDP allocates it again when it
    # gathers.
    gathered.untyped_storage().resize_(0)
    full = full_tensor(stored.detach())
    setattr(module, attribute, nn.Parameter(full, requires_grad=stored.requires_grad))


def reshard(model: nn.Module) -> None:
    """Free the root module's gathered weights.

    FSDP frees them in the backward pass, and a forward-only pass has none. The next pass would use
    them again, even if the stored weights have changed.
    """
    for module in _sharded_modules(model):
        module.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor if it is sharded. Collective."""
    if not _is_shard(tensor):
        return tensor
    sharded: Any = tensor
    return cast("Tensor", sharded.full_tensor())


def local_shard(value: Tensor, like: Tensor) -> Tensor:
    """Shard a whole tensor in the same way as another one of its shape.

    Args:
        value: The whole tensor, equal in all processes.
        like: Tensor that may be sharded.

    Returns:
        The sharded tensor, or `value` if `like` is not sharded.
    """
    if not _is_shard(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(
        value.to(like.device), sharded.device_mesh, sharded.placements, src_data_rank=None
    )


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, which shares its memory."""
    if not _is_shard(tensor):
        return tensor
    sharded: Any = tensor
    return cast("Tensor", sharded.to_local())


def as_shard(local: Tensor, like: Tensor) -> Tensor:
    """Return a tensor sharded as another one, from this process's part of it.

    Args:
        local: This process's part.
        like: Tensor that may be sharded. If it is not, `local` is the whole tensor.
    """
    if not _is_shard(like):
        return local
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    return DTensor.from_local(
        local,
        sharded.device_mesh,
        sharded.placements,
        shape=sharded.shape,
        stride=sharded.stride(),
    )


@torch.no_grad()
def full_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield each full tensor in turn in the main process, and nothing in the others.

    If tensors are sharded, every process has to iterate to the end.

    Args:
        tensors: Tensors by name, which may be sharded.

    Yields:
        Name and full tensor.
    """
    for name, tensor in tensors.items():
        value = full_tensor(tensor.detach())
        if is_main_process():
            yield name, value


@torch.no_grad()
def gather_to_main(model: nn.Module, make: Callable[[], Any]) -> Any:
    """Gather a model with its trained weights in the main process. Collective.

    Args:
        model: Model, which need not be sharded.
        make: Makes an unsharded model, whose trained weights are then overwritten.

    Returns:
        An unsharded model in the main process, and `model` in the others.
    """
    if not is_sharded(model):
        return model
    whole_model = make() if is_main_process() else model
    weights: dict[str, Tensor] = dict(whole_model.named_parameters())
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name, value in full_tensors(trained):
        weights[name].copy_(value)
    return whole_model
