"""A model's predictions at chosen positions, without padding and without logits for all of them.

Tokens go through the model in one row (`models.packed_attention`) where that is found to give the
same states for a trial question; else as padded rows. The output layer and the log-softmax follow a
chunk of positions at a time, so that [chunk, vocabulary] is the largest tensor.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, IntArray
from unlearnbench.base.errors import ModelError
from unlearnbench.base.out_of_memory import empty_cache, map_over_ranks, trim_heap
from unlearnbench.config.precision import Precision
from unlearnbench.evaluation.precision import computing_in_precision, precision_of_model
from unlearnbench.evaluation.prefix_tree import Tree, TreeLayout, build_tree
from unlearnbench.models.batching import fast_batch_tokens
from unlearnbench.models.device import kept_tokens, max_cached_tokens, product_dtype
from unlearnbench.models.encoding import Row
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
from unlearnbench.models.token_sampling import Distribution, choose

NOT_FINITE = -1
"""The most probable token where logits are NaN or infinite."""

# Logits in a chunk: as many as stay in a CPU's cache; on a GPU enough rows to keep it busy.
_CHUNK = {"cpu": 1 << 19}
_CHUNK_ELSEWHERE = 1 << 27
# Sampling has about four tensors of float64 beside the logits, so its chunks are smaller.
_SAMPLED_CHUNK = 8
# Batches of tokens whose keys and values decoding stores: a step of few answers takes nearly as
# long as one of many. On a CPU no more than a quarter of what scoring keeps, but at least a quarter
# of these batches.
_SLOT_BATCHES = 16
# By the dtype of products, two logits nearer than this are a tie.
_TIES = {torch.bfloat16: 0.25, torch.float16: 0.03, torch.float64: 1e-10}
_TIE = 1e-4
_NO_INDICES: IntArray = np.empty(0, dtype=np.int64)


Keys = dict[nn.Module, tuple[Tensor, Tensor]]
"""By attention layer, the keys and values [t, kv heads, d] of t tokens."""


@dataclass(eq=False)
class KeptKeys:
    """Keys and values of tokens that scoring has read, and decoding would read again."""

    wanted: Callable[[int, Sequence[int], Sequence[bool]], int]
    """How many first tokens of a question's first row to keep, from its index, its most probable
    tokens and their ties."""
    room: int
    """Tokens that may still be kept."""
    by_question: dict[int, Keys] = field(default_factory=dict[int, Keys])

    def keep(self, index: int, tree: Tree, offset: int, count: int, keys: Keys) -> None:
        """Keep those of the first `count` tokens, of a tree whose nodes begin at `offset`."""
        if 0 < count <= self.room and keys:
            self.room -= count
            nodes = torch.from_numpy(tree.paths[0][:count] + offset)
            self.by_question[index] = {
                layer: (key[nodes], value[nodes]) for layer, (key, value) in keys.items()
            }


class PositionScores(NamedTuple):
    """Predictions at some positions of M labels and S places whose greedy token is wanted."""

    losses: FloatArray
    """[M] negative log-likelihood of each label in nats; NaN where logits are not finite."""
    argmax_tokens: list[int]
    """[S] the most probable token, or NOT_FINITE."""
    tied: list[bool]
    """[S] True if the two largest logits are so close that batching may exchange them."""
    moments: FloatArray
    """[Q, 2] mean and variance of the log-probability over the vocabulary, in nats."""
    observed: FloatArray
    """[S, O] what each observation gives."""


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

        trial         a question on which packing is tried
        longest       tokens of the longest row there will be
        batch_tokens  tokens of a forward pass, approximately; default: fast on the device
        chunk         positions whose logits exist at once; default: fast on the device
        shifts        added to the embeddings of prompts
        precision     of the evaluation, see `computing_in_precision`
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
        """None where it is of an unknown kind: then the model computes its own logits."""
        with computing_in_precision(model, precision):
            self.precision = precision_of_model(model)
            self.dtype = product_dtype(parameter)
            """The dtype of products, keys and values."""
            with suppress(ModelError):
                self.layer = OutputLayer(model, copied=False)
            # What training left is free memory then, in one piece.
            if kind == "cuda":
                empty_cache()
            else:
                trim_heap()
            self.kept_tokens = kept_tokens(model)
            """Tokens whose keys and values may be kept from scoring for decoding."""
            tokens = _SLOT_BATCHES * self.batch_tokens
            most = min(tokens, max(self.kept_tokens, tokens) // 4) if kind == "cpu" else tokens
            self.slot_tokens = max_cached_tokens(model, most)
            """Tokens whose keys and values may be stored at once."""
            self.packed = can_pack(model, longest) and self._packs(trial, longest)
            """True if tokens go through the model in one row; else texts are padded rows."""

    @contextmanager
    def ready(self) -> Generator[None, None, None]:
        """Prepare the model for predictions; meanwhile it serves nothing else."""
        with (
            computing_in_precision(self.model, self._precision),
            packing(self.model) if self.packed else nullcontext(),
        ):
            yield

    def _packs(self, trial: Tree, longest: int) -> bool:
        """True if a packed tree gives the states that its rows give one by one.

        A row of `longest` tokens is tried, too: a mask that the configuration does not name may
        differ from a causal one in long rows only.
        """
        text = np.resize(trial.ids, longest)  # again and again
        long_row = build_tree([Row((*map(int, text),), max(longest // 2, 1))])
        is_longer = longest > max(len(row.ids) for row in trial.rows)
        try:
            with packing(self.model):
                packed = self._packed_trees([trial])
                packed_long = self._packed_trees([long_row]) if is_longer else None
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, RuntimeError, KeyError):
            return False  # the model's attention has arguments that the library's kernel lacks
        rows = self._padded_trees([trial])
        if not states_match(packed, rows, lambda: self._padded_trees([trial], rows=1)):
            return False
        if packed_long is None:
            return True
        return long_row_matches(packed_long, self._padded_trees([long_row]))

    def tree_states(self, trees: Sequence[Tree], kept: Keys | None = None) -> Tensor:
        """States [P, ·] at the predicting nodes of each tree, one after the other.

        kept  gets the keys and values of all nodes, where texts are packed
        """
        return self._packed_trees(trees, kept) if self.packed else self._padded_trees(trees)

    def _packed_trees(self, trees: Sequence[Tree], kept: Keys | None = None) -> Tensor:
        offsets = np.cumsum([0, *(len(tree.ids) for tree in trees)])
        where = [tree.predicting + o for tree, o in zip(trees, offsets, strict=False)]
        ids, depths, places = (
            torch.from_numpy(np.concatenate(parts)).to(self.device)
            for parts in ([t.ids for t in trees], [t.depths for t in trees], where)
        )
        layout = TreeLayout(trees, self.dtype, self.device)
        layout.kept = kept
        spans = [
            Span(tree.prompt, 0, (tree.stem + o).tolist())
            for tree, o in zip(trees, offsets, strict=False)
        ]
        return self.row_states(ids, depths, places, layout, spans)

    def _padded_trees(self, trees: Sequence[Tree], rows: int | None = None) -> Tensor:
        """States [P, ·] with `rows` in a batch; default: all rows in one."""
        texts = [row.ids[:-1] for tree in trees for row in tree.rows]
        masked = [row.masked for tree in trees for row in tree.rows]
        begins = [row.start - 1 for tree in trees for row in tree.rows]
        prompts = [tree.prompt for tree in trees for _ in tree.rows]
        each = rows or len(texts)
        parts = [slice(i, i + each) for i in range(0, len(texts), each)]
        states = torch.cat(
            [self.text_states(texts[p], begins[p], prompts[p], masked[p]) for p in parts]
        )
        # Each row has its own state of a shared node; the first one serves.
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
        """States [P, ·] at the places `where` [P] of a packed row of tokens [N].

        spans  the tokens that belong to prompts
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
        """States [P, ·] of whole texts, at `begins` and all places after it in each.

        masked  of each text, indices of the tokens that no token sees; default: none
        """
        ids, mask = padded(texts, self.pad, self.device)
        masked = masked or [()] * len(texts)
        columns = torch.arange(ids.shape[1], device=self.device)
        first = torch.tensor(begins, device=self.device)
        where = mask.bool() & (columns >= first.unsqueeze(1))
        # No token sees the padding behind its text. Masked padding would see nothing behind a
        # sliding window, and its NaN would reach the texts: 0 · NaN is NaN.
        mask = torch.ones_like(mask)
        spans: list[Span] = []
        for i, (prompt, text, hidden) in enumerate(zip(prompts, texts, masked, strict=True)):
            mask[i, list(hidden)] = 0
            places = prompt_places(prompt, text, hidden)
            spans.append(Span(prompt, 0, [i * ids.shape[1] + location for location in places]))
        inputs = {"input_ids": ids}
        if any(masked):
            inputs["attention_mask"] = mask
        with self._shifted(spans):
            return self._states(where, **inputs)

    def _shifted(self, spans: Sequence[Span]) -> AbstractContextManager[None]:
        return nullcontext() if self.shifts is None else self.shifts.added(self.model, spans)

    def _states(self, where: Tensor, **inputs: Any) -> Tensor:
        """Hidden states [P, H]; logits [P, V] where the output layer is of an unknown kind."""
        if self.layer is None:
            return predict(self.model, where, **inputs, use_cache=False)[0]
        return final_states(self.model, where, **inputs, use_cache=False)

    def score_positions(
        self,
        states: Tensor,
        label_positions: IntArray = _NO_INDICES,
        labels: IntArray = _NO_INDICES,
        argmax_at: IntArray | None = None,
        moments_at: IntArray = _NO_INDICES,
        observations: Sequence[Observation] = (),
        observed_labels: IntArray = _NO_INDICES,
    ) -> PositionScores:
        """Losses of labels, and greedy tokens, at positions with `states` [P, ·].

        label_positions  [M] the position that predicts each label, in any order
        labels           [M]
        argmax_at        [S] positions, ascending, whose most probable token is wanted; default: all
        moments_at       [Q] positions, ascending, whose moments are wanted
        observations     made at the positions `argmax_at`
        observed_labels  [S] the label in each of these, for observations
        """
        argmax_at = np.arange(len(states)) if argmax_at is None else argmax_at
        order = np.argsort(label_positions, kind="stable")
        label_chunks = self._by_chunk(label_positions[order], len(states))
        argmax_chunks = self._by_chunk(argmax_at, len(states))
        moment_chunks = self._by_chunk(moments_at, len(states))
        indices = (label_positions[order], labels[order], argmax_at, moments_at, observed_labels)
        sent = torch.from_numpy(np.concatenate(indices)).to(self.device)  # one copy to a GPU
        position, label, argmax_position, moment_position, own_label = sent.split(
            [*map(len, indices)]
        )
        losses: list[Tensor] = []
        best: list[Tensor] = []
        tokens: list[Tensor] = []
        moments: list[Tensor] = []
        observed: list[Tensor] = []
        for i, part in enumerate(states.split(self.chunk)):
            logits = part if self.layer is None else self.layer(part)  # [chunk, V]
            begin, subset, at, of = (
                i * self.chunk,
                label_chunks[i],
                argmax_chunks[i],
                moment_chunks[i],
            )
            if subset.stop > subset.start:
                losses.append(-logits.log_softmax(1)[position[subset] - begin, label[subset]])
            if of.stop > of.start:
                moments.append(_moments(logits[moment_position[of] - begin]))
            if at.stop > at.start:
                top = logits[argmax_position[at] - begin].topk(2, dim=1)  # [s, 2]
                best.append(top.values)
                tokens.append(top.indices[:, 0])
                if observations:
                    chosen = logits[argmax_position[at] - begin]
                    made = [each.per_token(chosen, own_label[at]) for each in observations]
                    observed.append(torch.stack([column.float() for column in made], dim=1))
        greedy = _greedy(best, tokens, tie_gap(self.dtype))
        result = torch.cat(moments).double().cpu().numpy() if moments else np.empty((0, 2))
        seen = torch.cat(observed).double().cpu().numpy() if observed else np.empty((0, 0))
        return PositionScores(_in_order(losses, order), *greedy, result, seen)

    def changed_tokens(
        self, states: Tensor, changes: Sequence[Callable[[Tensor], Tensor]]
    ) -> tuple[list[int], list[bool]]:
        """The most probable token at each position after its logits were changed.

        Args:
            states: [P, ·]
            changes: [P] what is done to the logits [V] of each position.

        Returns:
            Tokens and ties, as in `score_positions`.
        """
        best: list[Tensor] = []
        tokens: list[Tensor] = []
        begin = 0
        for part in states.split(self.chunk):
            logits = part if self.layer is None else self.layer(part)  # [chunk, V]
            subset = changes[begin : begin + len(part)]
            begin += len(part)
            changed = [change(row) for change, row in zip(subset, logits, strict=True)]
            top = torch.stack(changed).topk(2, dim=1)  # [chunk, 2]
            best.append(top.values)
            tokens.append(top.indices[:, 0])
        return _greedy(best, tokens, tie_gap(self.dtype))

    def sample_tokens(
        self, states: Tensor, uniform: FloatArray, distribution: Distribution
    ) -> list[int]:
        """[P] a token sampled at each position with `states` [P, ·], or NOT_FINITE.

        uniform  [P] the number that decides at each position, see `token_sampling.choose`
        """
        size = max(self.chunk // _SAMPLED_CHUNK, 1)
        numbers = torch.from_numpy(uniform).to(self.device)
        chosen: list[Tensor] = []
        for part, subset in zip(states.split(size), numbers.split(size), strict=True):
            logits = part if self.layer is None else self.layer(part)  # [size, V]
            unknown = ~logits.amax(1).isfinite()
            chosen.append(choose(logits, distribution, subset).masked_fill(unknown, NOT_FINITE))
        tolist: list[int] = torch.cat(chosen).tolist()
        return tolist

    def _by_chunk(self, positions: IntArray, count: int) -> list[slice]:
        """For each chunk of `count` positions, the part of `positions`, ascending, inside it."""
        ends = np.searchsorted(positions, np.arange(0, count + self.chunk, self.chunk))
        return [slice(begin, end) for begin, end in pairwise(ends)]


def _moments(logits: Tensor) -> Tensor:
    """[Q, 2] mean and variance of log p over the vocabulary, from logits [Q, V].

    In float32, and the variance from centred values: as a difference of two large numbers it would
    lose its digits.
    """
    logprobs = logits.float().log_softmax(1)
    probabilities = logprobs.exp()
    mean = (probabilities * logprobs).sum(1)
    variance = (probabilities * (logprobs - mean.unsqueeze(1)).square_()).sum(1)
    return torch.stack([mean, variance], dim=1)


def _in_order(losses: Sequence[Tensor], order: IntArray) -> FloatArray:
    """[M] losses of labels that were sorted by `order`; NaN where not finite."""
    result = np.empty(len(order))
    if losses:
        result[order] = torch.cat([*losses]).double().cpu().numpy()
    result[~np.isfinite(result)] = np.nan
    return result


def _greedy(
    best: Sequence[Tensor], tokens: Sequence[Tensor], gap: float
) -> tuple[list[int], list[bool]]:
    """[S] greedy tokens and ties, from the two largest logits [s, 2] and tokens [s] by chunk."""
    if not tokens:
        return [], []
    first, second = torch.cat([*best]).unbind(1)
    chosen = torch.cat([*tokens]).masked_fill(~first.isfinite(), NOT_FINITE)
    both: list[list[int]] = torch.stack([chosen, first - second < gap]).tolist()  # one wait
    return both[0], [*map(bool, both[1])]


def tie_gap(dtype: torch.dtype) -> float:
    """Distance below which two logits are a tie: about what another batch changes in `dtype`."""
    return _TIES.get(dtype, _TIE)


@dataclass(frozen=True, eq=False)
class QuestionScores:
    """One question's rows under the model."""

    losses: tuple[FloatArray, ...]
    """For each row, the negative log-likelihood of its scored tokens, EOS included, in nats; NaN
    where undefined."""
    argmax_tokens: tuple[int, ...]
    """The most probable token in place of each scored token of the first row, or NOT_FINITE."""
    tied: tuple[bool, ...]
    """For each of these, True if another was nearer than `predictor.tie_gap`."""
    moments: FloatArray | None
    """[T, 2] mean and variance of the log-probability in these places; None where not wanted."""
    observed: FloatArray
    """[T, O] what each observation gives there."""


def score(
    predictor: Predictor,
    trees: Sequence[Tree],
    count: Callable[[int], None] = lambda _: None,
    moments: Sequence[bool] = (),
    observations: Sequence[Observation] = (),
    kept: KeptKeys | None = None,
) -> list[QuestionScores]:
    """Score all rows of all questions.

    count         called with the number of questions that this process has scored
    moments       for each question, whether those of its first row are wanted; default: of none
    observations  made of the tokens of every first row
    kept          gets what it wants of the questions of this process
    """
    batches = [*_batches(trees, predictor.batch_tokens)]

    def score_batch(batch: list[int]) -> list[QuestionScores]:
        wanted = [moments[i] if moments else False for i in batch]
        result = _score_batch(predictor, batch, trees, wanted, observations, kept)
        count(len(batch))
        return result

    scores: dict[int, QuestionScores] = {}
    for batch, rank in zip(batches, map_over_ranks(score_batch, batches), strict=True):
        scores |= zip(batch, rank, strict=True)
    return [scores[i] for i in range(len(trees))]


def _batches(trees: Sequence[Tree], budget: int) -> Iterator[list[int]]:
    """Trees of similar size, largest first, of `budget` tokens together where that is possible."""
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(trees)), key=lambda i: -len(trees[i].ids)):
        if batch and tokens + len(trees[i].ids) > budget:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += len(trees[i].ids)
    if batch:
        yield batch


def _score_batch(
    predictor: Predictor,
    batch: Sequence[int],
    every: Sequence[Tree],
    moments: Sequence[bool],
    observations: Sequence[Observation],
    kept: KeptKeys | None,
) -> list[QuestionScores]:
    trees = [every[i] for i in batch]
    keys: Keys | None = {} if kept is not None and kept.room else None
    offsets = np.cumsum([0, *(len(tree.predicting) for tree in trees)])
    rows = [
        (places + offset, row.ids[row.start :])
        for tree, offset in zip(trees, offsets, strict=False)
        for row, places in zip(tree.rows, tree.places, strict=True)
    ]
    answers = [tree.places[0] + offset for tree, offset in zip(trees, offsets, strict=False)]
    wanted = [places for places, is_wanted in zip(answers, moments, strict=True) if is_wanted]
    labels = [np.array(tree.rows[0].ids[tree.rows[0].start :]) for tree in trees]
    losses, argmax, tied, result, observed = predictor.score_positions(
        predictor.tree_states(trees, keys),
        np.concatenate([places for places, _ in rows]),
        np.concatenate([labels for _, labels in rows]),
        np.concatenate(answers),
        np.concatenate([_NO_INDICES, *wanted]),
        observations,
        np.concatenate(labels) if observations else _NO_INDICES,
    )
    by_row = iter(np.split(losses, np.cumsum([len(places) for places, _ in rows])))
    by_answer = iter(np.split(result, np.cumsum([*map(len, wanted)])))
    ends = np.cumsum([0, *map(len, answers)]).tolist()
    if kept is not None and keys is not None:
        begins = np.cumsum([0, *(len(tree.ids) for tree in trees)]).tolist()
        for i, tree, node, begin, end in zip(batch, trees, begins, ends, ends[1:], strict=False):
            count = kept.wanted(i, argmax[begin:end], tied[begin:end])
            kept.keep(i, tree, node, count, keys)
    return [
        QuestionScores(
            losses=tuple(next(by_row) for _ in tree.rows),
            argmax_tokens=tuple(argmax[begin:end]),
            tied=tuple(tied[begin:end]),
            moments=next(by_answer) if is_wanted else None,
            observed=observed[begin:end],
        )
        for tree, is_wanted, begin, end in zip(trees, moments, ends, ends[1:], strict=False)
    ]
