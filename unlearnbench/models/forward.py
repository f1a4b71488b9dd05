"""Forward passes that compute logits only where something is predicted.

A hook in front of the output layer picks the positions, so that this works for every causal LM
whose forward ends in `get_output_embeddings()`, and under the wrappers of data parallelism, and no
[batch, length, vocabulary] tensor is made.
"""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.errors import ModelError


@contextmanager
def _at(
    model: nn.Module, where: Tensor, taken: list[Tensor], logits: int | None = None
) -> Generator[None, None, None]:
    inner: Any = getattr(model, "module", model)

    def pick(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        taken.append(inputs[0][where])
        return (taken[0][:logits], *inputs[1:])

    handle = inner.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def predict(model: nn.Module, where: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Run the model and predict the next token at the positions `where` [B, T].

    Returns logits [N, V] in float32 at least, and the final hidden states [N, H] they come from.
    """
    taken: list[Tensor] = []
    with _at(model, where, taken):
        output = model(**inputs)
    return _precise(output.logits), taken[0]


def final_states(model: nn.Module, where: Tensor, **inputs: Any) -> Tensor:
    """Run the model as far as its output layer.

    Returns the hidden states [N, H] at the positions `where` [B, T], for an `OutputLayer`.
    """
    taken: list[Tensor] = []
    # One position goes on: no model has to cope with an output layer that is given nothing.
    with _at(model, where, taken, logits=1):
        model(**inputs)
    return taken[0]


def _precise(logits: Tensor) -> Tensor:
    # A log-softmax over a large vocabulary loses digits in bf16; float64 stays for the tests.
    return logits if logits.dtype == torch.float64 else logits.float()


class OutputLayer:
    """The model's map from final hidden states to logits, apart from the model.

    Serves as the frozen start model's last layer (distributions are kept as hidden states, which
    are far smaller than logits), and the evaluation, which computes logits a chunk at a time.
    Scaling and soft-capping of the known architectures are applied.
    """

    def __init__(self, model: Any, *, copied: bool = True) -> None:
        """`copied`: with weights of its own, for a model that goes away or is trained further."""
        layer = model.get_output_embeddings()
        self.layer: Any = copy.deepcopy(layer).requires_grad_(False) if copied else layer
        config = model.config.get_text_config()
        # Cohere multiplies, Granite divides; Gemma caps.
        self.scale = float(getattr(config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)
        self.check(model)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] in float32 at least of hidden states [N, H]."""
        logits = _precise(self.layer(hidden.to(self.layer.weight.dtype)))
        logits = logits * self.scale if self.scale != 1 else logits
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits

    @torch.no_grad()
    def check(self, model: Any) -> None:
        """Raise ModelError unless `model` turns hidden states into the same logits."""
        # Not id 0: it is padding in many models, embedded as zeros, and says nothing.
        weight = self.layer.weight
        ids = torch.arange(1, 6, device=weight.device).unsqueeze(0) % len(weight)
        was_training = model.training
        model.eval()
        logits, hidden = predict(model, torch.ones_like(ids, dtype=torch.bool), input_ids=ids)
        model.train(was_training)
        # Half precision leaves logits wrong by a part of the largest; equal weights leave no more.
        near = 1e-2 if weight.dtype in (torch.bfloat16, torch.float16) else 1e-5
        largest = float(logits[logits.isfinite()].abs().amax()) if logits.isfinite().any() else 0.0
        same = torch.allclose(self(hidden), logits, rtol=near, atol=near * largest, equal_nan=True)
        if not same:
            raise ModelError(
                f"{type(model).__name__} changes its logits after the output layer in a way that "
                "is not known here, so a reference distribution (kl) would be wrong; "
                "use retain term nll, or a method without distributions"
            )
