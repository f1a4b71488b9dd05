"""In which precision a model was evaluated; part of what numbers must share to be compared.

Greedy answers change with the last digits of a logit: float32 and bfloat16 differ by more than some
methods do. The precision is a fact of the model that is evaluated, not one of a profile's rules, so
it stands beside the profile's id. None is not known, as in published logs, and compares with all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from unlearnbench.errors import EvaluationError


def precision_of_model(model: Any) -> str:
    """`bfloat16`: of most weights; `float32 under bfloat16` where autocast is on."""
    import torch

    sizes: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            sizes[parameter.dtype] += parameter.numel()
    device = next(model.parameters()).device.type
    weights = _name(sizes.most_common(1)[0][0])
    if torch.is_autocast_enabled(device):
        return f"{weights} under {_name(torch.get_autocast_dtype(device))}"
    return weights


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def precision_of_spec(spec: Mapping[str, Any]) -> str | None:
    """What the settings of a run, or of an anchor, say: `evaluation.precision`, else the dtype.

    None where they say neither.
    """
    evaluation, model = spec.get("evaluation"), spec.get("model")
    own = evaluation.get("precision") if isinstance(evaluation, Mapping) else None
    dtype = model.get("dtype") if isinstance(model, Mapping) else None
    return own or (dtype if isinstance(dtype, str) else None)


def check_precision(first: str, precision: str | None, second: str, other: str | None) -> None:
    """Raise EvaluationError where two evaluations are known to be of different precisions."""
    if precision and other and precision != other:
        raise EvaluationError(
            f"{first} is evaluated in {precision}, {second} in {other}: numbers of different "
            "precisions do not compare; use one `dtype` (--dtype), or another name for the model"
        )


def several(precisions: Iterable[str | None]) -> list[str]:
    """The known precisions, sorted, where there is more than one; else nothing."""
    known = sorted({one for one in precisions if one})
    return known if len(known) > 1 else []
