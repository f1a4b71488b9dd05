"""Norms of the gradient of an answer's loss, for membership inference (GradNorm).

The norm of an example is

    (1/P) Σ_p ‖∂/∂W_p (1/L) Σ_t −log p(y_t)‖₂

over the P weight tensors W_p of the model and the L answer tokens y_t without those that end the
turn. Source: locuslab/open-unlearning@d3d7cf9:src/evals/metrics/mia/gradnorm.py, after Wang et al.
2024, arXiv:2402.17012. Unlike the source, the model is in evaluation mode, because dropout would
draw other numbers each time.

All weights count, also those that a method has frozen, so that models can be compared. In a LoRA
model only the base's weights count, because their gradient is the gradient of the merged weights.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.api.observations import FloatArray
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.fsdp import is_sharded
from unlearnbench.base.out_of_memory import map_over_ranks
from unlearnbench.config.precision import Precision
from unlearnbench.evaluation.precision import all_trained, computing_in_precision
from unlearnbench.models.forward import predict
from unlearnbench.models.prompt_shift import Shifts, Span, prompt_places
from unlearnbench.models.token_row import Row

_ADAPTER = "lora_"
"""Part of the names of an adapter's weights."""


def gradient_norms(
    model: Any,
    rows: Sequence[tuple[Row, tuple[int, ...]]],
    precision: Precision | None = None,
    shifts: Shifts | None = None,
) -> FloatArray:
    """Compute the norm of each row, one row at a time. Collective: all processes call it.

    Args:
        model: The model, in evaluation mode.
        rows: Rows, each with its prompt.
        precision: The setting of the evaluation, see `resolve_precision`.
        shifts: Shifts of the prompts' embeddings, if an inference-time method has any.

    Returns:
        Norms [n]; NaN for an empty answer.

    Raises:
        EvaluationError: The model is sharded.
        OutOfMemoryError: A process has too little memory. It is raised in all processes.
    """
    if any(is_sharded(module) for module in model.modules()):
        raise EvaluationError(
            "gradient norms (metric mia-grad-norm) need whole weights in each process, and this "
            "model is sharded; set resources.parallel: ddp, or leave the metric out"
        )
    weights = [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and _ADAPTER not in name
    ]

    def norm(row_and_prompt: tuple[Row, tuple[int, ...]]) -> float:
        row, prompt = row_and_prompt
        with (
            _shifted(model, row, prompt, shifts),
            computing_in_precision(model, precision, gradients=True),
        ):
            return _norm(model, row, weights)

    with all_trained(weights):
        return np.array(map_over_ranks(norm, rows), dtype=np.float64)


def _norm(model: Any, row: Row, weights: Sequence[Tensor]) -> float:
    """Compute the norm of a row; NaN if its answer is empty."""
    first_label = row.start + row.label
    labels = row.ids[first_label:]
    labels = labels[: len(labels) - row.end_tokens]
    if not labels:
        return np.nan
    device = weights[0].device
    # The token at t is predicted at t − 1, so nothing has to read the last label.
    first = first_label - 1
    end = first + len(labels)
    where = torch.arange(first, end, device=device)
    inputs: dict[str, Any] = {"input_ids": torch.tensor([row.ids[:end]], device=device)}
    if row.masked:
        is_visible = [[index not in row.masked for index in range(end)]]
        inputs["attention_mask"] = torch.tensor(is_visible, dtype=torch.long, device=device)
    logits, _ = predict(model, where, **inputs, use_cache=False)
    loss = nn.functional.cross_entropy(logits, torch.tensor(labels, device=device))
    # A gradient is None if the loss does not depend on the weight. torch's types do not say so.
    gradients = cast(
        "Sequence[Tensor | None]", torch.autograd.grad(loss, weights, allow_unused=True)
    )
    norms = [gradient.float().norm() for gradient in gradients if gradient is not None]
    return float(torch.stack(norms).mean())


def _shifted(model: Any, row: Row, prompt: tuple[int, ...], shifts: Shifts | None) -> Any:
    """Return a context in which the prompt's embeddings are shifted."""
    if shifts is None:
        return nullcontext()
    return shifts.added(model, [Span(prompt, 0, prompt_places(prompt, row.ids, row.masked))])
