"""A model run over rows: hidden states where answer tokens are predicted, and the map to logits.

The tokens of all rows stand behind one another wherever the model can be packed (`packed.py`), so
that nothing is computed for padding; else the rows are padded. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unlearnbench.data.batching import collate, pack
from unlearnbench.data.encoding import Row
from unlearnbench.errors import ModelError
from unlearnbench.models.forward import OutputLayer, projected
from unlearnbench.models.packed import Kernel, laid_out, may_be_packed, nearly, packing
from unlearnbench.projection import Projection


class RowStates(NamedTuple):
    """What a model says at the N scored tokens of some rows, row by row."""

    hidden: Tensor
    """[N, H] final hidden states."""
    inner: dict[int, Tensor]
    """[N, D] after the decoder layers that were asked for."""
    projection: Projection
    labels: Tensor
    """[N]"""
    rows: Tensor
    """[N] row of each token."""


class CausalRows:
    """The layout of rows behind one another: a token sees its own row up to itself."""

    def __init__(self, lengths: Tensor) -> None:
        count, width = len(lengths), int(lengths.max())
        columns = torch.arange(width, device=lengths.device)
        self.shape = (count, width)
        self.places = (columns < lengths.unsqueeze(1)).flatten().nonzero().squeeze(1)
        """[N] of each token in rows padded on the right."""

    def __call__(
        self, _: nn.Module, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of one layer, see `packed.Layout`; what is behind a row's end is not seen."""
        query, key, value = (self._pad(tensor) for tensor in (query, key, value))
        return kernel(query, key, value, None).flatten(0, 1).index_select(0, self.places)

    def _pad(self, tensor: Tensor) -> Tensor:
        zeros = tensor.new_zeros((self.shape[0] * self.shape[1], *tensor.shape[1:]))
        padded = zeros.index_copy(0, self.places, tensor)
        return padded.view(*self.shape, *tensor.shape[1:])


class RowReader:
    """Runs one model over rows."""

    def __init__(self, model: Any, pad: int) -> None:
        self.pad = pad
        self.output: OutputLayer | None = None
        """None where it is not understood: then the model makes all of its logits."""
        with suppress(ModelError):
            self.output = OutputLayer(model, copied=False)
        # Activations that are computed again on the way back would need the layout there.
        again = bool(getattr(model, "is_activation_checkpointing", False))
        self._packable = not again and self._survives_packing(model)

    def __call__(self, model: Any, rows: Sequence[Row], layers: Collection[int] = ()) -> RowStates:
        """One forward pass of `model`: the one given before, or what it has been wrapped in."""
        run = self._packed if self.packs(model, rows) else self._padded
        return run(model, rows, layers)

    def packs(self, model: Any, rows: Sequence[Row]) -> bool:
        """Whether the tokens of `rows` go through `model` behind one another."""
        return self._packable and may_be_packed(model, max(len(row.ids) for row in rows))

    def _packed(self, model: Any, rows: Sequence[Row], layers: Collection[int]) -> RowStates:
        tokens = pack(rows, next(model.parameters()).device)
        inputs = {"input_ids": tokens.ids, "position_ids": tokens.positions, "use_cache": False}
        with packing(model), laid_out(CausalRows(tokens.lengths)):
            found = projected(model, self.output, tokens.predicts, layers, **inputs)
        return RowStates(*found, tokens.labels, tokens.rows)

    def _padded(self, model: Any, rows: Sequence[Row], layers: Collection[int]) -> RowStates:
        tokens = collate(rows, self.pad, next(model.parameters()).device)
        # No mask: a causal model sees no padding behind a row, while padding that sees nothing,
        # as behind a sliding window, would turn into NaN and spread.
        inputs = {"input_ids": tokens.ids, "use_cache": False}
        found = projected(model, self.output, tokens.predicts, layers, **inputs)
        return RowStates(*found, tokens.labels, tokens.rows)

    @torch.no_grad()
    def _survives_packing(self, model: Any) -> bool:
        """Whether two rows packed give what they give one by one."""
        vocabulary = model.get_input_embeddings().weight.shape[0]
        trial = [Row(tuple(i % vocabulary for i in ids), 1) for ids in (range(1, 9), range(20, 25))]
        if not may_be_packed(model, 8):
            return False
        was_training = model.training
        model.eval()
        try:
            packed = self._packed(model, trial, ())
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            return False  # the model's attention takes what the library's kernel does not
        else:
            return nearly(packed.hidden, self._padded(model, trial, ()).hidden)
        finally:
            model.train(was_training)
