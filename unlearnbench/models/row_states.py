"""Hidden states of rows at the positions where answer tokens are predicted, and the map to logits.

The tokens of all rows are packed into one row if the model allows it (`packed_attention.py`), so
that nothing is computed for padding. Otherwise the rows are padded. The numbers are the same, which
a `RowReader` checks by a trial before it packs any rows.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.base.errors import ModelError
from unlearnbench.losses.lm_head import Projection
from unlearnbench.models.batching import collate, send
from unlearnbench.models.filler_rows import filler_rows, round_width
from unlearnbench.models.forward import OutputLayer, hidden_states, projected
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
"""Tokens of the longer one of the two short rows on which packing is always tried."""
_WIDTHS = 16
"""On a GPU, rows are padded to multiples of this width: attention kernels are prepared by shape."""


class RowStates(NamedTuple):
    """A model's states at the N scored tokens of some rows, row by row."""

    hidden: Tensor
    """[N, H] final hidden states."""
    inner: dict[int, Tensor]
    """[N, D] by requested decoder layer."""
    projection: Projection
    """The map from final hidden states to logits."""
    labels: Tensor
    """[N] ids of the scored tokens."""
    rows: Tensor
    """[N] row of each token."""


@dataclass(frozen=True, eq=False)
class ModelRows:
    """Rows as a model's inputs, on its device."""

    inputs: Mapping[str, Any]
    """Keyword arguments of the model."""
    where: Tensor
    """[N] indices into the flattened ids, of the tokens that predict the scored ones."""
    labels: Tensor
    """[N] ids of the scored tokens."""
    rows: Tensor
    """[N] row of each token."""
    packed: bool
    """Whether the inputs are one packed row, which needs `packing`."""
    read: Sequence[Tensor] = ()
    """The tensors in `inputs` of a packed row. If other values are written into them, the inputs
    are other rows of the same shape."""
    shape: tuple[int, ...] = ()
    """What the kernels of a pass over a packed row depend on: its tokens, and the rows and the
    width of its attention. Empty for padded rows."""


class _RowAttention(Enum):
    """How the attention of packed rows is computed."""

    PADDED = "padded"
    """Pad queries, keys and values of each layer to the longest row. Works everywhere."""
    UNPADDED = "unpadded"
    """Call a kernel that takes packed rows as they are. For half precision on GPUs."""


@dataclass(frozen=True, eq=False)
class CausalRows:
    """The layout of packed rows: a token sees its own row up to itself."""

    shape: tuple[int, int]
    """Rows and tokens, padded on the right."""
    places: Tensor
    """[N] index of each token in the padded rows, flattened."""
    bounds: Tensor | None
    """[rows + 1] where each row begins, and the end of the last. None: attention is padded."""
    longest: int
    """Tokens of the longest row, or more."""

    def __call__(
        self, _: nn.Module, kernel: AttentionKernel, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Compute the attention of one layer, see `Layout`."""
        if self.bounds is not None and not kernel.options.get("dropout"):
            return kernel.rows(query, key, value, self.bounds, self.longest)
        # The causal mask hides padding, because it comes after all tokens of its row.
        padded = kernel(self._pad(query), self._pad(key), self._pad(value), None)
        return padded.flatten(0, 1).index_select(0, self.places)

    def _pad(self, tensor: Tensor) -> Tensor:
        """Put packed values [N, heads, d] into rows [rows, width, heads, d]."""
        rows, width = self.shape
        zeros = tensor.new_zeros((rows * width, *tensor.shape[1:]))
        padded = zeros.index_copy(0, self.places, tensor)
        return padded.view(rows, width, *tensor.shape[1:])


class RowReader:
    """Runs one model over rows."""

    def __init__(self, model: Any, pad: int, longest: int = _SHORT) -> None:
        """Find out whether the model takes packed rows.

        Args:
            model: A model in the mode (training or evaluation) in which it will be read.
            pad: Id of the padding.
            longest: Tokens of the longest row that is known in advance. A mask that the
                configuration does not name may differ from a causal one in long rows only.
        """
        self.pad = pad
        self._longest = longest
        self.output: OutputLayer | None = None
        """None if it is of an unknown kind. The model then computes its logits itself."""
        with suppress(ModelError):
            self.output = OutputLayer(model, copied=False)
        self._packable = self._survives_packing(model, _RowAttention.PADDED)
        self._unpadded: bool | None = None
        """Whether attention takes packed rows without padding; None until it is tried."""

    def __call__(self, model: Any, rows: Sequence[Row], layers: Collection[int] = ()) -> RowStates:
        """Run a forward pass over rows.

        Args:
            model: The model that `__init__` got, or a wrapper around it.
            rows: At least one row.
            layers: Decoder layers whose states are returned, too.
        """
        return self.run(model, self.prepared(model, rows), layers)

    def packs(self, model: Any, rows: Sequence[Row]) -> bool:
        """Whether the tokens of `rows` go through `model` in one row."""
        has_masked_tokens = any(row.masked for row in rows)
        if has_masked_tokens or not self._packable:  # no packed layout hides a token
            return False
        return can_pack(model, max(len(row.ids) for row in rows))

    def prepared(self, model: Any, rows: Sequence[Row], *, filled: bool = False) -> ModelRows:
        """Return rows as inputs on the model's device.

        Args:
            model: The model.
            rows: At least one row.
            filled: Whether rows without scored tokens are packed, too, so that few shapes are
                different, see `filler_rows.py`.
        """
        # Tried before any row is padded, so that processes that share a model agree.
        unpadded = self._packable and self._takes_unpadded_rows(model)
        if not self.packs(model, rows):
            return self._padded(model, rows)
        attention = _RowAttention.UNPADDED if unpadded else _RowAttention.PADDED
        return self._packed(model, rows, attention, filled=filled)

    def run(self, model: Any, rows: ModelRows, layers: Collection[int] = ()) -> RowStates:
        """Run a forward pass over prepared rows, see `__call__`."""
        with packing(model) if rows.packed else nullcontext():
            hidden, inner, projection = projected(
                model, self.output, rows.where, layers, **rows.inputs
            )
        return RowStates(hidden, inner, projection, rows.labels, rows.rows)

    def states_of_all_tokens(
        self, model: Any, rows: ModelRows, layers: Sequence[int] = ()
    ) -> list[Tensor]:
        """Run a forward pass over a packed row without selecting the scored tokens.

        Returns:
            The final hidden states [T, H] of its T tokens, and [T, D] for each of the layers.
        """
        with packing(model):
            hidden, inner = hidden_states(model, None, layers, **rows.inputs)
        return [hidden, *(inner[layer] for layer in layers)]

    def _packed(
        self,
        model: Any,
        rows: Sequence[Row],
        attention: _RowAttention,
        *,
        filled: bool = False,
    ) -> ModelRows:
        """Pack rows into one."""
        device = next(model.parameters()).device
        longest = max(len(row.ids) for row in rows)
        step = 1 if device.type == "cpu" else _WIDTHS
        width = -(-longest // step) * step
        if filled:
            width = round_width(longest)
            rows = [*rows, *filler_rows(rows)]
            longest = width
        lengths = np.array([len(row.ids) for row in rows])
        ends = np.cumsum(lengths)
        begins = ends - lengths
        token_count = ends[-1]
        tokens = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, token_count)
        positions = np.arange(token_count) - np.repeat(begins, lengths)
        # The token at t is predicted at t − 1.
        first_predicting = begins + [row.start - 1 for row in rows]
        spans = zip(first_predicting, ends - 1, strict=True)
        predicting = np.concatenate([np.arange(begin, end) for begin, end in spans])
        row_of_scored = np.repeat(np.arange(len(rows)), [row.scored for row in rows])

        places = np.flatnonzero(np.arange(width) < lengths[:, None])
        bounds = np.array([0, *ends], dtype=np.int32)

        arrays = (
            tokens,
            positions,
            predicting,
            tokens[predicting + 1],
            row_of_scored,
            places,
            bounds,
        )
        ids, position_ids, where, labels, scored_rows, places_there, bounds_there = send(
            [torch.from_numpy(array) for array in arrays], device
        )
        is_padded = attention is _RowAttention.PADDED
        layout = CausalRows(
            (len(rows), width), places_there, None if is_padded else bounds_there, longest
        )
        inputs = {"input_ids": ids[None], "position_ids": position_ids[None], "use_cache": False}
        inputs |= layout_argument(layout)
        return ModelRows(
            inputs,
            where,
            labels,
            scored_rows,
            packed=True,
            read=(ids, position_ids, places_there, bounds_there),
            shape=(int(token_count), len(rows), width, int(is_padded)),
        )

    def _padded(self, model: Any, rows: Sequence[Row]) -> ModelRows:
        """Pad rows on the right."""
        batch = collate(rows, self.pad, _CPU)
        predicting = batch.predicts.flatten().nonzero().squeeze(1)
        ids, where, labels, scored_rows, attention = send(
            (batch.ids, predicting, batch.labels, batch.rows, batch.attention),
            next(model.parameters()).device,
        )
        inputs = {"input_ids": ids, "use_cache": False}
        # Padding needs no mask, because a causal model sees nothing to the right of a token. With
        # a mask, padding that sees no key at all, as after a sliding window, would become NaN.
        if any(row.masked for row in rows):
            inputs["attention_mask"] = attention
        return ModelRows(inputs, where, labels, scored_rows, packed=False)

    def _takes_unpadded_rows(self, model: Any) -> bool:
        """Whether attention takes packed rows without padding, by a trial.

        The trial is not made in `__init__`, because the kernel is for half precision, which
        training enters later.
        """
        if not has_varlen_kernel(next(model.parameters())):
            return False
        if self._unpadded is None:
            inner = getattr(model, "module", model)  # a trial is not a step of data parallelism
            self._unpadded = self._survives_packing(inner, _RowAttention.UNPADDED)
        return self._unpadded

    @torch.no_grad()
    def _survives_packing(self, model: Any, attention: _RowAttention) -> bool:
        """Whether packed rows, two short ones and a long one, give the states of single rows."""
        if not can_pack(model, _SHORT):
            return False
        vocabulary = model.get_input_embeddings().weight.shape[0]
        short_rows = [_counting_row(1, _SHORT, vocabulary), _counting_row(20, 5, vocabulary)]
        long_row: Row | None = None
        if self._longest > _SHORT and can_pack(model, self._longest):
            long_row = _counting_row(3, self._longest, vocabulary)
        was_training = model.training
        try:
            packed = self._packed(model, short_rows, attention)
            if was_training and attention is _RowAttention.PADDED:
                # Activation checkpointing calls layers in another way.
                with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                    self.run(model, packed)
            short_states = self.run(model.eval(), packed).hidden
            long_states: Tensor | None = None
            if long_row is not None:
                long_states = self.run(model, self._packed(model, [long_row], attention)).hidden
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            return False  # the model's attention has arguments that the library's kernel lacks
        else:

            def padded_states(rows: Sequence[Row]) -> Tensor:
                return self.run(model, self._padded(model, rows)).hidden

            def states_one_by_one() -> Tensor:
                return torch.cat([padded_states([row]) for row in short_rows])

            if not states_match(short_states, padded_states(short_rows), states_one_by_one):
                return False
            if long_row is None or long_states is None:
                return True
            return long_row_matches(long_states, padded_states([long_row]))
        finally:
            model.train(was_training)
            # Autocast's copies of the weights that were made here have no gradient.
            torch.clear_autocast_cache()


def _counting_row(first: int, length: int, vocabulary: int) -> Row:
    """Return a row whose ids count up from `first`."""
    return Row(tuple(i % vocabulary for i in range(first, first + length)), 1)
