"""The precision of an evaluation. Numbers can be compared only if they have the same precision.

Greedy answers change with the last digits of a logit, and float32 and bfloat16 differ by more than
some methods do. That is why the start model, the retain model and each run's models are evaluated
in one precision (`evaluation.precision`), in one process or several. Records and logs name it
together with the profile's id. Published logs name none: their precision is None, and they are
compared with all.

    float32                  products and sums of float32, without TF32: a CPU's numbers
    float32 under bfloat16   weights and sums between layers in float32, products in bfloat16
    bfloat16                 everything in bfloat16, as in TOFU and open-unlearning
    float32 under float16    like float32 under bfloat16, for GPUs without bfloat16 (T4, V100)
    float16                  everything in float16; a sum between layers above 65,504 is infinite

`bfloat16` and `float32 under bfloat16` cannot be compared. In bfloat16 the sum that runs through
the layers is rounded after each layer, and the two are as far apart as each is from float32 (1e-2
in a loss, with 16 random layers). Log-probabilities are always computed in float32 from the last
hidden states. There is no TF32, because bf16 is there for speed and fp32 for exact numbers.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.precision import DTYPES, Precision, products_dtype, resolve_precision


def needs_stored_weights(model: Any, precision: Precision | None, trained: Precision) -> bool:
    """Whether rounding the weights as training does would change an evaluation's numbers.

    Under autocast to the same dtype every product rounds the weights anyway.

    Args:
        model: The model.
        precision: The setting of the evaluation, see `resolve_precision`.
        trained: The precision of the training.

    Raises:
        EvaluationError: The model's weights cannot be evaluated in this precision.
    """
    return _products(model, precision) != DTYPES[trained]


def _products(model: Any, precision: Precision | None) -> str | None:
    """Return the dtype that autocast gives products; None if they have the weights' dtype."""
    device = next(model.parameters()).device.type
    return products_dtype(resolve_precision(device, _weights(model), precision))


@contextmanager
def computing_in_precision(
    model: Any, precision: Precision | None, *, gradients: bool = False
) -> Generator[None, None, None]:
    """Compute in the precision of an evaluation. An autocast around this context has no effect.

    Models are compared by their logits, which differ between precisions by more than some methods
    change them. So all models of a comparison are evaluated in one precision.

    Args:
        model: The model that computes.
        precision: `evaluation.precision` of the configuration. None: products have the dtype of the
            weights. See `resolve_precision` for what each device and dtype allows.
        gradients: Whether gradients are wanted, as for the observation `grad_norm`.

    Raises:
        EvaluationError: The model's weights cannot be evaluated in this precision.
    """
    import torch

    device = next(model.parameters()).device.type
    products = _products(model, precision)
    if gradients or products is None:
        mode = torch.enable_grad() if gradients else torch.inference_mode()
        with mode, _autocast(device, products):
            yield
        return
    # Autocast rounds each weight to the dtype of the products. It keeps the rounded copy for the
    # next product only if the weight takes a gradient, and never in inference mode. Without these
    # copies, all weights would be rounded again for every decoded token. So the weights take
    # gradients here, although `no_grad` computes none.
    cast_weights = [weight for weight in model.parameters() if weight.dtype == torch.float32]
    with all_trained(cast_weights), torch.no_grad(), _autocast(device, products):
        yield


@contextmanager
def all_trained(weights: Iterable[Any]) -> Generator[None, None, None]:
    """Let all weights take gradients inside the context."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _autocast(device: str, products: str | None) -> Any:
    """Return a context of autocast to the dtype with this name. None: autocast is off."""
    from contextlib import nullcontext

    import torch

    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    if products is None:
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, getattr(torch, products))


def precision_of_model(model: Any) -> str:
    """Return the precision in which a model computes now, such as `float32 under bfloat16`.

    Without autocast it is the dtype of most weights, such as `bfloat16`.
    """
    import torch

    device = next(model.parameters()).device.type
    weights = _weights(model)
    if torch.is_autocast_enabled(device):
        return f"{weights} under {_name(torch.get_autocast_dtype(device))}"
    return weights


def _weights(model: Any) -> str:
    """Return the stored dtype of most weights. Adapters and norms may have another one."""
    from unlearnbench.base.fsdp import stored_dtypes

    return _name(stored_dtypes(model).most_common(1)[0][0])


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def check_precision(first: str, precision: str | None, second: str, other: str | None) -> None:
    """Check that two evaluations are not known to have different precisions.

    Args:
        first: What was evaluated, for the message.
        precision: Its precision; None if it is not known.
        second: What else was evaluated.
        other: The precision of the other evaluation.

    Raises:
        EvaluationError: The precisions differ.
    """
    if precision and other and precision != other:
        raise EvaluationError(
            f"{first} is evaluated in {precision}, {second} in {other}: numbers of different "
            "precisions do not compare; use one `dtype` (--dtype) and one `evaluation.precision` "
            "(--precision), or another name for the model"
        )


def distinct_precisions(precisions: Iterable[str | None]) -> list[str]:
    """Return the known precisions, sorted, if there are several; otherwise an empty list."""
    distinct = sorted({precision for precision in precisions if precision})
    return distinct if len(distinct) > 1 else []
