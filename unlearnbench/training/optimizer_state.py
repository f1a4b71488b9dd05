"""The state of optimisers in checkpoints and in memory.

A checkpoint has the state as tensors by name: `0.exp_avg` is the value `exp_avg` of the optimiser's
first parameter. Optimisers of bitsandbytes need functions of their own for loading, because they
share tensors between parameters and may hold them in paged memory.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unlearnbench.base.fsdp import local_shard
from unlearnbench.base.out_of_memory import empty_cache

Reader = Callable[[str], Tensor]
"""Returns the whole tensor of a name."""


def state_tensors(optimizer: Any) -> dict[str, Tensor]:
    """Return every value of an optimiser's state, by `<number of the parameter>.<key>`.

    If a value is sharded, it is this process's shard. No two tensors share memory, because
    safetensors refuses to store such tensors.
    """
    tensors: dict[str, Tensor] = {}
    ids_of_values: set[int] = set()
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensor = torch.as_tensor(value)
            # bitsandbytes decodes all parameters with the same two tables of 1 KiB.
            is_shared = id(value) in ids_of_values
            tensors[f"{number}.{key}"] = tensor.clone() if is_shared else tensor
            ids_of_values.add(id(value))
    return tensors


class _MovedValue(NamedTuple):
    """A value of an optimiser's state that is in host memory for a while."""

    state: dict[str, Any]
    key: str
    device: torch.device


@contextmanager
def on_host(optimizers: Iterable[Any]) -> Generator[None, None, None]:
    """Hold the state of optimisers in host memory inside the `with`, so that others fit a GPU.

    Sharded state stays where it is: it is small, and no attack trains sharded weights. Paged state
    of bitsandbytes stays, too, because CUDA moves it by itself.
    """
    moved: list[_MovedValue] = []
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for key, value in state.items():
                if _is_movable(value):
                    moved.append(_MovedValue(state, key, value.device))
                    state[key] = value.cpu()
    if moved:
        empty_cache()
    try:
        yield
    finally:
        for state, key, device in moved:
            state[key] = state[key].to(device)


def _is_movable(value: Any) -> bool:
    """Whether a value of a state is in the memory of a GPU, and neither sharded nor paged."""
    device = getattr(value, "device", None)
    is_sharded = hasattr(value, "to_local")
    is_paged = hasattr(value, "is_paged")
    return getattr(device, "type", "cpu") == "cuda" and not is_sharded and not is_paged


def load_state(optimizer: Any, names: Iterable[str], read: Reader) -> None:
    """Restore the state that `state_tensors` returned.

    Args:
        optimizer: An optimiser of the same kind and parameters.
        names: Names of the tensors.
        read: Returns the tensor of a name.

    Raises:
        ValueError: The state is of another optimiser, or of another version of bitsandbytes.
        KeyError: The state is of another optimiser.
    """
    keys_of_parameter: defaultdict[int, list[str]] = defaultdict(list)
    for name in names:
        number, _, key = name.partition(".")
        keys_of_parameter[int(number)].append(key)
    is_of_bitsandbytes = hasattr(optimizer, "init_state")
    if is_of_bitsandbytes:
        _load_bitsandbytes(optimizer, keys_of_parameter, read)
    else:
        _load_torch(optimizer, keys_of_parameter, read)


def _parameters(optimizer: Any) -> list[Tensor]:
    """Return the parameters in the order in which `state_dict` numbers them."""
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    return parameters


def _load_torch(optimizer: Any, keys: Mapping[int, Sequence[str]], read: Reader) -> None:
    """Load the state of an optimiser of torch.

    Args:
        optimizer: The optimiser.
        keys: Keys of the state by number of the parameter.
        read: Returns the tensor of a name.
    """
    parameters = _parameters(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for number, keys_of_parameter in keys.items():
        parameter = parameters[number]
        state[number] = {}
        for key in keys_of_parameter:
            value = read(f"{number}.{key}")
            # A value with the shape of its parameter is sharded like it. Values of other shapes are
            # counts, such as of steps.
            if value.shape == parameter.shape:
                value = local_shard(value, parameter)
            state[number][key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@torch.no_grad()
def _load_bitsandbytes(optimizer: Any, keys: Mapping[int, Sequence[str]], read: Reader) -> None:
    """Load the state of an optimiser of bitsandbytes.

    The state is made as for a first step, and then filled. So nothing is in memory twice, paged
    state stays paged, and parameters share their tables.

    Args:
        optimizer: The optimiser.
        keys: Keys of the state by number of the parameter.
        read: Returns the tensor of a name.
    """
    number = 0
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if number in keys:
                optimizer.init_state(group, parameter, group_index, index)
                state: dict[str, Any] = optimizer.state[parameter]
                for key in keys[number]:
                    name = f"{number}.{key}"
                    state[key] = _filled(state[key], read(name), name)
            number += 1


def _filled(target: Any, value: Tensor, name: str) -> Any:
    """Return a value of the state with a stored value in it.

    Args:
        target: A tensor, which is changed in place, or a Python number, such as a count of steps.
        value: The stored value.
        name: Its name, for the message.

    Raises:
        ValueError: Shapes or types differ.
    """
    if not isinstance(target, Tensor):
        return type(target)(value.item())
    if (target.shape, target.dtype) != (value.shape, value.dtype):
        raise ValueError(
            f"optimiser state {name}: expected {target.dtype} {[*target.shape]}, found "
            f"{value.dtype} {[*value.shape]}: another version of bitsandbytes wrote it"
        )
    return target.copy_(value)
