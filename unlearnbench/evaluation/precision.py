"""In which precision a model is evaluated; part of what numbers must share to be compared.

Greedy answers change with the last digits of a logit: float32 and bfloat16 differ by more than some
methods do. So a fine-tuned model, a retain model and what a run made of it are evaluated in one
precision (`evaluation.precision`), in one process or several, and its name stands beside the
profile's id in records and logs. None is not known, as in published logs, and compares with all.

    float32                  products and sums of float32, without TF32: a CPU's numbers
    float32 under bfloat16   weights and sums between layers in float32, products in bfloat16
    bfloat16                 all in bfloat16, as in TOFU and open-unlearning

The last two do not compare: in bfloat16 the sum that runs through the layers is rounded after each
of them, and the two are as far apart as each is from float32 (1e-2 in a loss, at 16 random layers).
TF32 would be one more, of 10 bits: where speed counts there is bf16, and fp32 is there to be exact.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from unlearnbench.errors import EvaluationError
from unlearnbench.settings import Precision

_DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "fp32": "float32"}
_MIXED = "float32 under bfloat16"


def precision_on(device: str, weights: str, precision: Precision | None) -> str:
    """The precision of an evaluation, as records name it.

    device     torch's name of the kind of device
    weights    their dtype
    precision  what the settings ask for; default: bf16 on CUDA, else the weights' own
    Raises: EvaluationError where weights of that dtype cannot be evaluated so.
    """
    if weights == "float32" and (precision or ("bf16" if device == "cuda" else "fp32")) == "bf16":
        return _MIXED
    if precision is None or _DTYPES[precision] == weights:
        return weights
    raise EvaluationError(
        f"precision {precision}: the weights are {weights}, whose digits it would lose or make up; "
        "set the model's dtype to float32, or leave the precision of its evaluation out"
    )


def needs_stored_weights(model: Any, precision: Precision | None) -> bool:
    """Whether weights that are rounded to bfloat16 would change an evaluation's numbers.

    Under autocast every product has them so anyway. Raises: EvaluationError.
    """
    device = next(model.parameters()).device.type
    return precision_on(device, _weights(model), precision) != _MIXED


@contextmanager
def computing_in(model: Any, precision: Precision | None) -> Generator[None, None, None]:
    """Compute without gradients in `precision`, as `precision_on` resolves it for `model`.

    Whatever autocast is on around it counts for nothing. Raises: EvaluationError.
    """
    import torch

    device = next(model.parameters()).device.type
    if needs_stored_weights(model, precision):
        with torch.inference_mode(), _autocast(device, enabled=False):
            yield
        return
    # Autocast keeps what it has cast only of leaves that take a gradient, and not in inference
    # mode: else all weights would be cast again for every token that is decoded.
    frozen = [p for p in model.parameters() if not p.requires_grad and p.dtype == torch.float32]
    try:
        for parameter in frozen:
            parameter.requires_grad_(True)
        with torch.no_grad(), _autocast(device, enabled=True):
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def _autocast(device: str, *, enabled: bool) -> Any:
    from contextlib import nullcontext

    import torch

    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, torch.bfloat16, enabled=enabled)


def precision_of_model(model: Any) -> str:
    """`bfloat16`: of most weights; `float32 under bfloat16` where autocast is on."""
    import torch

    device = next(model.parameters()).device.type
    weights = _weights(model)
    if torch.is_autocast_enabled(device):
        return f"{weights} under {_name(torch.get_autocast_dtype(device))}"
    return weights


def _weights(model: Any) -> str:
    """The dtype of most weights, as they are stored: adapters and norms may have another."""
    from unlearnbench.sharding import stored_dtypes

    return _name(stored_dtypes(model).most_common(1)[0][0])


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def precision_of_spec(spec: Mapping[str, Any], device: str = "cpu") -> str | None:
    """The precision that the settings of a run, or of an anchor, lead to on a kind of device.

    None where they name neither `evaluation.precision` nor the model's dtype.
    """
    evaluation, model = spec.get("evaluation"), spec.get("model")
    own: Any = evaluation.get("precision") if isinstance(evaluation, Mapping) else None
    dtype = model.get("dtype") if isinstance(model, Mapping) else None
    if own not in _DTYPES and own is not None:
        return str(own)  # in ids of runs that were trained in bf16: the dtype of their weights
    if isinstance(dtype, str):
        return precision_on(device, dtype, own)
    return None if own is None else _DTYPES[own]


def check_precision(first: str, precision: str | None, second: str, other: str | None) -> None:
    """Raise EvaluationError where two evaluations are known to be of different precisions."""
    if precision and other and precision != other:
        raise EvaluationError(
            f"{first} is evaluated in {precision}, {second} in {other}: numbers of different "
            "precisions do not compare; use one `dtype` (--dtype) and one `evaluation.precision` "
            "(--precision), or another name for the model"
        )


def several(precisions: Iterable[str | None]) -> list[str]:
    """The known precisions, sorted, where there is more than one; else nothing."""
    known = sorted({one for one in precisions if one})
    return known if len(known) > 1 else []
