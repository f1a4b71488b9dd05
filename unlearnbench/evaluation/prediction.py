"""What a model predicts at chosen positions, without padding and without logits for all of them.

Tokens go through the model in one row (`models.packed`) where the model allows it, which is tried
on a question before it is believed; else as padded rows. The output layer and the log-softmax
follow a chunk of positions at a time, so that [chunk, vocabulary] is the largest tensor.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearnbench.data.batching import fast_batch_tokens
from unlearnbench.errors import ModelError
from unlearnbench.evaluation.precision import computing_in, precision_of_model
from unlearnbench.evaluation.result import FloatArray, IntArray
from unlearnbench.evaluation.tree import Tree, TreeLayout
from unlearnbench.models.autocast import product_dtype
from unlearnbench.models.forward import OutputLayer, final_states, predict
from unlearnbench.models.keys import fitting_tokens
from unlearnbench.models.packed import Layout, laid_out, may_be_packed, nearly, packing
from unlearnbench.models.shifted import Shifts, Span, common_length
from unlearnbench.settings import Precision
from unlearnbench.shortage import give_back

NOT_FINITE = -1
"""Stands for the most probable token where logits are NaN or infinite."""

# Logits in a chunk: what stays in a CPU's cache; on a GPU enough rows to keep it busy.
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ELSEWHERE = 1 << 27
# Decoding keeps the keys and values of this many batches of tokens.
_SLOT_BATCHES = 4
_TIES = {torch.bfloat16: 0.25, torch.float16: 0.03, torch.float64: 1e-10}
_TIE = 1e-4


class Predictor:
    """A model whose predictions are read a chunk of logits at a time."""

    def __init__(
        self,
        model: Any,
        trial: Tree,
        *,
        pad: int,
        longest: int,
        batch_tokens: int | None = None,
        chunk: int | None = None,
        shifts: Shifts | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Look at the model.

        trial         a question on which packing is tried
        longest       tokens of the longest row there will be
        batch_tokens  tokens of a forward pass, about; default: what is fast on the device
        chunk         positions whose logits exist at once; likewise
        shifts        what is added to prompts' embeddings
        precision     of the evaluation, see `computing_in`
        """
        self.model, self.pad, self.shifts = model, pad, shifts
        self._precision: Precision | None = precision
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        kind = self.device.type
        self.batch_tokens = batch_tokens or fast_batch_tokens(self.device)
        vocabulary = model.get_output_embeddings().weight.shape[0]
        self.chunk = chunk or max(_CHUNK.get(kind, _CHUNK_ELSEWHERE) // vocabulary, 32)
        self.layer: OutputLayer | None = None
        """None where it is not understood: then the model's own logits are taken."""
        with computing_in(model, precision):
            self.precision = precision_of_model(model)
            self.dtype = product_dtype(parameter)
            """Of products, keys and values."""
            with suppress(ModelError):
                self.layer = OutputLayer(model, copied=False)
            if kind == "cuda":
                give_back()  # what training has left in torch's cache is free too, in one piece
            self.slot_tokens = fitting_tokens(model, _SLOT_BATCHES * self.batch_tokens)
            """Tokens whose keys and values may be kept at once."""
            self.packed = may_be_packed(model, longest) and self._packs(trial)
            """Whether tokens go through the model in one row; else the texts are padded rows."""

    @contextmanager
    def ready(self) -> Generator[None, None, None]:
        """Predictions are made while this lasts; the model serves nothing else then."""
        with (
            computing_in(self.model, self._precision),
            packing(self.model) if self.packed else nullcontext(),
        ):
            yield

    def _packs(self, trial: Tree) -> bool:
        """Whether a packed tree gives what its rows give one by one."""
        try:
            with packing(self.model):
                packed = self._packed_trees([trial])
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            return False  # the model's attention takes what the library's kernel does not
        rows = self._padded_trees([trial])
        return nearly(packed, rows, lambda: self._padded_trees([trial], rows=1))

    def tree_states(self, trees: Sequence[Tree]) -> Tensor:
        """States [P, ·] at the predicting nodes of each tree, one after the other."""
        return self._packed_trees(trees) if self.packed else self._padded_trees(trees)

    def _packed_trees(self, trees: Sequence[Tree]) -> Tensor:
        offsets = np.cumsum([0, *(len(tree.ids) for tree in trees)])
        where = [tree.predicting + o for tree, o in zip(trees, offsets, strict=False)]
        ids, depths, places = (
            torch.from_numpy(np.concatenate(parts)).to(self.device)
            for parts in ([t.ids for t in trees], [t.depths for t in trees], where)
        )
        layout = TreeLayout(trees, self.dtype, self.device)
        spans = [
            Span(tree.prompt, 0, (tree.stem + o).tolist())
            for tree, o in zip(trees, offsets, strict=False)
        ]
        return self.row_states(ids, depths, places, layout, spans)

    def _padded_trees(self, trees: Sequence[Tree], rows: int | None = None) -> Tensor:
        """`rows` of a batch; default: all of them in one."""
        texts = [row.ids[:-1] for tree in trees for row in tree.rows]
        begins = [row.start - 1 for tree in trees for row in tree.rows]
        prompts = [tree.prompt for tree in trees for _ in tree.rows]
        each = rows or len(texts)
        parts = [slice(i, i + each) for i in range(0, len(texts), each)]
        states = torch.cat([self.text_states(texts[p], begins[p], prompts[p]) for p in parts])
        # Each row has its own state of a shared node; that of the first one is taken.
        chosen: list[IntArray] = []
        offset = 0
        for tree in trees:
            counts = [len(places) for places in tree.places]
            _, first = np.unique(np.concatenate(tree.places), return_index=True)
            chosen.append(first + offset)
            offset += sum(counts)
        return states[torch.from_numpy(np.concatenate(chosen)).to(self.device)]

    def row_states(
        self,
        ids: Tensor,
        positions: Tensor,
        where: Tensor,
        layout: Layout,
        spans: Sequence[Span] = (),
    ) -> Tensor:
        """States [P, ·] at the places `where` [P], ascending, of a packed row of tokens [N].

        spans  which of the tokens are a prompt's
        """
        chosen = torch.zeros(1, len(ids), dtype=torch.bool, device=self.device)
        chosen[0, where] = True
        row = {"input_ids": ids.unsqueeze(0), "position_ids": positions.unsqueeze(0)}
        with self._shifted(spans):
            return self._states(chosen, **row, **laid_out(layout))

    def text_states(
        self,
        texts: Sequence[Sequence[int]],
        begins: Sequence[int],
        prompts: Sequence[tuple[int, ...]],
    ) -> Tensor:
        """States [P, ·] of whole texts, at `begins` and all places after it in each."""
        ids, mask = _padded(texts, self.pad, self.device)
        columns = torch.arange(ids.shape[1], device=self.device)
        first = torch.tensor(begins, device=self.device)
        where = mask.bool() & (columns >= first.unsqueeze(1))
        spans = [
            Span(prompt, 0, range(i * ids.shape[1], i * ids.shape[1] + common_length(prompt, text)))
            for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
        ]
        with self._shifted(spans):
            return self._states(where, input_ids=ids, attention_mask=mask)

    def _shifted(self, spans: Sequence[Span]) -> AbstractContextManager[None]:
        return nullcontext() if self.shifts is None else self.shifts.added(self.model, spans)

    def _states(self, where: Tensor, **inputs: Any) -> Tensor:
        """What `read` reads: hidden states, or logits where the output layer is not understood."""
        if self.layer is None:
            return predict(self.model, where, **inputs, use_cache=False)[0]
        return final_states(self.model, where, **inputs, use_cache=False)

    def read(
        self, states: Tensor, places: IntArray, labels: IntArray, asked: IntArray
    ) -> tuple[FloatArray, list[int], list[bool]]:
        """Losses of labels, and what greedy decoding says, at positions with `states` [P, ·].

        places, labels  [M] each label, and which of the positions predicts it, in any order
        asked           [S] positions, ascending, whose most probable token is wanted
        Returns [M] losses in nats (NaN where logits are not finite), [S] tokens (or NOT_FINITE),
        and [S] whether the two largest logits are so close that batching may exchange them.
        """
        order = np.argsort(places, kind="stable")
        bounds = np.arange(0, len(states) + self.chunk, self.chunk)
        ends = np.searchsorted(places[order], bounds)
        turns = np.searchsorted(asked, bounds)
        ordered = [torch.from_numpy(a[order]).to(self.device) for a in (places, labels)]
        wanted = torch.from_numpy(asked).to(self.device)
        losses, tokens, gaps = [], [], []
        for i, part in enumerate(states.split(self.chunk)):
            logits = part if self.layer is None else self.layer(part)  # [chunk, V]
            own, said = slice(ends[i], ends[i + 1]), slice(turns[i], turns[i + 1])
            if own.stop > own.start:
                place, label = (t[own] for t in ordered)
                losses.append(-logits.log_softmax(1)[place - i * self.chunk, label])
            if said.stop > said.start:
                best, token = logits[wanted[said] - i * self.chunk].topk(2, dim=1)
                tokens.append(token[:, 0].masked_fill(~best[:, 0].isfinite(), NOT_FINITE))
                gaps.append(best[:, 0] - best[:, 1])
        found = np.empty(len(order))
        found[order] = torch.cat(losses).double().cpu().numpy() if losses else 0.0
        found[~np.isfinite(found)] = np.nan
        if not tokens:
            return found, [], []
        tied = torch.cat(gaps) < tie_gap(self.dtype)
        return found, torch.cat(tokens).tolist(), tied.tolist()


def tie_gap(dtype: torch.dtype) -> float:
    """Two logits nearer than this are a tie: about what another batch changes in `dtype`."""
    return _TIES.get(dtype, _TIE)


def _padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [B, T], padded on the right."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = (torch.arange(width, device=device) < lengths.unsqueeze(1)).long()
    return ids, mask
