"""Models with shifted embeddings of their prompts, as inference-time methods make them.

The shift of each prompt is computed before the evaluation. A hook behind the embedding layer adds
it to the prompt's tokens, in padded and in packed rows.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
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


@dataclass(frozen=True)
class Span:
    """Tokens of a prompt in a batch."""

    prompt: Prompt
    first: int
    """Index in the prompt of the first of them."""
    places: Sequence[int]
    """Their indices in the batch's flattened ids: of the prompt's tokens from `first` on."""


class Shifts:
    """The shifts of some prompts."""

    def __init__(self, shift: Shift, prompts: Sequence[Prompt]) -> None:
        distinct = list(dict.fromkeys(prompts))
        result = shift(distinct)
        self.by_prompt: Mapping[Prompt, Tensor] = {
            prompt: values
            for prompt, values in zip(distinct, result, strict=True)
            if values is not None
        }
        """[p, d] of each prompt with a shift, on any device."""

    @contextmanager
    def added(self, model: Any, spans: Sequence[Span]) -> Generator[None, None, None]:
        """Shift the tokens of `spans` in every batch of `model`."""
        chosen = [span for span in spans if span.prompt in self.by_prompt and len(span.places)]
        if not chosen:
            yield
            return
        layer: nn.Module = getattr(model, "module", model).get_input_embeddings()
        places = torch.tensor([location for span in chosen for location in span.places])
        values = torch.cat(
            [self.by_prompt[span.prompt][span.first :][: len(span.places)] for span in chosen]
        )

        def add(_: nn.Module, __: tuple[Any, ...], embedded: Tensor) -> Tensor:
            flat = embedded.flatten(0, -2).clone()  # [B · T, H]
            flat[:, : values.shape[1]].index_add_(
                0, places.to(flat.device), values.to(flat.device, flat.dtype)
            )
            return flat.view_as(embedded)

        handle = layer.register_forward_hook(add)
        try:
            yield
        finally:
            handle.remove()


def prompt_places(
    prompt: Prompt, text: Sequence[int], masked: Collection[int] = ()
) -> Sequence[int]:
    """Indices in `text` of the tokens of `prompt`, which lacks those that are masked.

    Up to the first that differs: one that merges the prompt's end with the answer's beginning.
    """
    seen = (i for i in range(len(text)) if i not in masked)
    pairs = zip(prompt, seen, strict=False)
    return [i for _, i in takewhile(lambda pair: text[pair[1]] == pair[0], pairs)]


@torch.no_grad()
def mean_states(
    model: Any, prompts: Sequence[Prompt], pad: int, batch_tokens: int | None = None
) -> Tensor:
    """[n, H] mean over each prompt's tokens of the final hidden states, in fp32 at least."""
    device = next(model.parameters()).device
    budget = batch_tokens or fast_batch_tokens(device)
    tensors: dict[int, Tensor] = {}
    for batch in token_budget([len(prompt) for prompt in prompts], budget):
        ids, mask = padded([prompts[i] for i in batch], pad, device)
        states = final_states(
            model, mask.bool(), input_ids=ids, attention_mask=mask, use_cache=False
        )
        dtype = torch.promote_types(states.dtype, torch.float32)
        means = [part.to(dtype).mean(0) for part in states.split(mask.sum(1).tolist())]
        tensors |= zip(batch, means, strict=True)
    return torch.stack([tensors[i] for i in range(len(prompts))])
