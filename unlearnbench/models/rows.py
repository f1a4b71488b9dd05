"""A model run over rows: hidden states where answer tokens are predicted, and the map to logits.

The tokens of all rows stand behind one another wherever the model can be packed (`packed.py`), so
that nothing is computed for padding; else the rows are padded. The numbers are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.data.batching import IntArray, collate, pack, send
from unlearnbench.data.encoding import Row
from unlearnbench.errors import ModelError
from unlearnbench.models.forward import OutputLayer, projected
from unlearnbench.models.packed import (
    Kernel,
    laid_out,
    may_be_packed,
    nearly,
    packing,
    takes_rows,
)
from unlearnbench.projection import Projection

_CPU = torch.device("cpu")
_WIDTHS = 16
"""Widths of padded rows on a GPU are multiples of this: attention kernels are prepared by shape."""


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


@dataclass(frozen=True, eq=False)
class ModelRows:
    """Rows as a model takes them, on its device."""

    inputs: Mapping[str, Any]
    where: Tensor
    """[N] places of what predicts the scored tokens, in the flattened ids."""
    labels: Tensor
    rows: Tensor
    beside: Sequence[Tensor]
    """What else was sent with them."""
    packed: bool


class CausalRows:
    """The layout of rows behind one another: a token sees its own row up to itself."""

    def __init__(
        self, shape: tuple[int, int], places: Tensor, bounds: Tensor | None, longest: int
    ) -> None:
        """See the methods that make its arguments.

        shape    of the padded rows
        places   [N] of each token in these
        bounds   [rows + 1] for attention without padding; None for padded rows
        longest  tokens of the longest row
        """
        self.shape, self.places, self.bounds, self.longest = shape, places, bounds, longest

    @staticmethod
    def shape_of(lengths: IntArray, device: torch.device) -> tuple[int, int]:
        """Of rows padded on the right."""
        step = 1 if device.type == "cpu" else _WIDTHS
        return len(lengths), -(-int(lengths.max()) // step) * step

    @staticmethod
    def places_of(lengths: IntArray, width: int) -> Tensor:
        """[N] of each token in rows padded to `width` tokens."""
        return torch.from_numpy(np.flatnonzero(np.arange(width) < lengths[:, None]))

    @staticmethod
    def bounds_of(lengths: IntArray) -> Tensor:
        """[rows + 1] int32: where each row begins, and the end of the last."""
        return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))

    def __call__(
        self, _: nn.Module, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of one layer, see `packed.Layout`; what is behind a row's end is not seen."""
        if self.bounds is not None and not kernel.how.get("dropout"):
            return kernel.rows(query, key, value, self.bounds, self.longest)
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
        self._packable = self._survives_packing(model, unpadded=False)
        self._unpadded: bool | None = None
        """Whether packed rows need no padding for attention either; None until it is tried."""

    def __call__(self, model: Any, rows: Sequence[Row], layers: Collection[int] = ()) -> RowStates:
        """One forward pass of `model`: the one given before, or what it has been wrapped in."""
        return self.run(model, self.prepared(model, rows), layers)

    def packs(self, model: Any, rows: Sequence[Row]) -> bool:
        """Whether the tokens of `rows` go through `model` behind one another."""
        return self._packable and may_be_packed(model, max(len(row.ids) for row in rows))

    def prepared(self, model: Any, rows: Sequence[Row], beside: Sequence[Tensor] = ()) -> ModelRows:
        """Rows on the model's device, and `beside` on the same way: all in one copy."""
        # Tried with the first rows of any length: processes that share a model's weights agree.
        unpadded = self._packable and self._without_padding(model)
        if not self.packs(model, rows):
            return self._padded(model, rows, beside)
        return self._packed(model, rows, beside, unpadded=unpadded)

    def run(self, model: Any, rows: ModelRows, layers: Collection[int] = ()) -> RowStates:
        """One forward pass of `model` over rows that are ready for it."""
        with packing(model) if rows.packed else nullcontext():
            found = projected(model, self.output, rows.where, layers, **rows.inputs)
        return RowStates(*found, rows.labels, rows.rows)

    def _packed(
        self, model: Any, rows: Sequence[Row], beside: Sequence[Tensor] = (), *, unpadded: bool
    ) -> ModelRows:
        device, tokens = next(model.parameters()).device, pack(rows)
        shape = CausalRows.shape_of(tokens.lengths, device)
        places = CausalRows.places_of(tokens.lengths, shape[1])
        bounds = CausalRows.bounds_of(tokens.lengths)
        own = (tokens.ids, tokens.positions, tokens.predicting, tokens.labels, tokens.rows)
        ids, positions, where, labels, of, places, bounds, *others = send(
            (*own, places, bounds, *beside), device
        )
        longest = int(tokens.lengths.max())
        layout = CausalRows(shape, places, bounds if unpadded else None, longest)
        inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
        return ModelRows(inputs | laid_out(layout), where, labels, of, others, packed=True)

    def _padded(self, model: Any, rows: Sequence[Row], beside: Sequence[Tensor] = ()) -> ModelRows:
        tokens = collate(rows, self.pad, _CPU)
        where = tokens.predicts.flatten().nonzero().squeeze(1)
        ids, where, labels, of, *others = send(
            (tokens.ids, where, tokens.labels, tokens.rows, *beside),
            next(model.parameters()).device,
        )
        # No mask: a causal model sees no padding behind a row, while padding that sees nothing,
        # as behind a sliding window, would turn into NaN and spread.
        inputs = {"input_ids": ids, "use_cache": False}
        return ModelRows(inputs, where, labels, of, others, packed=False)

    def _without_padding(self, model: Any) -> bool:
        """Whether attention takes packed rows as they are, which is tried before it is believed.

        Not with the model's first pass: the kernel is for half precision, and training is in that
        only where it begins.
        """
        if not takes_rows(next(model.parameters())):
            return False
        if self._unpadded is None:
            inner = getattr(model, "module", model)  # a trial is no step of data parallelism
            self._unpadded = self._survives_packing(inner, unpadded=True)
        return self._unpadded

    @torch.no_grad()
    def _survives_packing(self, model: Any, *, unpadded: bool) -> bool:
        """Whether two rows packed give what they give one by one."""
        vocabulary = model.get_input_embeddings().weight.shape[0]
        trial = [Row(tuple(i % vocabulary for i in ids), 1) for ids in (range(1, 9), range(20, 25))]
        if not may_be_packed(model, 8):
            return False
        was_training = model.training
        try:
            packed = self._packed(model, trial, unpadded=unpadded)
            if was_training and not unpadded:
                # Where activations are computed again, layers are called in another way.
                with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                    self.run(model, packed)
            found = self.run(model.eval(), packed)
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            return False  # the model's attention takes what the library's kernel does not
        else:

            def padded(batch: Sequence[Row]) -> Tensor:
                return self.run(model, self._padded(model, batch)).hidden

            return nearly(
                found.hidden, padded(trial), lambda: torch.cat([padded([row]) for row in trial])
            )
        finally:
            model.train(was_training)
            # Copies of the weights that were made here have no gradient.
            torch.clear_autocast_cache()
