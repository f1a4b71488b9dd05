"""Forward passes that compute logits only where something is predicted.

A hook in front of the output layer picks the positions, so that this works for every causal LM
whose forward ends in `get_output_embeddings()`, and under the wrappers of data parallelism, and no
[batch, length, vocabulary] tensor is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.errors import ModelError


@contextmanager
def _at(model: nn.Module, where: Tensor, taken: list[Tensor]) -> Iterator[None]:
    inner: Any = getattr(model, "module", model)

    def pick(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken.append(inputs[0][where])
        return (taken[0], *inputs[1:])

    handle = inner.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def predict(model: nn.Module, where: Tensor, **inputs: Any) -> tuple[Tensor, Tensor, Any]:
    """Run the model and predict the next token at the positions `where` [B, T].

    Returns logits [N, V] in float32, the final hidden states [N, H] they come from, and the
    key-value cache (None unless `use_cache`).
    """
    taken: list[Tensor] = []
    with _at(model, where, taken):
        output = model(**inputs)
    return output.logits.float(), taken[0], output.past_key_values


class OutputLayer:
    """The model's map from final hidden states to logits, apart from the model.

    Serves as the frozen start model's last layer: distributions are kept as hidden states, which
    are far smaller than logits. Scaling and soft-capping of the known architectures are applied.
    """

    def __init__(self, model: Any) -> None:
        layer = model.get_output_embeddings()
        self.weight: Tensor = layer.weight.detach().clone()
        bias = getattr(layer, "bias", None)
        self.bias: Tensor | None = None if bias is None else bias.detach().clone()
        config = model.config.get_text_config()
        # Cohere multiplies, Granite divides; Gemma caps.
        self.scale = float(getattr(config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._check(model)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] in float32 of hidden states [N, H]."""
        logits = nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias).float()
        logits = logits * self.scale if self.scale != 1 else logits
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    @torch.no_grad()
    def _check(self, model: Any) -> None:
        ids = torch.zeros((1, 2), dtype=torch.long, device=self.weight.device)
        was_training = model.training
        model.eval()
        logits, hidden, _ = predict(model, torch.ones_like(ids, dtype=torch.bool), input_ids=ids)
        model.train(was_training)
        if not torch.allclose(self(hidden), logits, rtol=1e-3, atol=1e-3):
            raise ModelError(
                f"{type(model).__name__} changes its logits after the output layer in a way that "
                "is not known here, so a reference distribution (kl) would be wrong; "
                "use retain term nll, or a method without distributions"
            )
