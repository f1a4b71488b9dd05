"""The state of an optimiser as named tensors, and back.

torch's optimisers take theirs through `load_state_dict`. Those of bitsandbytes do not: their
`state_dict` is wrapped for FSDP in some versions and flat in others, and their `load_state_dict`
moves what is paged into the GPU's memory for good. Both kinds hold it by parameter in `state`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from unlearnbench.sharding import parted

Reader = Callable[[str], Tensor]
"""From a name to the whole tensor."""


def state_tensors(optimizer: Any) -> dict[str, Tensor]:
    """Every value of the state by `<number of the parameter>.<key>`; parts of it where sharded.

    No two share memory: bitsandbytes decodes all parameters with the same two maps of 1 KiB.
    """
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensor = torch.as_tensor(value)
            found[f"{number}.{key}"] = tensor.clone() if id(value) in seen else tensor
            seen.add(id(value))
    return found


def load_state(optimizer: Any, names: Iterable[str], read: Reader) -> None:
    """Put back what `state_tensors` returned, read by name.

    Raises: ValueError or KeyError where it is the state of another optimiser.
    """
    keys: dict[int, list[str]] = {}
    for name in names:
        number, _, key = name.partition(".")
        keys.setdefault(int(number), []).append(key)
    load = _fill if hasattr(optimizer, "init_state") else _load
    load(optimizer, keys, read)


def _parameters(optimizer: Any) -> list[Tensor]:
    """In the order in which `state_dict` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _load(optimizer: Any, keys: dict[int, list[str]], read: Reader) -> None:
    """Of torch: what has the parameter's shape is shared out as the parameter is."""
    parameters = _parameters(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for number, names in keys.items():
        holder, own = parameters[number], state.setdefault(number, {})
        for key in names:
            value = read(f"{number}.{key}")
            # Else a count, such as of steps.
            own[key] = parted(value, holder) if value.shape == holder.shape else value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@torch.no_grad()
def _fill(optimizer: Any, keys: dict[int, list[str]], read: Reader) -> None:
    """Of bitsandbytes: the state is made as before the first step, paged where it is, and filled.

    So nothing is held twice, and parameters go on sharing their maps.
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


def _filled(held: Any, value: Tensor, name: str) -> Any:
    if not isinstance(held, Tensor):
        return type(held)(value.item())  # steps, counted in a Python number
    if (held.shape, held.dtype) != (value.shape, value.dtype):
        raise ValueError(
            f"optimiser state {name}: expected {held.dtype} {[*held.shape]}, found {value.dtype} "
            f"{[*value.shape]}: another version of bitsandbytes wrote it"
        )
    return held.copy_(value)
