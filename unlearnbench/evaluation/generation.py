"""Greedy or sampled answers to many prompts at once, by speculative decoding.

A step puts the last tokens of all unfinished answers through the model, and behind each a draft of
what may come next. Draft tokens that greedy decoding would have produced are accepted, the first
other one is corrected. So the answers are those of decoding one token at a time, in fewer steps.

Sampling differs in how a token is chosen: by its logits and by a random number of the answer and
the place, see `models/token_sampling.py`. So drafts serve there too. The samples of one prompt
share its keys and values, which are computed for the first one, and copied.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from unlearnbench.api.observations import FloatArray
from unlearnbench.evaluation.draft_lookup import DraftLookup
from unlearnbench.evaluation.kv_slots import SlotCache
from unlearnbench.evaluation.padded_shapes import padded_size
from unlearnbench.evaluation.predictor import NOT_FINITE, Predictor
from unlearnbench.models.prompt_shift import Span
from unlearnbench.models.token_sampling import Distribution, uniform_numbers
from unlearnbench.runtime.distributed import world_size
from unlearnbench.runtime.out_of_memory import map_over_ranks

MAX_DRAFT = 16
"""Draft tokens of an answer in a step, at most."""
# A GPU step with few tokens waits for memory: some draft tokens more cost nothing.
_MINIMUM = {"cpu": 0}
_MINIMUM_ELSEWHERE = 4
_FREE_TOKENS = 256
# Slots of finished answers are filled again when this share of them is free.
_REFILL = 1 / 4


@dataclass
class Answer:
    """A greedy or sampled answer, as far as it is decoded."""

    ids: list[int] = field(default_factory=list[int])
    """Without EOS."""
    ended: bool = False
    """True if EOS has ended it, not the limit."""
    finite: bool = True
    """False if it stopped where logits were NaN or infinite."""
    tied: bool = False
    """True if a choice hung on a tie, see `predictor.tie_gap`."""
    drafted: int = 0
    """Tokens accepted from drafts, EOS included."""

    @property
    def tokens(self) -> int:
        """Tokens that greedy decoding has produced, EOS included."""
        return len(self.ids) + self.ended

    def accept(
        self,
        draft: Sequence[int],
        argmax: Sequence[int],
        tied: Sequence[bool],
        limit: int,
        eos: int,
    ) -> int:
        """Go on as greedy decoding would, up to EOS or `limit` tokens in all.

        draft   tokens that may come next
        argmax  the greedy token in place of each and, if the model has read the whole draft, the
                one after it
        tied    for each of these, whether it hung on a tie
        Returns how many tokens of the draft were right.
        """
        pairs = enumerate(zip(draft, argmax, strict=False))
        right = next((i for i, (d, a) in pairs if d != a), min(len(draft), len(argmax)))
        for i, token in enumerate(argmax[: right + 1]):
            if len(self.ids) == limit:
                break
            self.tied = self.tied or tied[i]
            if token == NOT_FINITE:
                self.finite = False
                break
            self.drafted += i < right
            if token == eos:
                self.ended = True
                break
            self.ids.append(token)
        return right

    def unfinished(self, limit: int) -> bool:
        """True if there are tokens left to decode."""
        return self.finite and not self.ended and len(self.ids) < limit


@dataclass(frozen=True)
class Prompt:
    """The tokens before an answer, and drafts of it. Drafts change how fast it is decoded only."""

    ids: tuple[int, ...]
    limit: int
    """Tokens the answer may have."""
    draft: tuple[int, ...] = ()
    """A likely answer, EOS included; or nothing."""
    similar: tuple[tuple[int, ...], ...] = ()
    """Texts that the answer may share phrases with."""
    seed: tuple[int, ...] = ()
    """Words that a sampled answer's random numbers are made from."""


def decode(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    eos: int,
    count: Callable[[int], None] = lambda _: None,
    how: Distribution | None = None,
) -> tuple[list[Answer], int]:
    """Decode `answers` to their ends; returns them and the steps that took, of all processes.

    count  called with the number of answers that this process has finished
    how    the distribution to sample from; None: greedily
    """
    chosen = [i for i, answer in enumerate(answers) if answer.unfinished(prompts[i].limit)]
    # Longest first, so that none is left to decode alone at the end.
    order = sorted(chosen, key=lambda i: -len(prompts[i].ids) - prompts[i].limit)
    groups: dict[object, list[int]] = {}  # the samples of a prompt stay together
    for i in order:
        groups.setdefault(i if how is None else prompts[i].ids, []).append(i)
    shares = ([*groups.values()][rank :: world_size()] for rank in range(world_size()))
    lots = [lot for share in shares if (lot := [i for group in share for i in group])]

    def decode_lot(lot: list[int]) -> tuple[int, list[Answer]]:
        own = [prompts[i] for i in lot], [answers[i] for i in lot]
        decoding = _Decoding(predictor, *own, eos, count, how)
        decoding.run()
        return decoding.steps, decoding.answers

    finished, steps = [*answers], 0
    for lot, (lot_steps, found) in zip(lots, map_over_ranks(decode_lot, lots), strict=True):
        steps += lot_steps
        for i, answer in zip(lot, found, strict=True):
            finished[i] = answer
    return finished, steps


def min_steps(tokens: Sequence[int], prompts: Sequence[Prompt], slot_tokens: int) -> int:
    """Steps that answers of so many tokens take at least, decoded one token at a time."""
    if not tokens:
        return 0
    slots = _slots(prompts, slot_tokens)
    return max(math.ceil(sum(tokens) / slots), max(tokens))


def _slots(prompts: Sequence[Prompt], slot_tokens: int) -> int:
    longest = max(len(prompt.ids) + prompt.limit for prompt in prompts)
    return min(max(slot_tokens // longest, 1), len(prompts))


class _Decoding:
    """The answers that one process decodes; an index i below is that of an answer."""

    def __init__(
        self,
        predictor: Predictor,
        prompts: Sequence[Prompt],
        answers: Sequence[Answer],
        eos: int,
        count: Callable[[int], None],
        how: Distribution | None,
    ) -> None:
        self.predictor, self.prompts, self.eos = predictor, prompts, eos
        self.count, self.how = count, how
        self.answers = [replace(answer, ids=[*answer.ids]) for answer in answers]
        self.slots: list[int | None] = [None] * _slots(prompts, predictor.slot_tokens)
        """The answer in each slot."""
        self.lookups: dict[int, DraftLookup] = {}
        """By answer in a slot."""
        longest = max(len(prompt.ids) + prompt.limit for prompt in prompts)
        self.cache = SlotCache(len(self.slots), longest, predictor.dtype, predictor.device)
        self.cached = [0] * len(prompts)
        """Tokens of each text whose keys and values are in its slot."""
        self.held: tuple[tuple[int, ...], int] = (), 0
        """The prompt of the answer that came last into a slot, and the slot, which stores its keys
        and values until others come."""
        self.numbers: dict[int, FloatArray] = {}
        """The random numbers of each sampled answer in a slot."""
        self.steps = 0

    def run(self) -> None:
        """Decode all to their ends."""
        waiting = deque(range(len(self.prompts)))
        while waiting or any(i is not None for i in self.slots):
            free = [slot for slot, i in enumerate(self.slots) if i is None]
            busy = len(self.slots) - len(free)
            if waiting and (not busy or len(free) >= _REFILL * len(self.slots)):
                new = free[: len(waiting)]
                for slot in new:
                    self.slots[slot] = waiting.popleft()
                self._begin(new)
            else:
                if not waiting and busy <= len(self.slots) / 2:
                    self._compact([slot for slot, i in enumerate(self.slots) if i is not None])
                self._step([slot for slot, i in enumerate(self.slots) if i is not None])

    def _begin(self, slots: list[int]) -> None:
        """Begin the answers that came into `slots`; samples of a prompt share what it stores."""
        if self.how is None or not self.predictor.packed:
            self._step(slots, first=True)
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for slot in slots:
            groups.setdefault(self.prompts[self._answer(slot)].ids, []).append(slot)
        held, source = self.held
        self.held = self.prompts[self._answer(slots[-1])].ids, slots[-1]
        # First of all, before its slot stores another prompt.
        self._share(held, source, groups.pop(held, []))
        if groups:
            self._step([own[0] for own in groups.values()], first=True)
        for prompt, own in groups.items():
            self._share(prompt, own[0], own[1:])

    def _share(self, prompt: tuple[int, ...], source: int, slots: list[int]) -> None:
        """Begin the answers to `prompt` in `slots` with its keys and values from another slot.

        Its last token is left out: what it predicts is needed for each answer.
        """
        shared, targets = len(prompt) - 1, [slot for slot in slots if slot != source]
        if targets and shared > 0:
            self.cache.copy([source] * len(targets), targets, shared)
        for i in map(self._answer, slots):
            self.cached[i] = max(shared, 0)
            self.lookups[i] = DraftLookup(self.prompts[i].similar)

    def _answer(self, slot: int) -> int:
        """The answer in a slot that has one."""
        found = self.slots[slot]
        if found is None:
            raise LookupError(f"slot {slot} is free")
        return found

    def _compact(self, slots: list[int]) -> None:
        """Drop the other slots."""
        count = min(padded_size(len(slots), self.predictor.device.type), len(self.slots))
        none = [None] * (count - len(slots))
        self.slots = [*(self.slots[slot] for slot in slots), *none]
        self.cache.compact([*slots, *slots[:1] * len(none)])

    def _step(self, slots: list[int], *, first: bool = False) -> None:
        """One forward pass for the answers in `slots`; frees the slots of finished ones."""
        self.steps += 1
        chosen = [i for i in (self.slots[slot] for slot in slots) if i is not None]
        minimum = _minimum_draft(len(chosen), self.predictor.device.type)
        drafts = [self._first_draft(i) if first else self._draft(i, minimum) for i in chosen]
        texts = [
            (*self.prompts[i].ids, *self.answers[i].ids, *draft)
            for i, draft in zip(chosen, drafts, strict=True)
        ]
        # The last decoded token and each draft token predict the token after it.
        begins = [len(t) - len(d) - 1 for t, d in zip(texts, drafts, strict=True)]
        states = self._states(slots, texts, [self.cached[i] for i in chosen], begins)
        tokens, tied = self._choose(states, chosen, drafts)
        end = finished = 0
        for slot, i, draft, begin in zip(slots, chosen, drafts, begins, strict=True):
            span = slice(end, end + len(draft) + 1)
            end = span.stop
            answer, limit = self.answers[i], self.prompts[i].limit
            before = len(answer.ids)
            right = answer.accept(draft, tokens[span], tied[span], limit, self.eos)
            if not answer.unfinished(limit):
                self.slots[slot] = None
                self.lookups.pop(i, None)
                self.numbers.pop(i, None)
                finished += 1
                continue
            if first:
                self.lookups[i] = DraftLookup(self.prompts[i].similar, answer.ids)
            else:
                self.lookups[i].append(answer.ids[before:])
            if self.predictor.packed:
                self.cached[i] = begin + 1 + right
        if finished:
            self.count(finished)

    def _choose(
        self, states: torch.Tensor, chosen: Sequence[int], drafts: Sequence[tuple[int, ...]]
    ) -> tuple[list[int], list[bool]]:
        """The token in each place with `states` [P, ·], and whether it hung on a tie."""
        if self.how is None:
            _, argmax, tied, *_ = self.predictor.score_positions(states)
            return argmax, tied
        numbers: list[FloatArray] = []
        for i, draft in zip(chosen, drafts, strict=True):
            if i not in self.numbers:
                self.numbers[i] = uniform_numbers(self.prompts[i].seed, self.prompts[i].limit)
            begin = len(self.answers[i].ids)
            numbers.append(self.numbers[i][begin : begin + len(draft) + 1])
        tokens = self.predictor.sample_tokens(states, np.concatenate(numbers), self.how)
        return tokens, [False] * len(tokens)

    def _states(
        self,
        slots: list[int],
        texts: Sequence[tuple[int, ...]],
        cached: Sequence[int],
        begins: Sequence[int],
    ) -> torch.Tensor:
        """States [P, ·] at `begins` and after, text by text."""
        predictor = self.predictor
        prompts = [self.prompts[i].ids for i in (self.slots[s] for s in slots) if i is not None]
        if not predictor.packed:
            return predictor.text_states(texts, begins, prompts)
        widths = [len(text) - c for text, c in zip(texts, cached, strict=True)]
        batch = self.cache.batch(slots, cached, widths)
        ids = [token for text, c in zip(texts, cached, strict=True) for token in text[c:]]  # [N]
        ends = np.cumsum(widths)
        spans = [
            Span(prompt, c, range(end - width, end - width + max(len(prompt) - c, 0)))
            for prompt, c, end, width in zip(prompts, cached, ends.tolist(), widths, strict=True)
        ]
        where = np.concatenate(
            [
                np.arange(end - (len(text) - begin), end)
                for end, text, begin in zip(ends, texts, begins, strict=True)
            ]
        )
        return predictor.row_states(
            torch.tensor(ids, device=predictor.device),
            batch.positions,
            torch.from_numpy(where).to(predictor.device),
            partial(self.cache.attend, batch),
            spans,
        )

    def _first_draft(self, i: int) -> tuple[int, ...]:
        """The rest of the prompt's draft, if the answer so far begins like it."""
        prompt, decoded = self.prompts[i], self.answers[i].ids
        if prompt.draft[: len(decoded)] != tuple(decoded):
            return ()
        return prompt.draft[len(decoded) : prompt.limit - 1]

    def _draft(self, i: int, minimum: int) -> tuple[int, ...]:
        # A step decodes one token more than its draft has.
        left = self.prompts[i].limit - len(self.answers[i].ids) - 1
        return self.lookups[i].draft(min(left, MAX_DRAFT), minimum)


def _minimum_draft(answers: int, device: str) -> int:
    """Draft tokens for each of so many answers, however few were predicted lately."""
    most = _MINIMUM.get(device, _MINIMUM_ELSEWHERE)
    return max(min(most, (_FREE_TOKENS - 1) // answers - 1), 0)
