"""A model's predictions at chosen positions, without padding and without logits for all of them.

1. The final hidden states at the positions are computed (`tree_states`, `row_states`,
   `text_states`). Tokens go through the model packed into one row (`models/packed_attention.py`),
   if that gives the same states for a trial question. Otherwise they go as padded rows.
2. From the states, the output layer computes logits for a chunk of positions at a time, and what is
   wanted of them is computed (`score_positions`, `changed_tokens`, `sample_tokens`). So
   [chunk, vocabulary] is the largest tensor.
"""

import copy
import pickle
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, IntArray
from unlearnbench.base.errors import ModelError
from unlearnbench.base.heap import trim_heap
from unlearnbench.base.out_of_memory import empty_cache
from unlearnbench.config.precision import Precision
from unlearnbench.evaluation.precision import computing_in_precision, precision_of_model
from unlearnbench.evaluation.prefix_tree import Tree, TreeLayout, build_tree
from unlearnbench.models.batching import fast_batch_tokens
from unlearnbench.models.device import (
    cached_bytes_per_token,
    kept_tokens,
    max_cached_tokens,
    product_dtype,
)
from unlearnbench.models.forward import OutputLayer, final_states, padded, predict
from unlearnbench.models.packed_attention import (
    Layout,
    can_pack,
    layout_argument,
    long_row_matches,
    packing,
    states_match,
)
from unlearnbench.models.prompt_shift import Shifts, Span, prompt_places
from unlearnbench.models.token_row import Row
from unlearnbench.models.token_sampling import Distribution, choose

NOT_FINITE = -1
"""Stands for the most probable token where logits are NaN or infinite."""

# Logits in a chunk: as many as stay in a CPU's cache; on a GPU enough rows to keep it busy.
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ELSEWHERE = 1 << 27
_FEWEST_POSITIONS = 32
"""Smallest number of positions in a chunk, however large the vocabulary is."""
_SAMPLED_CHUNK = 8
"""Chunks for sampling are so many times smaller: it has about four tensors of float64 besides the
logits."""
_SLOT_BATCHES = 16
"""Batches of tokens whose keys and values decoding stores at most.

A step of few answers takes nearly as long as a step of many.
"""
_CPU_SLOT_BATCHES = 48
"""The same for a CPU that has memory to spare. Its batches have fewer tokens."""
_KEPT_PART_OF_SLOTS = 3 / 4
"""Bytes of a CPU's slots, as a fraction of the bytes that scoring may keep, if memory allows it."""
_SPARE_MEMORY = 8
"""A CPU has memory to spare if so many times the bytes of these slots are available."""
_TIES = {torch.bfloat16: 0.25, torch.float16: 0.03, torch.float64: 1e-10}
"""By the dtype of products, the distance below which two logits are a tie."""
_TIE = 1e-4
"""The same for other dtypes."""
_NO_INDICES: IntArray = np.empty(0, dtype=np.int64)
_NOT_COPIED = (
    copy.Error,
    pickle.PicklingError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that tell that the modules of a model cannot be copied, or that the copy does not work."""

Keys = dict[nn.Module, tuple[Tensor, Tensor]]
"""By attention layer, the keys and values [t, kv heads, d] of t tokens."""


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is computed at P positions, besides the most probable token."""

    label_positions: IntArray = field(default_factory=lambda: _NO_INDICES)
    """[M] the position that predicts each label, in any order."""
    labels: IntArray = field(default_factory=lambda: _NO_INDICES)
    """[M] labels whose losses are computed."""
    argmax_at: IntArray | None = None
    """[S] ascending positions whose most probable token is computed; None for all positions."""
    moments_at: IntArray = field(default_factory=lambda: _NO_INDICES)
    """[Q] ascending positions whose moments are computed."""
    observations: Sequence[Observation] = ()
    """Observations that are made at the positions `argmax_at`."""
    observed_labels: IntArray = field(default_factory=lambda: _NO_INDICES)
    """[S] the label at each of these positions; empty without observations."""


class PositionScores(NamedTuple):
    """Predictions at some positions: of M labels, at S and at Q positions, see `Wanted`."""

    losses: FloatArray
    """[M] negative log-likelihood of each label in nats; NaN if logits are not finite."""
    argmax_tokens: list[int]
    """[S] the most probable token, or NOT_FINITE."""
    tied: list[bool]
    """[S] whether the two largest logits are so close that another batch may exchange them."""
    moments: FloatArray
    """[Q, 2] mean and variance of the log-probability over the vocabulary, in nats."""
    observed: FloatArray
    """[S, O] the value of each observation."""


class Predictor:
    """Predictions of one model, a chunk of logits at a time."""

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
        """Find out what the model supports.

        Args:
            model: In evaluation mode.
            trial: A question on which packing is tried.
            pad: Id of the padding token.
            longest: Tokens of the longest row that there will be.
            batch_tokens: Tokens of a forward pass, approximately. Defaults to a fast number.
            chunk: Positions whose logits exist at once. Defaults to a fast number.
            shifts: Are added to the embeddings of prompts.
            precision: Precision of the evaluation, see `computing_in_precision`.
        """
        self.model = model
        self.trial = trial
        self.own_layers: Mapping[nn.Module, nn.Module] = {}
        """By module of the first predictor's model, this predictor's own copy of the module.

        Empty for the first predictor itself, see `with_own_modules`.
        """
        self.pad = pad
        self.shifts = shifts
        self._wanted_precision: Precision | None = precision
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        kind = self.device.type
        self.batch_tokens = batch_tokens or fast_batch_tokens(self.device)
        vocabulary = model.get_output_embeddings().weight.shape[0]
        fast_chunk = _CHUNK.get(kind, _CHUNK_ELSEWHERE) // vocabulary
        self.chunk = chunk or max(fast_chunk, _FEWEST_POSITIONS)
        self.layer: OutputLayer | None = None
        """The output layer; None if it is of an unknown kind. Then the model computes logits."""
        with computing_in_precision(model, precision):
            self.precision = precision_of_model(model)
            self.dtype = product_dtype(parameter)
            """The dtype of products, keys and values."""
            with suppress(ModelError):
                self.layer = OutputLayer(model, copied=False)
            # Training has left free memory in pieces. It becomes one piece here.
            if kind == "cuda":
                empty_cache()
            else:
                trim_heap()
            self.kept_tokens = kept_tokens(model)
            """Tokens whose keys and values may be kept from scoring for decoding."""
            self.slot_tokens = max_cached_tokens(model, self._most_slot_tokens())
            """Tokens whose keys and values decoding may store at once."""
            self.packed = can_pack(model, longest) and self._packs(trial, longest)
            """Whether tokens go through the model in one row. Otherwise texts are padded rows."""

    def _most_slot_tokens(self) -> int:
        """Return the number of tokens whose keys and values decoding stores if memory allows it.

        On a CPU with little memory, it is a quarter of the tokens that scoring keeps. It is then at
        least a quarter of `_SLOT_BATCHES` batches, and at most all of them. A CPU with memory to
        spare stores up to three times as many. There are only these two numbers, so that the same
        machine makes the same steps, although its free memory is never exactly the same.
        """
        tokens = _SLOT_BATCHES * self.batch_tokens
        if self.device.type != "cpu":
            return tokens
        few = min(tokens, max(self.kept_tokens, tokens) // 4)
        most = _CPU_SLOT_BATCHES * self.batch_tokens
        many = min(most, int(_KEPT_PART_OF_SLOTS * self.kept_tokens))
        needed = _SPARE_MEMORY * many * cached_bytes_per_token(self.model)
        has_spare_memory = psutil.virtual_memory().available >= needed
        return max(few, many) if has_spare_memory else few

    @cached_property
    def with_own_modules(self) -> "Predictor | None":
        """A predictor that another thread can use at the same time; None if there is none.

        Its model has modules of its own, which share the weights. Buffers that no checkpoint
        stores, such as the frequencies of some position embeddings, may change in a forward pass.
        So these are copied. The attribute is read while this predictor is ready.
        """
        if not self.packed or self.shifts is not None:
            return None
        other = copy.copy(self)
        try:
            stored = self.model.state_dict(keep_vars=True).values()
            shared = {id(value): value for value in stored if isinstance(value, Tensor)}
            other.model = copy.deepcopy(self.model, dict(shared))
            pairs = zip(self.model.modules(), other.model.modules(), strict=True)
            other.own_layers = dict(pairs)
            # A module may hold functions that refer to the original's modules.
            works = torch.equal(self.tree_states([self.trial]), other.tree_states([self.trial]))
        except torch.OutOfMemoryError:
            raise
        except _NOT_COPIED:
            return None
        return other if works else None

    def own_keys(self, keys: Keys) -> Keys:
        """Return keys and values by this predictor's own layers, from those by shared layers.

        Keys that predictors of one model exchange are by the layers of the first predictor.
        """
        if not self.own_layers:
            return keys
        return {self.own_layers[layer]: stored for layer, stored in keys.items()}

    def _shared_keys(self, keys: Keys) -> Keys:
        """Return keys and values by shared layers, from those by own layers, see `own_keys`."""
        if not self.own_layers:
            return keys
        layer_of_own = {own: layer for layer, own in self.own_layers.items()}
        return {layer_of_own[own]: stored for own, stored in keys.items()}

    @contextmanager
    def ready(self) -> Generator[None, None, None]:
        """Prepare the model for predictions; meanwhile it serves nothing else."""
        with (
            computing_in_precision(self.model, self._wanted_precision),
            packing(self.model) if self.packed else nullcontext(),
        ):
            yield

    def _packs(self, trial: Tree, longest: int) -> bool:
        """Whether a packed tree gives the states that its rows give one by one.

        A row of `longest` tokens is tried, too, because a mask that the configuration does not name
        may differ from a causal mask only in long rows.
        """
        text = np.resize(trial.ids, longest)  # the trial's tokens, repeated
        long_row = build_tree([Row((*map(int, text),), max(longest // 2, 1))])
        is_longer = longest > max(len(row.ids) for row in trial.rows)
        try:
            with packing(self.model):
                packed = self._packed_trees([trial])
                packed_long = self._packed_trees([long_row]) if is_longer else None
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            # The model's attention has arguments that the library's kernel lacks.
            return False
        rows = self._padded_trees([trial])
        if not states_match(packed, rows, lambda: self._padded_trees([trial], rows=1)):
            return False
        if packed_long is None:
            return True
        return long_row_matches(packed_long, self._padded_trees([long_row]))

    def tree_states(self, trees: Sequence[Tree], kept: Keys | None = None) -> Tensor:
        """Compute the states [P, ·] at the predicting nodes of each tree, one after the other.

        Args:
            trees: One tree for each question.
            kept: Gets the keys and values of all nodes, if texts are packed. None: they are not
                kept.
        """
        return self._packed_trees(trees, kept) if self.packed else self._padded_trees(trees)

    def _packed_trees(self, trees: Sequence[Tree], kept: Keys | None = None) -> Tensor:
        offsets = np.cumsum([0, *(len(tree.ids) for tree in trees)])
        predicting: list[IntArray] = []
        spans: list[Span] = []
        for tree, offset in zip(trees, offsets, strict=False):
            predicting.append(tree.predicting + offset)
            spans.append(Span(tree.prompt, 0, (tree.stem + offset).tolist()))
        layout = TreeLayout(trees, self.dtype, self.device)
        layout.kept = None if kept is None else {}
        states = self.row_states(
            self._sent([tree.ids for tree in trees]),
            self._sent([tree.depths for tree in trees]),
            self._sent(predicting),
            layout,
            spans,
        )
        if kept is not None and layout.kept is not None:
            kept |= self._shared_keys(layout.kept)
        return states

    def _sent(self, parts: Sequence[IntArray]) -> Tensor:
        """Return the concatenated parts on the device."""
        return torch.from_numpy(np.concatenate(parts)).to(self.device)

    def _padded_trees(self, trees: Sequence[Tree], rows: int | None = None) -> Tensor:
        """Compute `tree_states` with `rows` rows in a batch; None for all rows in one."""
        texts = [row.ids[:-1] for tree in trees for row in tree.rows]
        masked = [row.masked for tree in trees for row in tree.rows]
        begins = [row.start - 1 for tree in trees for row in tree.rows]
        prompts = [tree.prompt for tree in trees for _ in tree.rows]
        batch_size = rows or len(texts)
        batches: list[Tensor] = []
        for first in range(0, len(texts), batch_size):
            batch = slice(first, first + batch_size)
            batches.append(
                self.text_states(texts[batch], begins[batch], prompts[batch], masked[batch])
            )
        states = torch.cat(batches)
        # Each row has computed its own state of a shared node. The first one is taken.
        chosen: list[IntArray] = []
        offset = 0
        for tree in trees:
            _, first_places = np.unique(np.concatenate(tree.places), return_index=True)
            chosen.append(first_places + offset)
            offset += sum(len(places) for places in tree.places)
        return states[self._sent(chosen)]

    def row_states(
        self,
        ids: Tensor,
        positions: Tensor,
        where: Tensor,
        layout: Layout,
        spans: Sequence[Span] = (),
    ) -> Tensor:
        """Compute the states [P, ·] at places of a packed row of N tokens.

        Args:
            ids: [N]
            positions: [N] position of each token in its text.
            where: [P] places in the row.
            layout: Attention between the tokens.
            spans: The tokens that belong to prompts.
        """
        row = {"input_ids": ids.unsqueeze(0), "position_ids": positions.unsqueeze(0)}
        with self._shifted(spans):
            return self._states(where, **row, **layout_argument(layout))

    def text_states(
        self,
        texts: Sequence[Sequence[int]],
        begins: Sequence[int],
        prompts: Sequence[tuple[int, ...]],
        masked: Sequence[tuple[int, ...]] = (),
    ) -> Tensor:
        """Compute the states [P, ·] of whole texts, from a first place to the end of each.

        Args:
            texts: Tokens of each text.
            begins: First place of each text whose state is wanted.
            prompts: The prompt that each text begins with.
            masked: Of each text, indices of the tokens that no token sees. Defaults to none.
        """
        ids, mask = padded(texts, self.pad, self.device)
        width = ids.shape[1]
        columns = torch.arange(width, device=self.device)
        first = torch.tensor(begins, device=self.device)
        where = mask.bool() & (columns >= first.unsqueeze(1))
        # No token sees the padding behind its text. Masked padding would see nothing behind a
        # sliding window, and its NaN would reach the texts: 0 · NaN is NaN.
        mask = torch.ones_like(mask)
        masked = masked or [()] * len(texts)
        spans: list[Span] = []
        for i, (prompt, text, hidden) in enumerate(zip(prompts, texts, masked, strict=True)):
            mask[i, list(hidden)] = 0
            places = prompt_places(prompt, text, hidden)
            spans.append(Span(prompt, 0, [i * width + place for place in places]))
        inputs = {"input_ids": ids}
        if any(masked):
            inputs["attention_mask"] = mask
        with self._shifted(spans):
            return self._states(where, **inputs)

    def _shifted(self, spans: Sequence[Span]) -> AbstractContextManager[None]:
        return nullcontext() if self.shifts is None else self.shifts.added(self.model, spans)

    def _states(self, where: Tensor, **inputs: Any) -> Tensor:
        """Compute hidden states [P, H], or logits [P, V] if the output layer is of unknown kind."""
        if self.layer is None:
            return predict(self.model, where, **inputs, use_cache=False)[0]
        return final_states(self.model, where, **inputs, use_cache=False)

    def _logits(self, states: Tensor) -> Tensor:
        """Compute the logits [chunk, V] of a chunk of states [chunk, ·]."""
        return states if self.layer is None else self.layer(states)

    def score_positions(self, states: Tensor, wanted: Wanted | None = None) -> PositionScores:
        """Compute losses of labels, and most probable tokens, at positions.

        Args:
            states: [P, ·] one for each position.
            wanted: What is computed. None: only the most probable token of each position.
        """
        wanted = wanted or Wanted()
        argmax_at = np.arange(len(states)) if wanted.argmax_at is None else wanted.argmax_at
        order = np.argsort(wanted.label_positions, kind="stable")
        label_positions = wanted.label_positions[order]
        label_chunks = self._by_chunk(label_positions, len(states))
        argmax_chunks = self._by_chunk(argmax_at, len(states))
        moment_chunks = self._by_chunk(wanted.moments_at, len(states))
        # A GPU gets all indices in one copy.
        indices = (
            label_positions,
            wanted.labels[order],
            argmax_at,
            wanted.moments_at,
            wanted.observed_labels,
        )
        label_position, label, argmax_position, moment_position, observed_label = self._sent(
            indices
        ).split([*map(len, indices)])

        losses: list[Tensor] = []
        best: list[Tensor] = []
        tokens: list[Tensor] = []
        moments: list[Tensor] = []
        observed: list[Tensor] = []
        for i, chunk in enumerate(states.split(self.chunk)):
            logits = self._logits(chunk)
            begin = i * self.chunk
            labels = label_chunks[i]
            if labels.stop > labels.start:
                rows = label_position[labels] - begin
                losses.append(-logits.log_softmax(1)[rows, label[labels]])
            of_moments = moment_chunks[i]
            if of_moments.stop > of_moments.start:
                moments.append(_moments(logits[moment_position[of_moments] - begin]))
            of_argmax = argmax_chunks[i]
            if of_argmax.stop > of_argmax.start:
                rows = argmax_position[of_argmax] - begin
                top = logits[rows].topk(2, dim=1)  # [s, 2]
                best.append(top.values)
                tokens.append(top.indices[:, 0])
                if wanted.observations:
                    values = _observed(wanted.observations, logits[rows], observed_label[of_argmax])
                    observed.append(values)
        argmax_tokens, tied = _greedy(best, tokens, tie_gap(self.dtype))
        return PositionScores(
            _in_order(losses, order),
            argmax_tokens,
            tied,
            _on_host(moments, columns=2),
            _on_host(observed, columns=0),
        )

    def changed_tokens(
        self, states: Tensor, changes: Sequence[Callable[[Tensor], Tensor]]
    ) -> tuple[list[int], list[bool]]:
        """Compute the most probable token at each position after its logits were changed.

        Args:
            states: [P, ·]
            changes: [P] the function that changes the logits [V] of each position.

        Returns:
            Tokens and ties, as in `score_positions`.
        """
        best: list[Tensor] = []
        tokens: list[Tensor] = []
        begin = 0
        for chunk in states.split(self.chunk):
            changes_of_chunk = changes[begin : begin + len(chunk)]
            begin += len(chunk)
            pairs = zip(changes_of_chunk, self._logits(chunk), strict=True)
            changed = [change(row) for change, row in pairs]
            top = torch.stack(changed).topk(2, dim=1)  # [chunk, 2]
            best.append(top.values)
            tokens.append(top.indices[:, 0])
        return _greedy(best, tokens, tie_gap(self.dtype))

    def sample_tokens(
        self, states: Tensor, uniform: FloatArray, distribution: Distribution
    ) -> list[int]:
        """Sample a token at each position.

        Args:
            states: [P, ·]
            uniform: [P] the random number of each position, see `token_sampling.choose`.
            distribution: The distribution to sample from.

        Returns:
            [P] tokens. NOT_FINITE stands where a logit is NaN or infinite.
        """
        size = max(self.chunk // _SAMPLED_CHUNK, 1)
        numbers = torch.from_numpy(uniform).to(self.device)
        sampled: list[Tensor] = []
        for chunk, numbers_of_chunk in zip(states.split(size), numbers.split(size), strict=True):
            logits = self._logits(chunk)
            unknown = ~logits.amax(1).isfinite()
            tokens = choose(logits, distribution, numbers_of_chunk)
            sampled.append(tokens.masked_fill(unknown, NOT_FINITE))
        listed: list[int] = torch.cat(sampled).tolist()
        return listed

    def _by_chunk(self, positions: IntArray, count: int) -> list[slice]:
        """Return for each chunk of `count` positions which of the ascending `positions` it has."""
        ends = np.searchsorted(positions, np.arange(0, count + self.chunk, self.chunk))
        return [slice(begin, end) for begin, end in pairwise(ends)]


def _moments(logits: Tensor) -> Tensor:
    """Compute mean and variance [Q, 2] of log p over the vocabulary, from logits [Q, V].

    Computed in float32. The variance comes from centred values, because a difference of two large
    numbers would lose its digits.
    """
    logprobs = logits.float().log_softmax(1)
    probabilities = logprobs.exp()
    mean = (probabilities * logprobs).sum(1)
    variance = (probabilities * (logprobs - mean.unsqueeze(1)).square_()).sum(1)
    return torch.stack([mean, variance], dim=1)


def _observed(observations: Sequence[Observation], logits: Tensor, labels: Tensor) -> Tensor:
    """Make O observations [s, O] of logits [s, V] and labels [s]."""
    columns = [observation.per_token(logits, labels).float() for observation in observations]
    return torch.stack(columns, dim=1)


def _on_host(chunks: Sequence[Tensor], columns: int) -> FloatArray:
    """Return all chunks as one array [·, ·]; without chunks an empty one with `columns` columns."""
    if not chunks:
        return np.empty((0, columns))
    values: FloatArray = torch.cat([*chunks]).double().cpu().numpy()
    return values


def _in_order(losses: Sequence[Tensor], order: IntArray) -> FloatArray:
    """Return the losses [M] of labels in their own order, with NaN for losses that are not finite.

    Args:
        losses: The losses by chunk, of labels that were sorted by `order`.
        order: [M] index of each sorted label.
    """
    in_order = np.empty(len(order))
    if losses:
        in_order[order] = torch.cat([*losses]).double().cpu().numpy()
    in_order[~np.isfinite(in_order)] = np.nan
    return in_order


def _greedy(
    best: Sequence[Tensor], tokens: Sequence[Tensor], gap: float
) -> tuple[list[int], list[bool]]:
    """Return tokens [S] and ties [S], from two largest logits [s, 2] and tokens [s] by chunk."""
    if not tokens:
        return [], []
    first, second = torch.cat([*best]).unbind(1)
    chosen = torch.cat([*tokens]).masked_fill(~first.isfinite(), NOT_FINITE)
    # Both go to the host together, so that it waits for a GPU only once.
    token_list, tie_list = torch.stack([chosen, first - second < gap]).tolist()
    return token_list, [*map(bool, tie_list)]


def tie_gap(dtype: torch.dtype) -> float:
    """Return the distance below which two logits are a tie.

    Another batch changes logits by about so much if products are computed in `dtype`.
    """
    return _TIES.get(dtype, _TIE)
