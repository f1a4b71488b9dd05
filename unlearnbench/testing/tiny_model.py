"""The model that methods are checked on: a Llama small enough for float64.

It can add padding to its input, and records the hidden states that a loss can read. Input and
output embeddings are untied, so that a token's gradient as an input is visible.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from unlearnbench.data.batching import collate
from unlearnbench.data.encoding import Row

VOCABULARY = 128
"""More than 100, so that the label −100 is a valid index, and its misuse no error but a fault."""
PAD, END, FIRST_WORD = 0, 2, 3
_HIDDEN, _HEADS, _CONTEXT = 16, 2, 96


class TinyLlama(LlamaForCausalLM):
    """A Llama that records the hidden states of its last forward pass."""

    extra = 0
    """Columns of padding beyond those of the input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.states: list[Tensor] = []
        """[B, T, H] of the last forward pass: final hidden states, and inner ones if requested."""
        self.lm_head.register_forward_pre_hook(self._record)

    def _record(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.states = [_with_grad(inputs[0])]

    def forward(self, *args: Any, **how: Any) -> Any:
        """Run on an input that is `extra` columns wider; the output has the usual width."""
        input_ids, attention_mask = how.pop("input_ids"), how.pop("attention_mask", None)
        width = input_ids.shape[1]
        if self.extra:
            # Not the padding token: the ids in padding must not matter either.
            pad: Any = nn.functional.pad
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            input_ids = pad(input_ids, (0, self.extra), value=FIRST_WORD)
            attention_mask = pad(mask, (0, self.extra), value=0)
        output: Any = super().forward(
            *args,
            input_ids=input_ids,
            attention_mask=attention_mask,
            logits_to_keep=torch.arange(width),
            **how,
        )
        if output.hidden_states is not None:
            output.hidden_states = tuple(
                _with_grad(state[:, :width]) for state in output.hidden_states
            )
            self.states += output.hidden_states
        return output

    def copied(self) -> TinyLlama:
        """Copy the weights, without gradients and recorded states."""
        self.states = []
        self.zero_grad(set_to_none=True)
        return copy.deepcopy(self)


def _with_grad(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        tensor.retain_grad()
    return tensor


def build(layers: int) -> TinyLlama:
    """A model of random weights, in float64."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.3,  # wide: predictions are neither sure nor all alike
        tie_word_embeddings=False,
        pad_token_id=None,  # nothing is special to the embedding either
        bos_token_id=1,
        eos_token_id=END,
    )
    # A Llama has no window; with one in its configuration its rows stay rows [B, T], and the checks
    # can look at each of their positions.
    config.update({"sliding_window": 1})
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
        torch.manual_seed(0)
        model = TinyLlama(config)
    nn.Module.double(model)  # in place; transformers types neither this nor `eval`
    nn.Module.eval(model)
    return model


def memorise(model: TinyLlama, rows: Sequence[Row], steps: int) -> None:
    """Train a model on the answers of `rows`, so that there is something to unlearn."""
    tokens = collate(rows, PAD, torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        logits = model(input_ids=tokens.ids, attention_mask=tokens.attention).logits
        logits = logits[tokens.predicts]
        nn.functional.cross_entropy(logits, tokens.labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def moved(model: TinyLlama, noise: float, dtype: torch.dtype) -> TinyLlama:
    """Copy the model as `dtype`, with relative noise on each weight as of a few steps."""
    copied = model.copied()
    generator = torch.Generator().manual_seed(1)
    for parameter in copied.parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.add_(noise * parameter.abs().mean() * drawn)
    nn.Module.to(copied, dtype)  # in place; that of transformers has no types
    return copied


@torch.no_grad()
def rename(model: TinyLlama, names: Tensor) -> None:
    """Give every vocabulary entry i the id `names[i]`: the same model in another numbering."""
    for weight in (model.get_input_embeddings().weight, model.lm_head.weight):
        old = torch.as_tensor(weight)
        renamed = torch.empty_like(old)
        renamed[names] = old
        old.copy_(renamed)
