"""Forward passes that compute logits only at some positions.

A hook in front of the output layer selects the positions, so that no tensor [batch, length,
vocabulary] is made. It works for every causal LM whose forward pass ends in
`get_output_embeddings()`, also inside the wrappers of data parallelism.

Symbols: B texts of T tokens, N positions, H hidden size, D size of a decoder layer's states,
V vocabulary entries.
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
    model: nn.Module, where: Tensor | None, states: list[Tensor], logit_count: int | None = None
) -> Generator[None, None, None]:
    """Give the output layer only the states of some positions.

    Args:
        model: The model, or a wrapper around it.
        where: The N positions, see `hidden_states`.
        states: Gets the states [N, H] at these positions.
        logit_count: How many of these states go to the output layer; None for all.
    """
    inner: Any = getattr(model, "module", model)

    def select(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        states.append(_states_at(inputs[0], where))
        return (states[0][:logit_count], *inputs[1:])

    handle = inner.get_output_embeddings().register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


def _states_at(states: Tensor, where: Tensor | None) -> Tensor:
    """Return the states [N, ·] at some positions of states [B, T, ·], see `hidden_states`."""
    if where is None:
        return states.flatten(0, 1)
    # Indices are better than a mask on a GPU: nothing waits for it to count the mask.
    if where.dtype == torch.bool:
        where = where.flatten().nonzero().squeeze(1)
    return states.flatten(0, 1).index_select(0, where)


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and attention mask [B, T] of rows of ids, padded on the right with `pad`."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = torch.arange(width, device=device) < lengths.unsqueeze(1)
    return ids, mask.long()


def predict(model: nn.Module, where: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
    """Predict the next token at some positions.

    Args:
        model: The model.
        where: The N positions: a mask [B, T], or indices [N] into the B · T tokens.
        **inputs: Keyword arguments of the model.

    Returns:
        Logits [N, V] in float32 at least, and the final hidden states [N, H] that they come from.
    """
    states: list[Tensor] = []
    with _selecting(model, where, states):
        output = model(**inputs)
    return at_least_fp32(output.logits), states[0]


def hidden_states(
    model: nn.Module, where: Tensor | None, layers: Collection[int] = (), **inputs: Any
) -> tuple[Tensor, dict[int, Tensor]]:
    """Run the model up to its output layer.

    Args:
        model: The model.
        where: The N positions, see `predict`. None: all B · T tokens.
        layers: Decoder layers, counted from 1, whose states are wanted.
        **inputs: Keyword arguments of the model.

    Returns:
        The final hidden states [N, H], for an `OutputLayer`, and by layer the states [N, D] after
        it. Those after the last layer are normed.

    Raises:
        TrainingError: The model does not have or return the states of a layer.
    """
    states: list[Tensor] = []
    # One position goes on to the output layer, so that it need not accept an empty input.
    with _selecting(model, where, states, logit_count=1):
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
    return states[0], {layer: _states_at(output.hidden_states[layer], where) for layer in layers}


def final_states(model: nn.Module, where: Tensor, **inputs: Any) -> Tensor:
    """Return the final hidden states [N, H] at `where`, see `predict`, for an `OutputLayer`."""
    return hidden_states(model, where, **inputs)[0]


class OutputLayer:
    """The model's map from final hidden states to logits, usable without the model.

    It serves chunked losses, the evaluation, and the start model's distributions, which are stored
    as hidden states because these are far smaller than logits. It applies the scaling and
    soft-capping of known architectures.
    """

    def __init__(self, model: Any, *, copied: bool = True) -> None:
        """Take the output layer of a model.

        Args:
            model: The model.
            copied: Whether the layer gets its own weights, for a model that is deleted or trained
                further.

        Raises:
            ModelError: The model computes its logits in another way.
        """
        layer = model.get_output_embeddings()
        if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
            raise _unknown(model)  # an adapter or a quantised layer computes something else
        self.layer: Any = copy.deepcopy(layer).requires_grad_(False) if copied else layer
        config = model.config.get_text_config()
        # Cohere multiplies logits, Granite divides them, and Gemma caps them.
        self.scale = float(getattr(config, "logit_scale", None) or 1.0)
        self.scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)
        self.check(model)

    @property
    def projection(self) -> Projection:
        """The weights as they are now."""
        if hasattr(self.layer, "unshard"):
            self.layer.unshard()  # FSDP2 has freed them after the layer's own forward pass
        return Projection(self.layer.weight, self.layer.bias, self.scale, self.cap)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute logits [N, V], in float32 at least, from hidden states [N, H]."""
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
        tolerance = 1e-2 if is_half(weight) else 1e-5
        finite = logits[logits.isfinite()]
        largest = float(finite.abs().amax()) if len(finite) else 0.0
        own = self(hidden).to(logits.dtype)  # Mamba returns float32 whatever its weights are
        are_equal = torch.allclose(
            own, logits, rtol=tolerance, atol=tolerance * largest, equal_nan=True
        )
        if not are_equal:
            raise _unknown(model)


def _unknown(model: Any) -> ModelError:
    return ModelError(
        f"{type(model).__name__} computes its logits in an unknown way, so a reference "
        "distribution (kl) would be wrong; use retain term nll, or a method without distributions"
    )


def projected(
    model: Any, output: OutputLayer | None, where: Tensor, layers: Collection[int], **inputs: Any
) -> tuple[Tensor, dict[int, Tensor], Projection]:
    """Run the model up to its output layer, if that layer is known, and otherwise to its logits.

    Args:
        model: The model.
        output: Its output layer; None if it is of an unknown kind.
        where: The N positions, see `predict`.
        layers: Decoder layers whose states are wanted, see `hidden_states`.
        **inputs: Keyword arguments of the model.

    Returns:
        Final hidden states, the states by layer, and the map from final hidden states to logits.
        With an unknown output layer, the logits take the place of the final hidden states, and
        the map changes nothing.

    Raises:
        ModelError: Layers are wanted from a model with an unknown output layer.
    """
    if output is not None:
        hidden, states = hidden_states(model, where, layers, **inputs)
        return hidden, states, output.projection
    if layers:
        raise ModelError(
            f"{type(model).__name__} computes its logits in an unknown way, "
            "so its inner hidden states are not read either; use a method without them"
        )
    logits, _ = predict(model, where, **inputs)
    return logits, {}, Projection(None)
