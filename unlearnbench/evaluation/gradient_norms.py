"""Norms of the gradient of an answer's loss, for membership inference (GradNorm).

For each example (1/P) Σ_p ‖∂/∂W_p (1/L) Σ_t −log p(y_t)‖₂ over the P weight tensors of the model
and the L answer tokens without the one that ends them: src/evals/metrics/mia/gradnorm.py of
locuslab/open-unlearning@d3d7cf9, after Wang et al. 2024, arXiv:2402.17012. Unlike there, the model
is in evaluation mode: dropout would draw other numbers each time.

All weights count, also those that a method has frozen, so that models compare. Of a LoRA model they
are the base's, whose gradient is that of the merged weights; the adapter's tensors do not count.
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


def gradient_norms(
    model: Any,
    rows: Sequence[tuple[Row, tuple[int, ...]]],
    precision: Precision | None = None,
    shifts: Shifts | None = None,
) -> FloatArray:
    """[n] the norm of each row, computed one at a time; NaN for an empty answer. Collective.

    rows    each with its prompt, whose embeddings `shifts` may shift

    Raises: EvaluationError for a sharded model; OutOfMemoryError in all processes.
    """
    if any(is_sharded(module) for module in model.modules()):
        raise EvaluationError(
            "gradient norms (metric mia-grad-norm) need whole weights in each process, and this "
            "model is sharded; set resources.parallel: ddp, or leave the metric out"
        )
    weights = {n: p for n, p in model.named_parameters() if p.is_floating_point()}
    weights = {name: p for name, p in weights.items() if _ADAPTER not in name}

    def norm(item: tuple[Row, tuple[int, ...]]) -> float:
        row, prompt = item
        labels = row.ids[row.start + row.label :]
        labels = labels[: len(labels) - row.end_tokens]
        if not labels:
            return np.nan
        first = row.start + row.label - 1  # predicts the first label
        with (
            _shifted(model, row, prompt, shifts),
            computing_in_precision(model, precision, gradients=True),
        ):
            return _norm(model, row, first, labels, [*weights.values()])

    with all_trained(weights.values()):
        return np.array(map_over_ranks(norm, rows), dtype=np.float64)


def _norm(
    model: Any, row: Row, first: int, labels: Sequence[int], weights: Sequence[Tensor]
) -> float:
    device, end = weights[0].device, first + len(labels)
    where = torch.arange(first, end, device=device)
    inputs: dict[str, Any] = {"input_ids": torch.tensor([row.ids[:end]], device=device)}
    if row.masked:
        seen = [[i not in row.masked for i in range(end)]]
        inputs["attention_mask"] = torch.tensor(seen, dtype=torch.long, device=device)
    logits, _ = predict(model, where, **inputs, use_cache=False)
    loss = nn.functional.cross_entropy(logits, torch.tensor(labels, device=device))
    # None for a weight that the loss does not depend on, which torch's types leave out.
    grads = torch.autograd.grad(loss, weights, allow_unused=True)
    result = cast("Sequence[Tensor | None]", grads)
    norms = [item.float().norm() for item in result if item is not None]
    return float(torch.stack(norms).mean())


def _shifted(model: Any, row: Row, prompt: tuple[int, ...], shifts: Shifts | None) -> Any:
    if shifts is None:
        return nullcontext()
    return shifts.added(model, [Span(prompt, 0, prompt_places(prompt, row.ids, row.masked))])
