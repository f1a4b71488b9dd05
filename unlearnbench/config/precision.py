"""Dtypes, precisions and templates to choose from, and the precision of an evaluation."""

from collections.abc import Mapping
from typing import Any, Literal

from unlearnbench.base.errors import EvaluationError

Dtype = Literal["float32", "bfloat16", "float16"]
Precision = Literal["bf16", "fp16", "fp32"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Template = Literal["auto", "plain", "llama-2", "phi", "chat"]

DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""The dtype that each setting names."""
_UNDER = " under "
FLOAT16_IS_NOT_TRAINED = (
    "weights of float16 cannot be trained, because updates below their last digit are lost and "
    "gradients leave their range; set dtype: float32 and training.precision: fp16, which computes "
    "products in float16, or train adapters (`lora`) with training.precision: fp16"
)


def products_dtype(precision: str) -> str | None:
    """The dtype of products that differs from that of the weights; None if there is none.

    Args:
        precision: Precision of an evaluation, such as `float32 under bfloat16`.
    """
    _, under, products = precision.partition(_UNDER)
    return products if under else None


def resolve_precision(device: str, weights: str, precision: Precision | None) -> str:
    """The precision of an evaluation, as records name it.

    device     torch's name of the kind of device
    weights    their dtype
    precision  of the settings; default: bf16 on CUDA, else the weights' own
    Raises: EvaluationError where weights of that dtype cannot be evaluated so.
    """
    chosen = precision or ("bf16" if device == "cuda" else "fp32")
    if weights == "float32" and chosen != "fp32":
        return f"{weights}{_UNDER}{DTYPES[chosen]}"
    if precision is None or DTYPES[precision] == weights:
        return weights
    raise EvaluationError(
        f"precision {precision}: the weights are {weights}, and it would lose or invent digits; "
        "set the model's dtype to float32, or leave the precision of its evaluation out"
    )


def precision_of_spec(spec: Mapping[str, Any], device: str = "cpu") -> str | None:
    """The precision that the settings of a run or of a prepared model lead to on a device.

    None where they name neither `evaluation.precision` nor the model's dtype.
    """
    evaluation, model = spec.get("evaluation"), spec.get("model")
    part: Any = evaluation.get("precision") if isinstance(evaluation, Mapping) else None
    dtype = model.get("dtype") if isinstance(model, Mapping) else None
    if part not in DTYPES and part is not None:
        return str(part)  # ids of runs that were trained in bf16 have the dtype of their weights
    if isinstance(dtype, str):
        return resolve_precision(device, dtype, part)
    return None if part is None else DTYPES[part]
