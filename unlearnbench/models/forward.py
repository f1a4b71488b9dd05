"""Forward passes that compute logits only where something is predicted.

A hook in front of the output layer selects the positions. It works for every causal LM whose
forward ends in `get_output_embeddings()`, also inside the wrappers of data parallelism, and no
[batch, length, vocabulary] tensor is made.
"""

import copy
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.losses.lm_head import Projection, at_least_fp32
from unlearnbench.models.device import is_half


@contextmanager
def _selecting(
    model: nn.Module, where: Tensor, states: list[Tensor], logits: int | None = None
) -> Generator[None, None, None]:
    """Put the states [N, H] at `where` into `states`; the first `logits` go to the output layer."""
    inner: Any = getattr(model, "module", model)

    def pick(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(_chosen(inputs[0], where))
        return (states[0][:logits], *inputs[1:])

    handle = inner.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def _chosen(states: Tensor, where: Tensor) -> Tensor:
    """[N, ·] of states [B, T, ·]; with indices, nothing waits for a GPU to count a mask."""
    if where.dtype == torch.bool:
        where = where.flatten().nonzero().squeeze(1)
    return states.flatten(0, 1).index_select(0, where)


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [B, T] of rows of ids, padded on the right."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, (torch.arange(width, device=device) < lengths.unsqueeze(1)).long()


def predict(model: nn.Module, where: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Predict the next token at `where`: a mask [B, T], or indices [N] into B · T.

    Returns logits [N, V] in float32 at least, and the final hidden states [N, H] they come from.
    """
    states: list[Tensor] = []
    with _selecting(model, where, states):
        output = model(**inputs)
    return at_least_fp32(output.logits), states[0]


def hidden_states(
    model: nn.Module, where: Tensor, layers: Collection[int] = (), **inputs: Any
) -> tuple[Tensor, dict[int, Tensor]]:
    """Run the model up to its output layer.

    Returns the final hidden states [N, H] at `where`, see `predict`, for an `OutputLayer`, and
    those [N, D] after each of the decoder layers `layers`, from 1 (after the last: normed).
    """
    states: list[Tensor] = []
    # One position goes on, so that no output layer has to accept an empty input.
    with _selecting(model, where, states, logits=1):
        output = model(**inputs, output_hidden_states=bool(layers))
    if layers and output.hidden_states is None:
        raise TrainingError(
            f"{type(model).__name__} does not return its hidden states, which the method reads"
        )
    depth = len(output.hidden_states) - 1 if layers else 0
    for layer in layers:
        if not 1 <= layer <= depth:
            raise TrainingError(
                f"the method reads hidden states after layer {layer}, but {type(model).__name__} "
                f"has layers 1 to {depth}; set the method's `layer` to one of these"
            )
    return states[0], {layer: _chosen(output.hidden_states[layer], where) for layer in layers}


def final_states(model: nn.Module, where: Tensor, **inputs: Any) -> Tensor:
    """Final hidden states [N, H] at `where`, see `predict`, for an `OutputLayer`."""
    return hidden_states(model, where, **inputs)[0]


class OutputLayer:
    """The model's map from final hidden states to logits, usable without the model.

    For chunked losses, the start model's distributions (stored as hidden states, which are far
    smaller than logits), and the evaluation. Applies scaling and soft-capping of the known
    architectures. Raises: ModelError where the model's own logits differ.
    """

    def __init__(self, model: Any, *, copied: bool = True) -> None:
        """`copied`: with its own weights, for a model that is deleted or trained further."""
        layer = model.get_output_embeddings()
        if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
            raise _unknown(model)  # an adapter or a quantised layer computes something else
        self.layer: Any = copy.deepcopy(layer).requires_grad_(False) if copied else layer
        config = model.config.get_text_config()
        # Cohere multiplies, Granite divides; Gemma caps.
        self.scale = float(getattr(config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)
        self.check(model)

    @property
    def projection(self) -> Projection:
        """The weights as they are now."""
        if hasattr(self.layer, "unshard"):
            self.layer.unshard()  # FSDP2 has given them back after the layer's own forward pass
        return Projection(self.layer.weight, self.layer.bias, self.scale, self.cap)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] in float32 at least of hidden states [N, H]."""
        return self.projection(hidden)

    @torch.no_grad()
    def check(self, model: Any) -> None:
        """Raise ModelError unless `model` turns hidden states into the same logits."""
        # Not id 0: it is padding in many models and embedded as zeros, which shows no difference.
        weight = self.layer.weight
        ids = torch.arange(1, 6, device=weight.device).unsqueeze(0) % len(weight)
        was_training = model.training
        model.eval()
        logits, hidden = predict(model, torch.ones_like(ids, dtype=torch.bool), input_ids=ids)
        model.train(was_training)
        # In half precision, rounding errors of logits are proportional to the largest one.
        near = 1e-2 if is_half(weight) else 1e-5
        largest = float(logits[logits.isfinite()].abs().amax()) if logits.isfinite().any() else 0.0
        own = self(hidden).to(logits.dtype)  # Mamba returns float32 whatever its weights are
        same = torch.allclose(own, logits, rtol=near, atol=near * largest, equal_nan=True)
        if not same:
            raise _unknown(model)


def _unknown(model: Any) -> ModelError:
    return ModelError(
        f"{type(model).__name__} computes its logits in an unknown way, so a reference "
        "distribution (kl) would be wrong; use retain term nll, or a method without distributions"
    )


def projected(
    model: Any, output: OutputLayer | None, where: Tensor, layers: Collection[int], **inputs: Any
) -> tuple[Tensor, dict[int, Tensor], Projection]:
    """Final and inner hidden states at `where`, and the map to logits.

    Where the output layer is of an unknown kind, the «hidden states» are the model's logits.
    """
    if output is not None:
        hidden, states = hidden_states(model, where, layers, **inputs)
        return hidden, states, output.projection
    if layers:
        raise ModelError(
            f"{type(model).__name__} computes its logits in an unknown way, "
            "so its inner hidden states are not read either; use a method without them"
        )
    return predict(model, where, **inputs)[0], {}, Projection(None)
