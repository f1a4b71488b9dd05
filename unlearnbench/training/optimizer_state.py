"""The state of an optimiser as named tensors, and back.

torch's optimisers restore it through `load_state_dict`. Those of bitsandbytes cannot: their
`state_dict` is wrapped for FSDP in some versions and flat in others, and their `load_state_dict`
moves paged state into the GPU's memory for good. Both kinds have it by parameter in `state`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from unlearnbench.base.fsdp import local_shard

Reader = Callable[[str], Tensor]
"""Returns the whole tensor of a name."""


def state_tensors(optimizer: Any) -> dict[str, Tensor]:
    """Every value of the state by `<number of the parameter>.<key>`; local shards where sharded.

    No two share memory: bitsandbytes decodes all parameters with the same two maps of 1 KiB.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensor = torch.as_tensor(value)
            tensors[f"{number}.{key}"] = tensor.clone() if id(value) in seen else tensor
            seen.add(id(value))
    return tensors


def load_state(optimizer: Any, names: Iterable[str], read: Reader) -> None:
    """Restore the state that `state_tensors` returned, read by name.

    Raises: ValueError or KeyError where the state is of another optimiser.
    """
    keys: dict[int, list[str]] = {}
    for name in names:
        number, _, key = name.partition(".")
        keys.setdefault(int(number), []).append(key)
    load = _load_bitsandbytes if hasattr(optimizer, "init_state") else _load_torch
    load(optimizer, keys, read)


def _parameters(optimizer: Any) -> list[Tensor]:
    """Parameters, in the order in which `state_dict` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _load_torch(optimizer: Any, keys: dict[int, list[str]], read: Reader) -> None:
    """Load into an optimiser of torch; values of the parameter's shape are sharded like it."""
    parameters = _parameters(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for number, names in keys.items():
        parameter, part = parameters[number], state.setdefault(number, {})
        for key in names:
            value = read(f"{number}.{key}")
            # Other shapes are counts, such as of steps.
            part[key] = local_shard(value, parameter) if value.shape == parameter.shape else value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@torch.no_grad()
def _load_bitsandbytes(optimizer: Any, keys: dict[int, list[str]], read: Reader) -> None:
    """Load into an optimiser of bitsandbytes: make the state as for a first step, and fill it in.

    So nothing is in memory twice, paged state stays paged, and parameters share their maps.
    """
    number = 0
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if number in keys:
                optimizer.init_state(group, parameter, group_index, index)
                state: dict[str, Any] = optimizer.state[parameter]
                for key in keys[number]:
                    state[key] = _filled(state[key], read(f"{number}.{key}"), f"{number}.{key}")
            number += 1


def _filled(target: Any, value: Tensor, name: str) -> Any:
    if not isinstance(target, Tensor):
        return type(target)(value.item())  # steps, counted in a Python number
    if (target.shape, target.dtype) != (value.shape, value.dtype):
        raise ValueError(
            f"optimiser state {name}: expected {target.dtype} {[*target.shape]}, found "
            f"{value.dtype} {[*value.shape]}: another version of bitsandbytes wrote it"
        )
    return target.copy_(value)
