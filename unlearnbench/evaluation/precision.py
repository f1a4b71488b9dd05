"""The precision of an evaluation, which numbers must share to be compared.

Greedy answers change with the last digits of a logit: float32 and bfloat16 differ by more than some
methods do. So the start model, the retain model and each run's models are evaluated in one
precision (`evaluation.precision`), in one process or several, and records and logs name it with the
profile's id. None is unknown, as in published logs, and compares with all.

    float32                  products and sums of float32, without TF32: a CPU's numbers
    float32 under bfloat16   weights and sums between layers in float32, products in bfloat16
    bfloat16                 all in bfloat16, as in TOFU and open-unlearning
    float32 under float16    as above, for GPUs without bfloat16 (T4, V100)
    float16                  all in float16; a sum between layers above 65,504 is infinite

The two of bfloat16 do not compare: in bfloat16 the sum that runs through the layers is rounded
after each of them, and the two are as far apart as each is from float32 (1e-2 in a loss, at 16
random layers). Log-probabilities are computed in float32 from the last hidden states, always.
TF32 is left out: bf16 is there for speed, and fp32 to be exact.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.precision import DTYPES, Precision, products_dtype, resolve_precision


def needs_stored_weights(model: Any, precision: Precision | None, trained: Precision) -> bool:
    """True if rounding the weights as training does would change an evaluation's numbers.

    Under autocast to the same dtype every product rounds them anyway. Raises: EvaluationError.
    """
    return _products(model, precision) != DTYPES[trained]


def _products(model: Any, precision: Precision | None) -> str | None:
    """The dtype that autocast gives products; None if they have that of the weights."""
    device = next(model.parameters()).device.type
    return products_dtype(resolve_precision(device, _weights(model), precision))


@contextmanager
def computing_in_precision(
    model: Any, precision: Precision | None, *, gradients: bool = False
) -> Generator[None, None, None]:
    """Compute in `precision`, as `resolve_precision` resolves it for `model`.

    gradients  of the computation are wanted

    An autocast around it has no effect. Raises: EvaluationError.
    """
    import torch

    device = next(model.parameters()).device.type
    products = _products(model, precision)
    if gradients or products is None:
        mode = torch.enable_grad() if gradients else torch.inference_mode()
        with mode, _autocast(device, products):
            yield
        return
    # Autocast caches its copies only of leaves that take a gradient, and not in inference mode.
    # Without the cache all weights would be cast again for every decoded token.
    stored = [p for p in model.parameters() if p.dtype == torch.float32]
    with all_trained(stored), torch.no_grad(), _autocast(device, products):
        yield


@contextmanager
def all_trained(weights: Iterable[Any]) -> Generator[None, None, None]:
    """Let all weights take gradients."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    try:
        for item in frozen:
            item.requires_grad_(True)
        yield
    finally:
        for item in frozen:
            item.requires_grad_(False)


def _autocast(device: str, products: str | None) -> Any:
    """Autocast to the dtype of that name; switched off without one."""
    from contextlib import nullcontext

    import torch

    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    if products is None:
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, getattr(torch, products))


def precision_of_model(model: Any) -> str:
    """The dtype of most weights, `bfloat16`; with autocast on, `float32 under bfloat16`."""
    import torch

    device = next(model.parameters()).device.type
    weights = _weights(model)
    if torch.is_autocast_enabled(device):
        return f"{weights} under {_name(torch.get_autocast_dtype(device))}"
    return weights


def _weights(model: Any) -> str:
    """The stored dtype of most weights; adapters and norms may have another."""
    from unlearnbench.base.fsdp import stored_dtypes

    return _name(stored_dtypes(model).most_common(1)[0][0])


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def check_precision(first: str, precision: str | None, second: str, other: str | None) -> None:
    """Raise EvaluationError where two evaluations are known to be of different precisions."""
    if precision and other and precision != other:
        raise EvaluationError(
            f"{first} is evaluated in {precision}, {second} in {other}: numbers of different "
            "precisions do not compare; use one `dtype` (--dtype) and one `evaluation.precision` "
            "(--precision), or another name for the model"
        )


def distinct_precisions(precisions: Iterable[str | None]) -> list[str]:
    """The known precisions, sorted, where there is more than one; else nothing."""
    distinct = sorted({precision for precision in precisions if precision})
    return distinct if len(distinct) > 1 else []
