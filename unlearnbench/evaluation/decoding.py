"""Speculative decoding of many answers at once, in slots.

A forward pass reads few new tokens of every text, so its keys and values of all earlier tokens are
stored. Each text that is being decoded owns a slot of `SlotCache`. Column p of a slot stores the
keys and values of the token at position p:

    slot     column 0                              P prompt token
       0            P P P P A A A t d d            A answer token that is decoded and stored
       1            P P A A A A A A t              t latest answer token: decoded, not stored yet
       2            P P P a a d d d d d            d draft token
       3            (free)

A step reads what is not stored: `t` and `d` in slots 0 and 1. The token `t` predicts what belongs
in place of the first `d`, and each `d` predicts the token after it. Draft tokens that the model
would have chosen itself are accepted. The first other one is replaced by the model's choice, which
becomes the next `t` and overwrites the wrong draft in its slot. So nothing is moved, and no gap has
to be masked.

A text goes through the states of `Stage`, always downward:

    WAITING    It has no slot. The longest texts come first.
       │       A slot is free.
    READING    Slot 2 above: its prompt, and the answer `a` that scoring has verified, have to be
       │       read. The draft is a likely whole answer.
    DECODING   Slots 0 and 1. Drafts come from a `DraftLookup`.
       │       A stop or the limit is reached.
    FINISHED   Its slot is free for another text.

Two short cuts lead past the reading of a prompt. Scoring may have kept the keys and values of a
text's beginning (`kept`). And the samples of one prompt share its keys and values: the prompt is
read for one sample and copied into the slots of the others, which begin in DECODING.

Where the model cannot read packed texts (`Predictor.packed`), nothing is stored, and each step
reads whole texts as padded rows.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from torch import Tensor

from unlearnbench.api.observations import FloatArray
from unlearnbench.evaluation.answers import Answer, Prompt, Stops
from unlearnbench.evaluation.drafts import MAX_DRAFT, DraftLookup, minimum_draft
from unlearnbench.evaluation.predictor import Keys, Predictor
from unlearnbench.evaluation.prefix_tree import padded_array, padded_size
from unlearnbench.evaluation.slot_cache import SlotCache, SlotIndices
from unlearnbench.models.batching import token_budget
from unlearnbench.models.generation_settings import LogitRules
from unlearnbench.models.prompt_shift import Span
from unlearnbench.models.replays import Replays
from unlearnbench.models.token_sampling import Distribution, uniform_numbers

_REFILL = 1 / 4
"""Fraction of the slots that has to be free before waiting texts get them.

Reading prompts is a step of its own, so it is worth waiting for several.
"""
_CPU_BATCHES = 8
"""Batches of tokens that a CPU reads at once when texts begin."""


class Stage(Enum):
    """How far the decoding of a text has come."""

    WAITING = "waiting"
    """It has no slot."""
    READING = "reading"
    """It has a slot. The next step reads its prompt."""
    DECODING = "decoding"
    """Its slot stores the prompt. A step reads the latest token and a draft."""
    FINISHED = "finished"
    """It needs no slot any more."""


@dataclass(eq=False)
class GrowingText:
    """A prompt with an answer that is being decoded."""

    prompt: Prompt
    answer: Answer
    kept: Keys | None = None
    """Keys and values of its first tokens; None if there are none, or if its slot stores them."""
    stage: Stage = Stage.WAITING
    stored: int = 0
    """Number of its first tokens whose keys and values its slot stores, if texts are packed."""
    lookup: DraftLookup = field(default_factory=lambda: DraftLookup(()))
    """Drafts for the stage DECODING."""
    uniform: FloatArray | None = None
    """[limit] the random numbers of a sampled answer; None before the first is needed."""

    def draft(self, minimum: int) -> tuple[int, ...]:
        """Return the tokens that may come next.

        Args:
            minimum: Number of tokens that are drafted even if the lookup was wrong lately.
        """
        if self.stage is Stage.READING:
            return self.first_draft()
        if not (minimum or self.lookup.predicted):
            return ()
        # A step decodes one token more than its draft has.
        left = self.prompt.limit - len(self.answer.ids) - 1
        return self.lookup.draft(min(left, MAX_DRAFT), minimum)

    def first_draft(self) -> tuple[int, ...]:
        """Return the rest of the prompt's draft, if the answer so far begins like it."""
        decoded = self.answer.ids
        if self.prompt.draft[: len(decoded)] != tuple(decoded):
            return ()
        return self.prompt.draft[len(decoded) : self.prompt.limit - 1]

    def unread(self, draft: tuple[int, ...]) -> list[int]:
        """Return the tokens of the text, and of its draft, whose keys and values are not stored."""
        stored_of_answer = self.stored - len(self.prompt.ids)
        if stored_of_answer >= 0:
            return [*self.answer.ids[stored_of_answer:], *draft]
        return [*self.prompt.ids[self.stored :], *self.answer.ids, *draft]

    def uniform_after(self, draft: tuple[int, ...]) -> FloatArray:
        """Return the random numbers [len(draft) + 1] for the places of a draft and the next one."""
        if self.uniform is None:
            self.uniform = uniform_numbers(self.prompt.seed, self.prompt.limit)
        begin = len(self.answer.ids)
        return self.uniform[begin : begin + len(draft) + 1]

    def begin_behind_prompt(self, stored: int) -> None:
        """Go on from READING to DECODING: the slot got `stored` tokens of the prompt as a copy."""
        self.stored = stored
        self.lookup = DraftLookup(self.prompt.similar)
        self.stage = Stage.DECODING

    def advance(
        self, draft: tuple[int, ...], tokens: Sequence[int], tied: Sequence[bool], stops: Stops
    ) -> None:
        """Accept the result of a step.

        Args:
            draft: The draft that the step has read.
            tokens: [len(draft) + 1] the model's choice in place of each draft token and after it.
            tied: [len(draft) + 1] whether the choice hung on a tie.
            stops: Tokens and text that end the answer.
        """
        before = len(self.answer.ids)
        right = self.answer.accept(draft, tokens, tied, self.prompt.limit, stops)
        if not self.answer.unfinished(self.prompt.limit):
            self.stage = Stage.FINISHED
            return
        if self.stage is Stage.READING:
            self.lookup = DraftLookup(self.prompt.similar, self.answer.ids)
            self.stage = Stage.DECODING
        else:
            self.lookup.append(self.answer.ids[before:])
        # The step has read everything but the token that it decoded last.
        self.stored = len(self.prompt.ids) + before + right


class _SharedPrompt(NamedTuple):
    """A prompt whose keys and values a slot stores, also after the slot's text has finished."""

    ids: tuple[int, ...]
    slot: int


class Decoding:
    """The texts that one process decodes."""

    def __init__(
        self,
        predictor: Predictor,
        texts: Sequence[GrowingText],
        stops: Stops,
        count: Callable[[int], None],
        distribution: Distribution | None,
        rules: LogitRules | None,
        slot_tokens: int | None = None,
    ) -> None:
        """Reserve slots.

        Args:
            predictor: The model, ready.
            texts: Unfinished texts without slots, in the order in which they get slots. Samples of
                one prompt follow each other.
            stops: Tokens and text that end an answer.
            count: Is called with the number of answers that a step has finished.
            distribution: What tokens are sampled from. None: the most probable token is chosen.
            rules: Change logits before the most probable token is chosen.
            slot_tokens: Tokens whose keys and values may be stored at once. Defaults to the
                predictor's.
        """
        self.predictor = predictor
        self.stops = stops
        self.count = count
        self.distribution = distribution
        self.rules = rules
        longest = max(len(text.prompt.ids) + text.prompt.limit for text in texts)
        slot_count = min(max((slot_tokens or predictor.slot_tokens) // longest, 1), len(texts))
        self.waiting = deque(texts)
        self.slots: list[GrowingText | None] = [None] * slot_count
        """The text of each slot; None if the slot is free."""
        self.cache = SlotCache(slot_count, longest, predictor.dtype, predictor.device)
        self.shared_prompt = _SharedPrompt((), 0)
        """The prompt of the text that came last into a slot."""
        self.replays = self._new_replays()
        self.step_count = 0

    def run(self) -> None:
        """Decode all texts to their ends."""
        while self.waiting or any(text is not None for text in self.slots):
            free = [slot for slot, text in enumerate(self.slots) if text is None]
            if self.waiting and len(free) >= _REFILL * len(self.slots):
                self._begin(free[: len(self.waiting)])
                continue
            busy = self._busy_slots()
            if not self.waiting and 2 * len(busy) <= len(self.slots):
                self._compact(busy)
                busy = self._busy_slots()
            self._step(busy)

    def _busy_slots(self) -> list[int]:
        return [slot for slot, text in enumerate(self.slots) if text is not None]

    def _text_in(self, slot: int) -> GrowingText:
        """Return the text of a busy slot."""
        text = self.slots[slot]
        if text is None:
            raise LookupError(f"slot {slot} is free")
        return text

    def _begin(self, slots: list[int]) -> None:
        """Give free slots to the texts that wait longest, and read their prompts."""
        for slot in slots:
            text = self.waiting.popleft()
            text.stage = Stage.READING
            self.slots[slot] = text
            if text.kept:
                text.stored = self.cache.put(slot, text.kept)
                text.kept = None
        if self.distribution is None or not self.predictor.packed:
            self._read(slots)
            return

        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for slot in slots:
            by_prompt.setdefault(self._text_in(slot).prompt.ids, []).append(slot)
        before = self.shared_prompt
        self.shared_prompt = _SharedPrompt(self._text_in(slots[-1]).prompt.ids, slots[-1])
        # This copy comes first, because the slot that is copied may be one that is filled now.
        self._copy_prompt(before, by_prompt.pop(before.ids, []))
        if by_prompt:
            self._read([group[0] for group in by_prompt.values()])
        for prompt, group in by_prompt.items():
            self._copy_prompt(_SharedPrompt(prompt, group[0]), group[1:])

    def _read(self, slots: list[int]) -> None:
        """Make the first step of the texts in `slots`, in batches.

        Prompts and first drafts are longer than the tokens of a later step, and memory is planned
        for the batches of an evaluation. A CPU has small batches and memory for several of them.
        """
        sizes: list[int] = []
        for slot in slots:
            text = self._text_in(slot)
            sizes.append(len(text.unread(text.first_draft())))
        batches_at_once = _CPU_BATCHES if self.predictor.device.type == "cpu" else 1
        for batch in token_budget(sizes, batches_at_once * self.predictor.batch_tokens):
            self._step([slots[index] for index in batch])

    def _copy_prompt(self, source: _SharedPrompt, slots: list[int]) -> None:
        """Begin the texts in `slots` with the keys and values of their prompt in another slot.

        The prompt's last token is left out, because each text needs what that token predicts.
        """
        stored = max(len(source.ids) - 1, 0)
        targets = [slot for slot in slots if slot != source.slot]
        if targets and stored:
            self.cache.copy([source.slot] * len(targets), targets, stored)
        for slot in slots:
            self._text_in(slot).begin_behind_prompt(stored)

    def _compact(self, busy: list[int]) -> None:
        """Drop free slots, so that steps of few texts read small stores.

        Nothing waits any more, so `shared_prompt`, whose slot may be dropped, is not used again.
        """
        count = min(padded_size(len(busy), self.predictor.device.type), len(self.slots))
        free_count = count - len(busy)
        self.slots = [*(self.slots[slot] for slot in busy), *[None] * free_count]
        self.cache.compact([*busy, *busy[:1] * free_count])
        self.replays = self._new_replays()  # keys and values are in other memory now

    def _new_replays(self) -> Replays:
        return Replays(self.predictor.device, recording=self.predictor.shifts is None)

    def _step(self, slots: list[int]) -> None:
        """Make one forward pass for the texts in `slots`, and free the slots of finished ones."""
        self.step_count += 1
        texts = [self._text_in(slot) for slot in slots]
        minimum = minimum_draft(len(texts), self.predictor.device.type)
        drafts = [text.draft(minimum) for text in texts]
        tokens, tied = self._choose(self._states(slots, texts, drafts), texts, drafts)
        begin = 0
        finished = 0
        for slot, text, draft in zip(slots, texts, drafts, strict=True):
            end = begin + len(draft) + 1
            text.advance(draft, tokens[begin:end], tied[begin:end], self.stops)
            begin = end
            if text.stage is Stage.FINISHED:
                self.slots[slot] = None
                finished += 1
        if finished:
            self.count(finished)

    def _choose(
        self, states: Tensor, texts: Sequence[GrowingText], drafts: Sequence[tuple[int, ...]]
    ) -> tuple[list[int], list[bool]]:
        """Choose the token after each place with `states` [P, ·].

        Returns:
            [P] tokens, and whether the choice hung on a tie.
        """
        if self.distribution is not None:
            pairs = zip(texts, drafts, strict=True)
            uniform = np.concatenate([text.uniform_after(draft) for text, draft in pairs])
            tokens = self.predictor.sample_tokens(states, uniform, self.distribution)
            return tokens, [False] * len(tokens)
        if self.rules is not None:
            changes = _changes_by_rules(self.rules, texts, drafts)
            return self.predictor.changed_tokens(states, changes)
        scores = self.predictor.score_positions(states)
        return scores.argmax_tokens, scores.tied

    def _states(
        self, slots: list[int], texts: Sequence[GrowingText], drafts: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Compute the states [P, ·] at the last token of each text and at its draft tokens."""
        if self.predictor.packed:
            return self._packed_states(slots, texts, drafts)
        rows: list[tuple[int, ...]] = []
        begins: list[int] = []
        for text, draft in zip(texts, drafts, strict=True):
            rows.append((*text.prompt.ids, *text.answer.ids, *draft))
            begins.append(len(rows[-1]) - len(draft) - 1)
        return self.predictor.text_states(rows, begins, [text.prompt.ids for text in texts])

    def _packed_states(
        self, slots: list[int], texts: Sequence[GrowingText], drafts: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Compute `_states` from the tokens that are not stored."""
        predictor = self.predictor
        kind = predictor.device.type
        unread = [text.unread(draft) for text, draft in zip(texts, drafts, strict=True)]
        stored = [text.stored for text in texts]
        widths = [len(tokens) for tokens in unread]
        ends = np.cumsum(widths)
        ids = np.fromiter(chain.from_iterable(unread), np.int64, ends[-1])  # [N]
        # States are wanted of the last tokens of each text: of len(draft) + 1 tokens.
        counts = np.array([*map(len, drafts)]) + 1
        where = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)  # [P]
        spans: list[Span] = []
        if predictor.shifts is not None:
            for text, begin in zip(texts, (ends - widths).tolist(), strict=True):
                unread_of_prompt = max(len(text.prompt.ids) - text.stored, 0)
                places = range(begin, begin + unread_of_prompt)
                spans.append(Span(text.prompt.ids, text.stored, places))

        def states(sent: Sequence[Tensor]) -> Tensor:
            ids_sent, where_sent, *index_tensors = sent
            batch = self.cache.batch(SlotIndices.from_flat(index_tensors))
            attend = partial(self.cache.attend, batch)
            return predictor.row_states(ids_sent, batch.positions, where_sent, attend, spans)

        indices = self.cache.indices(slots, stored, widths)
        arrays = padded_array(ids, kind), padded_array(where, kind), *indices.flat()
        return self.replays(states, arrays)[: len(where)]


def _changes_by_rules(
    rules: LogitRules, texts: Sequence[GrowingText], drafts: Sequence[tuple[int, ...]]
) -> list[Callable[[Tensor], Tensor]]:
    """Return for each place [P] the function that changes its logits [V].

    Rules read the text in front of a place: prompt, answer, and the draft up to the place.
    """
    changes: list[Callable[[Tensor], Tensor]] = []
    for text, draft in zip(texts, drafts, strict=True):
        prompt = text.prompt.whole or text.prompt.ids
        decoded = (*prompt, *text.answer.ids)
        for count in range(len(draft) + 1):
            before = (*decoded, *draft[:count])
            changes.append(partial(rules, before, len(prompt), text.prompt.limit))
    return changes
