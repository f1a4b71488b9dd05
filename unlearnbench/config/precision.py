"""Dtypes, precisions and templates to choose from, and the precision of an evaluation."""

from collections.abc import Mapping
from typing import Any, Literal

from unlearnbench.base.errors import EvaluationError

Dtype = Literal["float32", "bfloat16"]
Precision = Literal["bf16", "fp32"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Template = Literal["auto", "plain", "llama-2", "phi", "chat"]

DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "fp32": "float32"}
"""The dtype that each setting names."""
MIXED = "float32 under bfloat16"
"""Weights in float32, products in bfloat16: autocast."""


def resolve_precision(device: str, weights: str, precision: Precision | None) -> str:
    """The precision of an evaluation, as records name it.

    device     torch's name of the kind of device
    weights    their dtype
    precision  of the settings; default: bf16 on CUDA, else the weights' own
    Raises: EvaluationError where weights of that dtype cannot be evaluated so.
    """
    if weights == "float32" and (precision or ("bf16" if device == "cuda" else "fp32")) == "bf16":
        return MIXED
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
