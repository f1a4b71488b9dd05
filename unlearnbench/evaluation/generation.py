"""Greedy answers to many prompts at once, from drafts where there are some.

A step puts the tokens of all unfinished answers through the model, and with them guesses at what
comes next; guesses that greedy decoding would have said itself are taken, the first other token
corrected. So the answers are those of decoding one token at a time, with fewer steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from unlearnbench.evaluation.drafting import Guesser
from unlearnbench.evaluation.prediction import NOT_FINITE, Predictor
from unlearnbench.evaluation.processes import spread
from unlearnbench.evaluation.shapes import rounded
from unlearnbench.evaluation.slots import SlotLayout
from unlearnbench.group import world
from unlearnbench.models.shifted import Span

GUESSES = 16
"""Most tokens of an answer that are guessed for a step."""
# A step of a GPU waits for its memory, as long as it has few tokens: some more cost nothing.
_UNASKED = {"cpu": 0}
_UNASKED_ELSEWHERE = 4
_FREE = 256
# Slots of finished answers are filled again when this share of them is free.
_REFILL = 1 / 4


@dataclass
class Answer:
    """A greedy answer as far as it is known."""

    ids: list[int] = field(default_factory=list[int])
    """Without EOS."""
    ended: bool = False
    """By EOS, not by the limit."""
    finite: bool = True
    """Stopped where logits were NaN or infinite if not."""
    tied: bool = False
    """A choice hung on a tie, see `prediction.tie_gap`."""
    drafted: int = 0
    """Tokens that a draft or a guess had, EOS included."""

    @property
    def tokens(self) -> int:
        """Tokens that greedy decoding has produced, EOS included."""
        return len(self.ids) + self.ended

    def take(
        self, guess: Sequence[int], said: Sequence[int], tied: Sequence[bool], limit: int, eos: int
    ) -> int:
        """Go on as greedy decoding would, up to EOS or `limit` tokens in all.

        guess       tokens that may come next
        said, tied  what greedy decoding says in the place of each and, if the model has read all of
                    the guess, after it; and whether on a tie
        Returns how many tokens of the guess were right.
        """
        right = next((i for i, (g, s) in enumerate(zip(guess, said, strict=False)) if g != s), None)
        right = min(len(guess), len(said)) if right is None else right
        for i, token in enumerate(said[: right + 1]):
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

    def goes_on(self, limit: int) -> bool:
        """Whether there is something left to decode."""
        return self.finite and not self.ended and len(self.ids) < limit


@dataclass(frozen=True)
class Prompt:
    """What an answer begins from."""

    ids: tuple[int, ...]
    limit: int
    """Tokens the answer may have."""
    draft: tuple[int, ...] = ()
    """What it is likely to be, EOS included; or nothing."""
    like: tuple[tuple[int, ...], ...] = ()
    """Texts that it may share phrases with. Neither changes an answer, but how soon it is there."""


def decode(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    eos: int,
    done: Callable[[list[int], list[Answer]], None] | None = None,
) -> tuple[list[Answer], int]:
    """Decode `answers` from where they are to their ends; returns them and the steps it took.

    `done` gets the places of answers and the answers as they are finished, in this process.
    """
    order = _order(prompts, [i for i, a in enumerate(answers) if a.goes_on(prompts[i].limit)])
    lots = [lot for rank in range(world()) if (lot := order[rank :: world()])]

    def work(lot: list[int]) -> tuple[int, list[Answer]]:
        decoding = _Decoding(predictor, [prompts[i] for i in lot], [answers[i] for i in lot], eos)
        decoding.run()
        if done is not None:
            done(lot, decoding.answers)
        return decoding.steps, decoding.answers

    ends, steps = [*answers], 0
    for lot, (taken, found) in zip(lots, spread(lots, work), strict=True):
        steps += taken
        for i, answer in zip(lot, found, strict=True):
            ends[i] = answer
    return ends, steps


def _order(prompts: Sequence[Prompt], chosen: Iterable[int]) -> list[int]:
    """Longest first, so that none is left to decode alone at the end."""
    return sorted(chosen, key=lambda i: -len(prompts[i].ids) - prompts[i].limit)


def steps_of(tokens: Sequence[int], prompts: Sequence[Prompt], slot_tokens: int) -> int:
    """Steps that answers of so many tokens would take at least, decoded one token at a time."""
    slots = _slots(prompts, slot_tokens)
    return max(math.ceil(sum(tokens) / slots), max(tokens))


def _slots(prompts: Sequence[Prompt], slot_tokens: int) -> int:
    longest = max(len(prompt.ids) + prompt.limit for prompt in prompts)
    return min(max(slot_tokens // longest, 1), len(prompts))


class _Decoding:
    """Answers in progress, all that one process decodes."""

    def __init__(
        self,
        predictor: Predictor,
        prompts: Sequence[Prompt],
        answers: Sequence[Answer],
        eos: int,
    ) -> None:
        self.predictor, self.prompts, self.eos = predictor, prompts, eos
        self.answers = [replace(answer, ids=[*answer.ids]) for answer in answers]
        self.slots: list[int | None] = [None] * _slots(prompts, predictor.slot_tokens)
        """Which answer is in each slot."""
        self.guessers: dict[int, Guesser] = {}
        """Of the answers in slots."""
        longest = max(len(prompt.ids) + prompt.limit for prompt in prompts)
        self.layout = SlotLayout(len(self.slots), longest, predictor.dtype, predictor.device)
        self.kept = [0] * len(prompts)
        """Tokens of each text that need not go through the model again."""
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
                self._step(new, first=True)
            else:
                if not waiting and busy <= len(self.slots) / 2:
                    self._keep([slot for slot, i in enumerate(self.slots) if i is not None])
                self._step([slot for slot, i in enumerate(self.slots) if i is not None])

    def _keep(self, slots: list[int]) -> None:
        count = min(rounded(len(slots), self.predictor.device.type), len(self.slots))
        none = [None] * (count - len(slots))
        self.slots = [*(self.slots[slot] for slot in slots), *none]
        self.layout.keep([*slots, *slots[:1] * len(none)])

    def _step(self, slots: list[int], *, first: bool = False) -> None:
        """One forward pass for the answers in `slots`, which give up those that it finishes."""
        self.steps += 1
        chosen = [i for i in (self.slots[slot] for slot in slots) if i is not None]
        unasked = _unasked(len(chosen), self.predictor.device.type)
        guesses = [self._draft(i) if first else self._guess(i, unasked) for i in chosen]
        texts = [
            (*self.prompts[i].ids, *self.answers[i].ids, *guess)
            for i, guess in zip(chosen, guesses, strict=True)
        ]
        # The last token that is known, and every guess, says what comes next.
        begins = [len(t) - len(g) - 1 for t, g in zip(texts, guesses, strict=True)]
        states = self._states(slots, texts, [self.kept[i] for i in chosen], begins)
        nothing = np.empty(0, dtype=np.int64)
        _, said, tied = self.predictor.read(states, nothing, nothing, np.arange(len(states)))
        end = 0
        for slot, i, guess, begin in zip(slots, chosen, guesses, begins, strict=True):
            span = slice(end, end + len(guess) + 1)
            end = span.stop
            answer, limit = self.answers[i], self.prompts[i].limit
            before = len(answer.ids)
            right = answer.take(guess, said[span], tied[span], limit, self.eos)
            if not answer.goes_on(limit):
                self.slots[slot] = None
                self.guessers.pop(i, None)
                continue
            if first:
                self.guessers[i] = Guesser(self.prompts[i].like, answer.ids)
            else:
                self.guessers[i].hear(answer.ids[before:])
            if self.predictor.packed:
                self.kept[i] = begin + 1 + right

    def _states(
        self,
        slots: list[int],
        texts: Sequence[tuple[int, ...]],
        kept: Sequence[int],
        begins: Sequence[int],
    ) -> torch.Tensor:
        """States at `begins` and after, text by text."""
        predictor = self.predictor
        prompts = [self.prompts[i].ids for i in (self.slots[s] for s in slots) if i is not None]
        if not predictor.packed:
            return predictor.text_states(texts, begins, prompts)
        widths = [len(text) - k for text, k in zip(texts, kept, strict=True)]
        positions = self.layout.expect(slots, kept, widths)
        ids = [token for text, k in zip(texts, kept, strict=True) for token in text[k:]]
        ends = np.cumsum(widths)
        spans = [
            Span(prompt, k, range(end - width, end - width + max(len(prompt) - k, 0)))
            for prompt, k, end, width in zip(prompts, kept, ends.tolist(), widths, strict=True)
        ]
        where = np.concatenate(
            [
                np.arange(end - (len(text) - begin), end)
                for end, text, begin in zip(ends, texts, begins, strict=True)
            ]
        )
        return predictor.row_states(
            torch.tensor(ids, device=predictor.device),
            positions,
            torch.from_numpy(where).to(predictor.device),
            self.layout,
            spans,
        )

    def _draft(self, i: int) -> tuple[int, ...]:
        """The rest of the draft, if the answer has begun like it."""
        prompt, known = self.prompts[i], self.answers[i].ids
        if prompt.draft[: len(known)] != tuple(known):
            return ()
        return prompt.draft[len(known) : prompt.limit - 1]

    def _guess(self, i: int, unasked: int) -> tuple[int, ...]:
        # The step itself says one more token than is guessed.
        left = self.prompts[i].limit - len(self.answers[i].ids) - 1
        return self.guessers[i].guess(min(left, GUESSES), unasked)


def _unasked(answers: int, device: str) -> int:
    """Guesses for each of so many answers, whatever past ones were like."""
    most = _UNASKED.get(device, _UNASKED_ELSEWHERE)
    return max(min(most, (_FREE - 1) // answers - 1), 0)
