"""Hidden states of rows where answer tokens are predicted, and the map to logits.

The tokens of all rows are packed into one row where the model allows it (`packed_attention.py`), so
that nothing is computed for padding; else the rows are padded. The numbers are the same.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.base.errors import ModelError
from unlearnbench.losses.lm_head import Projection
from unlearnbench.models.batching import collate, send
from unlearnbench.models.forward import OutputLayer, projected
from unlearnbench.models.packed_attention import (
    AttentionKernel,
    can_pack,
    has_varlen_kernel,
    layout_argument,
    long_row_matches,
    packing,
    states_match,
)
from unlearnbench.models.token_row import Row

_CPU = torch.device("cpu")
_SHORT = 8
"""Tokens of the rows on which packing is tried at least."""
_WIDTHS = 16
"""Padded rows on a GPU have multiples of this width: attention kernels are prepared by shape."""


class RowStates(NamedTuple):
    """A model's states at the N scored tokens of some rows, row by row."""

    hidden: Tensor
    """[N, H] final hidden states."""
    inner: dict[int, Tensor]
    """[N, D] by requested decoder layer."""
    projection: Projection
    labels: Tensor
    """[N]"""
    rows: Tensor
    """[N] row of each token."""


@dataclass(frozen=True, eq=False)
class ModelRows:
    """Rows as a model's inputs, on its device."""

    inputs: Mapping[str, Any]
    where: Tensor
    """[N] indices into the flattened ids, of the tokens that predict the scored ones."""
    labels: Tensor
    rows: Tensor
    packed: bool


@dataclass(frozen=True, eq=False)
class CausalRows:
    """The layout of packed rows: a token sees its own row up to itself."""

    shape: tuple[int, int]
    """Rows and tokens, padded on the right."""
    places: Tensor
    """[N] index of each token in the padded rows, flattened."""
    bounds: Tensor | None
    """[rows + 1] where each row begins, and the end of the last; None to pad for attention."""
    longest: int
    """Tokens of the longest row."""

    def __call__(
        self, _: nn.Module, kernel: AttentionKernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Attention of one layer, see `Layout`; padding behind a row is never seen."""
        if self.bounds is not None and not kernel.how.get("dropout"):
            return kernel.rows(query, key, value, self.bounds, self.longest)
        query, key, value = (self._pad(tensor) for tensor in (query, key, value))
        return kernel(query, key, value, None).flatten(0, 1).index_select(0, self.places)

    def _pad(self, tensor: Tensor) -> Tensor:
        zeros = tensor.new_zeros((self.shape[0] * self.shape[1], *tensor.shape[1:]))
        padded = zeros.index_copy(0, self.places, tensor)
        return padded.view(*self.shape, *tensor.shape[1:])


def _counting(spans: Sequence[range], vocabulary: int) -> list[Row]:
    """Rows whose ids count up."""
    return [Row(tuple(i % vocabulary for i in ids), 1) for ids in spans]


class RowReader:
    """Runs one model over rows."""

    def __init__(self, model: Any, pad: int, longest: int = _SHORT) -> None:
        """Find out whether the model takes packed rows.

        Args:
            model: In the mode in which it is read.
            pad: Id of the padding.
            longest: Tokens of the longest row that is known in advance. A mask that the
                configuration does not name may differ from a causal one in long rows only.
        """
        self.pad, self._longest = pad, longest
        self.output: OutputLayer | None = None
        """None where it is of an unknown kind: then the model computes its logits."""
        with suppress(ModelError):
            self.output = OutputLayer(model, copied=False)
        self._packable = self._survives_packing(model, unpadded=False)
        self._unpadded: bool | None = None
        """True if attention takes packed rows without padding; None until it is tried."""

    def __call__(self, model: Any, rows: Sequence[Row], layers: Collection[int] = ()) -> RowStates:
        """One forward pass of `model`: the one of `__init__`, or a wrapper around it."""
        return self.run(model, self.prepared(model, rows), layers)

    def packs(self, model: Any, rows: Sequence[Row]) -> bool:
        """True if the tokens of `rows` go through `model` in one row."""
        longest = max(len(row.ids) for row in rows)
        masks = any(row.masked for row in rows)  # no packed layout hides a token
        return self._packable and not masks and can_pack(model, longest)

    def prepared(self, model: Any, rows: Sequence[Row]) -> ModelRows:
        """Rows on the model's device."""
        # Tried before any row is padded, so that processes that share a model agree.
        unpadded = self._packable and self._without_padding(model)
        if not self.packs(model, rows):
            return self._padded(model, rows)
        return self._packed(model, rows, unpadded=unpadded)

    def run(self, model: Any, rows: ModelRows, layers: Collection[int] = ()) -> RowStates:
        """One forward pass of `model` over prepared rows."""
        with packing(model) if rows.packed else nullcontext():
            result = projected(model, self.output, rows.where, layers, **rows.inputs)
        return RowStates(*result, rows.labels, rows.rows)

    def _packed(self, model: Any, rows: Sequence[Row], *, unpadded: bool) -> ModelRows:
        device = next(model.parameters()).device
        lengths = np.array([len(row.ids) for row in rows])
        longest, ends = int(lengths.max()), np.cumsum(lengths)
        begins = ends - lengths
        tokens = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, ends[-1])
        # The token at t is predicted at t − 1.
        spans = zip(begins + [row.start - 1 for row in rows], ends - 1, strict=True)
        predicting = np.concatenate([np.arange(*span) for span in spans])
        step = 1 if device.type == "cpu" else _WIDTHS
        width = -(-longest // step) * step
        arrays = (
            tokens,
            np.arange(len(tokens)) - np.repeat(begins, lengths),
            predicting,
            tokens[predicting + 1],
            np.repeat(np.arange(len(rows)), [row.scored for row in rows]),
            np.flatnonzero(np.arange(width) < lengths[:, None]),
            np.array([0, *ends], dtype=np.int32),
        )
        ids, positions, where, labels, of, places, bounds = send(
            [torch.from_numpy(array) for array in arrays], device
        )
        layout = CausalRows((len(rows), width), places, bounds if unpadded else None, longest)
        inputs = {"input_ids": ids[None], "position_ids": positions[None], "use_cache": False}
        return ModelRows(inputs | layout_argument(layout), where, labels, of, packed=True)

    def _padded(self, model: Any, rows: Sequence[Row]) -> ModelRows:
        tokens = collate(rows, self.pad, _CPU)
        where = tokens.predicts.flatten().nonzero().squeeze(1)
        ids, where, labels, of, attention = send(
            (tokens.ids, where, tokens.labels, tokens.rows, tokens.attention),
            next(model.parameters()).device,
        )
        inputs = {"input_ids": ids, "use_cache": False}
        # Else no mask: a causal model sees no padding behind a row, while padding that sees
        # nothing, as behind a sliding window, would become NaN.
        if any(row.masked for row in rows):
            inputs["attention_mask"] = attention
        return ModelRows(inputs, where, labels, of, packed=False)

    def _without_padding(self, model: Any) -> bool:
        """True if attention takes packed rows without padding, by trial.

        Not tried in `__init__`: the kernel is for half precision, which training enters later.
        """
        if not has_varlen_kernel(next(model.parameters())):
            return False
        if self._unpadded is None:
            inner = getattr(model, "module", model)  # a trial is not a step of data parallelism
            self._unpadded = self._survives_packing(inner, unpadded=True)
        return self._unpadded

    @torch.no_grad()
    def _survives_packing(self, model: Any, *, unpadded: bool) -> bool:
        """True if packed rows, two short ones and a long one, give the states of single rows."""
        vocabulary = model.get_input_embeddings().weight.shape[0]
        trial = _counting([range(1, 1 + _SHORT), range(20, 25)], vocabulary)
        if not can_pack(model, _SHORT):
            return False
        is_long = self._longest > _SHORT and can_pack(model, self._longest)
        long_row = _counting([range(3, 3 + self._longest)], vocabulary)
        was_training = model.training
        try:
            packed = self._packed(model, trial, unpadded=unpadded)
            if was_training and not unpadded:
                # Activation checkpointing calls layers in another way.
                with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                    self.run(model, packed)
            result = self.run(model.eval(), packed)
            packed_long = self._packed(model, long_row, unpadded=unpadded) if is_long else None
            long_states = None if packed_long is None else self.run(model, packed_long).hidden
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            return False  # the model's attention has arguments that the library's kernel lacks
        else:

            def padded(batch: Sequence[Row]) -> Tensor:
                return self.run(model, self._padded(model, batch)).hidden

            if not states_match(
                result.hidden, padded(trial), lambda: torch.cat([padded([row]) for row in trial])
            ):
                return False
            return long_states is None or long_row_matches(long_states, padded(long_row))
        finally:
            model.train(was_training)
            # Autocast's copies of the weights that were made here have no gradient.
            torch.clear_autocast_cache()
