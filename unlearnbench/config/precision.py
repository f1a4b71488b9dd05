"""Dtypes, precisions and templates to choose from, and the precision of an evaluation."""

from collections.abc import Mapping
from typing import Any, Literal

from unlearnbench.base.errors import EvaluationError

Dtype = Literal["float32", "bfloat16", "float16"]
Precision = Literal["bf16", "fp16", "fp32"]
Attention = Literal["sdpa", "eager", "flash_attention_2"]
Template = Literal["auto", "plain", "llama-2", "phi", "chat"]

DTYPES: Mapping[Precision, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Dtypes by the setting that names them."""
_UNDER = " under "
"""Joins the dtypes of weights and products: `float32 under bfloat16`."""
FLOAT16_IS_NOT_TRAINED = (
    "weights of float16 cannot be trained, because updates below their last digit are lost and "
    "gradients leave their range; set dtype: float32 and training.precision: fp16, which computes "
    "products in float16, or train adapters (`lora`) with training.precision: fp16"
)


def products_dtype(precision: str) -> str | None:
    """Return the dtype of products; None if it is the dtype of the weights.

    Args:
        precision: Precision of an evaluation, such as `float32 under bfloat16`.
    """
    _, under, products = precision.partition(_UNDER)
    return products if under else None


def resolve_precision(device: str, weights: str, precision: Precision | None) -> str:
    """Return the precision of an evaluation, as records name it.

    Args:
        device: Kind of device, by its name in torch: `cuda`, `cpu`.
        weights: Dtype of the weights.
        precision: Precision that the settings state. None: bf16 on CUDA, and the dtype of the
            weights elsewhere.

    Returns:
        `float32 under bfloat16` for autocast, or only the dtype of the weights.

    Raises:
        EvaluationError: Weights of this dtype cannot be evaluated in the stated precision.
    """
    of_products = precision or ("bf16" if device == "cuda" else "fp32")
    if weights == "float32" and of_products != "fp32":
        return f"{weights}{_UNDER}{DTYPES[of_products]}"
    if precision is None or DTYPES[precision] == weights:
        return weights
    raise EvaluationError(
        f"precision {precision}: the weights are {weights}, and it would lose or invent digits; "
        "set the model's dtype to float32, or leave the precision of its evaluation out"
    )


def precision_of_spec(spec: Mapping[str, Any], device: str = "cpu") -> str | None:
    """Return the precision to which the stored settings of a run or a prepared model lead.

    Args:
        spec: The settings, or the entries of an id.
        device: Kind of device, by its name in torch.

    Returns:
        A text as from `resolve_precision`. None if the settings state neither
        `evaluation.precision` nor the model's dtype.
    """
    evaluation = spec.get("evaluation")
    precision: Any = evaluation.get("precision") if isinstance(evaluation, Mapping) else None
    model = spec.get("model")
    dtype = model.get("dtype") if isinstance(model, Mapping) else None
    if precision is not None and precision not in DTYPES:
        # In ids of runs that were trained in bf16, the dtype of the weights stands there.
        return str(precision)
    if isinstance(dtype, str):
        return resolve_precision(device, dtype, precision)
    return None if precision is None else DTYPES[precision]
