"""Models with shifted embeddings of their prompts, as inference-time methods make them.

The shift of each prompt is computed before the evaluation. A hook after the embedding layer adds it
to the prompt's tokens, in padded and in packed rows.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unlearnbench.api.inference_method import Prompt, Shift
from unlearnbench.models.batching import fast_batch_tokens, token_budget
from unlearnbench.models.forward import final_states, padded


@dataclass(frozen=True, eq=False)
class ShiftedModel:
    """A model and the shift of its prompts' embeddings."""

    model: Any
    shift: Shift
    """Computes the shifts of some prompts."""


@dataclass(frozen=True)
class Span:
    """Tokens of a prompt in a batch."""

    prompt: Prompt
    first: int
    """Index in the prompt of the first of these tokens."""
    places: Sequence[int]
    """Indices of the prompt's tokens from `first` on in the flattened ids of the batch."""


class Shifts:
    """The shifts of some prompts."""

    def __init__(self, shift: Shift, prompts: Sequence[Prompt]) -> None:
        """Compute the shift of each distinct prompt."""
        distinct = list(dict.fromkeys(prompts))
        shifts = shift(distinct)
        self.by_prompt: Mapping[Prompt, Tensor] = {
            prompt: values
            for prompt, values in zip(distinct, shifts, strict=True)
            if values is not None
        }
        """[p, d] of each prompt with a shift, on any device: p tokens, the first d features."""

    @contextmanager
    def added(self, model: Any, spans: Sequence[Span]) -> Generator[None, None, None]:
        """Shift the tokens of `spans` in every batch of `model` inside the context."""
        shifted = [span for span in spans if span.prompt in self.by_prompt and len(span.places)]
        if not shifted:
            yield
            return
        layer: nn.Module = getattr(model, "module", model).get_input_embeddings()
        places = torch.tensor([place for span in shifted for place in span.places])
        values = torch.cat([self._values(span) for span in shifted])

        def add(_: nn.Module, __: tuple[Any, ...], embedded: Tensor) -> Tensor:
            flat = embedded.flatten(0, -2).clone()  # [B · T, H]
            feature_count = values.shape[1]
            flat[:, :feature_count].index_add_(
                0, places.to(flat.device), values.to(flat.device, flat.dtype)
            )
            return flat.view_as(embedded)

        handle = layer.register_forward_hook(add)
        try:
            yield
        finally:
            handle.remove()

    def _values(self, span: Span) -> Tensor:
        """Return the shifts [tokens, d] of a span."""
        end = span.first + len(span.places)
        return self.by_prompt[span.prompt][span.first : end]


def prompt_places(
    prompt: Prompt, text: Sequence[int], masked: Collection[int] = ()
) -> Sequence[int]:
    """Return the indices in `text` of the prompt's tokens.

    They end at the first token that differs, which merges the prompt's end with the answer's
    beginning.

    Args:
        prompt: The tokens of the prompt, without those that are masked.
        text: The tokens of a row.
        masked: Indices of the row's masked tokens.
    """
    places: list[int] = []
    visible = (index for index in range(len(text)) if index not in masked)
    for token, index in zip(prompt, visible, strict=False):
        if text[index] != token:
            break
        places.append(index)
    return places


@torch.no_grad()
def mean_states(
    model: Any, prompts: Sequence[Prompt], pad: int, batch_tokens: int | None = None
) -> Tensor:
    """Compute the mean of the final hidden states over each prompt's tokens.

    Args:
        model: The model.
        prompts: The n prompts.
        pad: Id of the padding.
        batch_tokens: Largest number of tokens of a batch. None: a fast number for the device.

    Returns:
        Means [n, H], in float32 at least.
    """
    device = next(model.parameters()).device
    budget = batch_tokens or fast_batch_tokens(device)
    means: dict[int, Tensor] = {}
    for batch in token_budget([len(prompt) for prompt in prompts], budget):
        ids, mask = padded([prompts[index] for index in batch], pad, device)
        states = final_states(
            model, mask.bool(), input_ids=ids, attention_mask=mask, use_cache=False
        )
        dtype = torch.promote_types(states.dtype, torch.float32)
        states_of_prompts = states.split(mask.sum(1).tolist())
        for index, prompt_states in zip(batch, states_of_prompts, strict=True):
            means[index] = prompt_states.to(dtype).mean(0)
    return torch.stack([means[index] for index in range(len(prompts))])
