"""Greedy or sampled answers to many prompts at once, by speculative decoding.

A step puts the last tokens of all unfinished answers through the model, and behind each a draft of
what may come next. Draft tokens that greedy decoding would have produced are accepted, the first
other one is corrected. So the answers are those of decoding one token at a time, in fewer steps.

Sampling differs in how a token is chosen: by its logits and by a random number of the answer and
the place, see `models/token_sampling.py`. So drafts serve there too. The samples of one prompt
share its keys and values, which are computed for the first one, and copied.

An answer ends at its first stop: EOS, what ends a turn by the chat template, or another id at which
the model's `generation_config` stops.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np
from torch import Tensor

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.observations import FloatArray
from unlearnbench.base.distributed import world_size
from unlearnbench.base.out_of_memory import map_over_ranks
from unlearnbench.evaluation.predictor import NOT_FINITE, Keys, Predictor
from unlearnbench.evaluation.prefix_tree import padded_array, padded_size
from unlearnbench.evaluation.slot_cache import SlotCache
from unlearnbench.models.batching import token_budget
from unlearnbench.models.generation_settings import LogitRules
from unlearnbench.models.prompt_shift import Span
from unlearnbench.models.replays import Replays
from unlearnbench.models.token_sampling import Distribution, uniform_numbers

MAX_DRAFT = 16
"""Draft tokens of an answer in a step, at most."""
# A GPU step with few tokens waits for memory: some draft tokens more cost nothing.
_MINIMUM = {"cpu": 0}
_MINIMUM_ELSEWHERE = 4
_FREE_TOKENS = 256
# Slots of finished answers are filled again when this share of them is free.
_REFILL = 1 / 4
_WORD = 7
"""The last word of the seeds; other draws have others, see `training/answer_sampling.py`."""


class DraftLookup:
    """Drafts the next tokens of one answer from other texts and from the answer itself.

    The answer's last two tokens are looked up; what followed them there is the draft. A text serves
    again once the answer has come back to it, and a repetitive answer drafts itself. A draft has as
    many tokens as the latest ones in a row that the lookup would have predicted, so that an answer
    unlike any text costs next to nothing and a repetition is soon decoded in large steps.
    """

    def __init__(self, texts: Sequence[Sequence[int]], answer: Iterable[int] = ()) -> None:
        self.answer: list[int] = []
        self.predicted = 0
        """The latest tokens in a row that the lookup would have predicted."""
        self._after: dict[tuple[int, int], tuple[Sequence[int], int]] = {}
        """By pair of tokens: a text, and the index of what followed the pair in it."""
        # The first text takes precedence, and within one the first occurrence.
        for text in reversed(texts):
            for i in range(len(text) - 2, 0, -1):
                self._after[text[i - 1], text[i]] = text, i + 1
        self.append(answer)

    def append(self, tokens: Iterable[int]) -> None:
        """Add `tokens` to the answer."""
        answer, after = self.answer, self._after
        for token in tokens:
            if len(answer) >= 2:
                pair = answer[-2], answer[-1]
                text, next_one = after.get(pair, ((), 0))
                is_predicted = next_one < len(text) and text[next_one] == token
                self.predicted = self.predicted + 1 if is_predicted else 0
                after[pair] = answer, len(answer)
            answer.append(token)

    def draft(self, most: int, minimum: int = 0) -> tuple[int, ...]:
        """At most `most` tokens that may come next; `minimum` however few were predicted lately."""
        tokens = min(most, max(self.predicted, minimum))
        if tokens < 1 or len(self.answer) < 2:
            return ()
        return self._follow((self.answer[-2], self.answer[-1]), tokens)

    def _follow(self, pair: tuple[int, int], tokens: int) -> tuple[int, ...]:
        text, begin = self._after.get(pair, ((), 0))
        if text is not self.answer:
            return tuple(text[begin : begin + tokens])
        # Past the answer's end the repetition goes on from `begin`: its period may be short.
        period = len(text) - begin
        return tuple(text[begin + i % period] for i in range(tokens))


@dataclass(frozen=True, eq=False)
class Stops:
    """What ends an answer."""

    ids: frozenset[int]
    """Tokens that end an answer and are no part of it."""
    text: str = ""
    """Text that ends an answer. Its tokens stay in the answer."""
    decode: Callable[[tuple[int, ...]], str] | None = None
    """Makes text of tokens; None if there is no text to look for."""

    def is_reached(self, ids: Sequence[int]) -> bool:
        """Whether an answer of these tokens has reached the text."""
        if not self.text or self.decode is None:
            return False
        # A token holds at least one byte, so the text lies within as many last tokens as it has
        # bytes. Two more complete a character whose bytes are divided between tokens.
        latest = ids[-len(self.text.encode()) - 2 :]
        return self.text in self.decode(tuple(latest))


@dataclass
class Answer:
    """A greedy or sampled answer, as far as it is decoded."""

    ids: list[int] = field(default_factory=list[int])
    """Without the token that ends it."""
    ended: bool = False
    """True if one of the stops' tokens has ended it, not the limit."""
    at_text: bool = False
    """True if the stops' text has ended it."""
    finite: bool = True
    """False if it stopped where logits were NaN or infinite."""
    tied: bool = False
    """True if a choice hung on a tie, see `predictor.tie_gap`."""
    drafted: int = 0
    """Tokens accepted from drafts, the one that ends the answer included."""

    @property
    def tokens(self) -> int:
        """Tokens that greedy decoding has produced, the one that ends the answer included."""
        return len(self.ids) + self.ended

    def accept(
        self,
        draft: Sequence[int],
        argmax: Sequence[int],
        tied: Sequence[bool],
        limit: int,
        stops: Stops,
    ) -> int:
        """Go on as greedy decoding would, up to a stop or `limit` tokens in all.

        draft   tokens that may come next
        argmax  the greedy token in place of each and, if the model has read the whole draft, the
                one after it
        tied    for each of these, whether it hung on a tie
        Returns how many tokens of the draft were right.
        """
        right, most = 0, min(len(draft), len(argmax))
        while right < most and draft[right] == argmax[right]:
            right += 1
        for i, token in enumerate(argmax[: right + 1]):
            if len(self.ids) == limit:
                break
            self.tied = self.tied or tied[i]
            if token == NOT_FINITE:
                self.finite = False
                break
            self.drafted += i < right
            if token in stops.ids:
                self.ended = True
                break
            self.ids.append(token)
            if stops.text and stops.is_reached(self.ids):
                self.at_text = True
                break
        return right

    def unfinished(self, limit: int) -> bool:
        """True if there are tokens left to decode."""
        has_stopped = self.ended or self.at_text
        return self.finite and not has_stopped and len(self.ids) < limit


@dataclass(frozen=True)
class Prompt:
    """The tokens before an answer, and drafts of it. Drafts change how fast it is decoded only."""

    ids: tuple[int, ...]
    limit: int
    """Tokens the answer may have."""
    draft: tuple[int, ...] = ()
    """A likely answer, with the token that ends it; or nothing."""
    similar: tuple[tuple[int, ...], ...] = ()
    """Texts that the answer may share phrases with."""
    seed: tuple[int, ...] = ()
    """Words that a sampled answer's random numbers are made from."""
    whole: tuple[int, ...] = ()
    """The prompt with the tokens that the model does not see, for `LogitRules`; empty: `ids`."""


def decode(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    eos: int | Stops,
    count: Callable[[int], None] = lambda _: None,
    distribution: Distribution | None = None,
    kept: Mapping[int, Keys] | None = None,
    rules: LogitRules | None = None,
) -> tuple[list[Answer], int]:
    """Decode `answers` to their ends; returns them and the steps that took, of all processes.

    eos    the token that ends an answer, or everything that ends one
    count  called with the number of answers that this process has finished
    distribution  the distribution to sample from; None: greedily
    kept   by answer, keys and values of the first tokens of its text, but not of the last
    rules  change the logits of greedy answers
    """
    stops = eos if isinstance(eos, Stops) else Stops(frozenset((eos,)))
    chosen = [i for i, answer in enumerate(answers) if answer.unfinished(prompts[i].limit)]
    # Longest first, so that none is left to decode alone at the end.
    order = sorted(chosen, key=lambda i: -len(prompts[i].ids) - prompts[i].limit)
    groups: dict[object, list[int]] = {}  # the samples of a prompt stay together
    for i in order:
        groups.setdefault(i if distribution is None else prompts[i].ids, []).append(i)
    shares = ([*groups.values()][rank :: world_size()] for rank in range(world_size()))
    lots = [lot for share in shares if (lot := [i for group in share for i in group])]

    def decode_lot(lot: list[int]) -> tuple[int, list[Answer]]:
        part = [prompts[i] for i in lot], [answers[i] for i in lot]
        decoding = _Decoding(predictor, *part, stops, count, distribution, rules)
        known = ((at, (kept or {}).get(i)) for at, i in enumerate(lot))
        decoding.kept = {at: keys for at, keys in known if keys is not None}
        decoding.run()
        return decoding.steps, decoding.answers

    finished, steps = [*answers], 0
    for lot, (lot_steps, result) in zip(lots, map_over_ranks(decode_lot, lots), strict=True):
        steps += lot_steps
        for i, answer in zip(lot, result, strict=True):
            finished[i] = answer
    return finished, steps


def sampled_answers(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    attack: SamplingAttack,
    eos: int | Stops,
) -> list[list[Answer]]:
    """`attack.samples` answers to each prompt. Collective.

    The random numbers of an answer are made from the attack's seed, the prompt's tokens, and the
    answer's number. So the answers depend neither on the batches and the processes, except for
    rounding, nor on the other questions; 20 samples are the first 20 of 200; and models are
    compared under the same numbers.

    predictor  ready
    prompts    with the limits of greedy answers; a `draft` is not used
    """
    each = [
        replace(prompt, draft=(), seed=(attack.seed, _key(prompt.ids), number, _WORD))
        for prompt in prompts
        for number in range(attack.samples)
    ]
    options = Distribution(attack.temperature, attack.top_p)
    begun = [Answer() for _ in each]
    answers, _ = decode(predictor, each, begun, eos, distribution=options)
    part = iter(answers)
    return [[next(part) for _ in range(attack.samples)] for _ in prompts]


def _key(prompt: Sequence[int]) -> int:
    """A number of 64 bits for a prompt."""
    digest = hashlib.sha256(np.array(prompt, dtype=np.int64).tobytes())
    return int.from_bytes(digest.digest()[:8], "little")


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
        stops: Stops,
        count: Callable[[int], None],
        distribution: Distribution | None,
        rules: LogitRules | None,
    ) -> None:
        self.predictor, self.prompts, self.stops = predictor, prompts, stops
        self.count, self.how, self.rules = count, distribution, rules
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
        self.replays = self._new_replays()
        self.kept: dict[int, Keys] = {}
        """By answer that has not begun, keys and values that its slot begins with."""
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
        for slot in slots:
            if keys := self.kept.pop(self._answer(slot), None):
                self.cached[self._answer(slot)] = self.cache.put(slot, keys)
        if self.how is None or not self.predictor.packed:
            self._first_steps(slots)
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for slot in slots:
            groups.setdefault(self.prompts[self._answer(slot)].ids, []).append(slot)
        held, source = self.held
        self.held = self.prompts[self._answer(slots[-1])].ids, slots[-1]
        # First of all, before its slot stores another prompt.
        self._share(held, source, groups.pop(held, []))
        if groups:
            self._first_steps([group[0] for group in groups.values()])
        for prompt, group in groups.items():
            self._share(prompt, group[0], group[1:])

    def _first_steps(self, slots: list[int]) -> None:
        """The first step of the answers in `slots`, on a GPU in batches of `batch_tokens`.

        Prompts and drafts are longer than the tokens of a later step, and memory is counted for
        the batches of an evaluation. On a CPU it is one batch.
        """
        parts: Iterable[Sequence[int]] = [range(len(slots))]
        if self.predictor.device.type != "cpu":
            sizes = [
                len(self.prompts[i].ids) + len(self.answers[i].ids) + len(self._first_draft(i))
                for i in map(self._answer, slots)
            ]
            parts = token_budget(sizes, self.predictor.batch_tokens)
        for part in parts:
            self._step([slots[index] for index in part], first=True)

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
        result = self.slots[slot]
        if result is None:
            raise LookupError(f"slot {slot} is free")
        return result

    def _compact(self, slots: list[int]) -> None:
        """Drop the other slots."""
        count = min(padded_size(len(slots), self.predictor.device.type), len(self.slots))
        none = [None] * (count - len(slots))
        self.slots = [*(self.slots[slot] for slot in slots), *none]
        self.cache.compact([*slots, *slots[:1] * len(none)])
        self.replays = self._new_replays()  # keys and values are in other memory now

    def _new_replays(self) -> Replays:
        return Replays(self.predictor.device, recording=self.predictor.shifts is None)

    def _step(self, slots: list[int], *, first: bool = False) -> None:
        """One forward pass for the answers in `slots`; frees the slots of finished ones."""
        self.steps += 1
        chosen = [i for i in (self.slots[slot] for slot in slots) if i is not None]
        minimum = _minimum_draft(len(chosen), self.predictor.device.type)
        drafts = [self._first_draft(i) if first else self._draft(i, minimum) for i in chosen]
        # The last decoded token and each draft token predict the token after it.
        tokens, tied = self._choose(self._states(slots, chosen, drafts), chosen, drafts)
        end = finished = 0
        for slot, i, draft in zip(slots, chosen, drafts, strict=True):
            span = slice(end, end + len(draft) + 1)
            end = span.stop
            answer, limit = self.answers[i], self.prompts[i].limit
            before = len(answer.ids)
            right = answer.accept(draft, tokens[span], tied[span], limit, self.stops)
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
                self.cached[i] = len(self.prompts[i].ids) + before + right
        if finished:
            self.count(finished)

    def _choose(
        self, states: Tensor, chosen: Sequence[int], drafts: Sequence[tuple[int, ...]]
    ) -> tuple[list[int], list[bool]]:
        """The token in each place with `states` [P, ·], and whether it hung on a tie."""
        if self.how is None and self.rules is not None:
            return self._choose_by_rules(self.rules, states, chosen, drafts)
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

    def _choose_by_rules(
        self,
        rules: LogitRules,
        states: Tensor,
        chosen: Sequence[int],
        drafts: Sequence[tuple[int, ...]],
    ) -> tuple[list[int], list[bool]]:
        """The greedy token in each place with `states` [P, ·] after the rules, and whether it hung
        on a tie.

        Rules read the text in front of a place: prompt, answer, and the draft up to there.
        """
        changes: list[Callable[[Tensor], Tensor]] = []
        for i, draft in zip(chosen, drafts, strict=True):
            prompt = self.prompts[i].whole or self.prompts[i].ids
            text = (*prompt, *self.answers[i].ids)
            changes += [
                partial(rules, (*text, *draft[:count]), len(prompt), self.prompts[i].limit)
                for count in range(len(draft) + 1)
            ]
        return self.predictor.changed_tokens(states, changes)

    def _states(
        self, slots: list[int], chosen: Sequence[int], drafts: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """States [P, ·] at the last token of each text before its draft, and after it."""
        predictor, prompts = self.predictor, [self.prompts[i].ids for i in chosen]
        if not predictor.packed:
            texts = [
                (*prompt, *self.answers[i].ids, *draft)
                for prompt, i, draft in zip(prompts, chosen, drafts, strict=True)
            ]
            begins = [len(text) - len(d) - 1 for text, d in zip(texts, drafts, strict=True)]
            return predictor.text_states(texts, begins, prompts)
        fresh = [self._fresh(i, draft) for i, draft in zip(chosen, drafts, strict=True)]
        kind = predictor.device.type
        widths, known = [*map(len, fresh)], [self.cached[i] for i in chosen]
        ends, counts = np.cumsum(widths), np.array([*map(len, drafts)]) + 1
        # [P] the last `counts` tokens of each
        where = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        ids = np.fromiter(chain.from_iterable(fresh), np.int64, ends[-1])  # [N]
        spans: list[Span] = []
        if predictor.shifts is not None:
            for prompt, c, begin in zip(prompts, known, (ends - widths).tolist(), strict=True):
                spans.append(Span(prompt, c, range(begin, begin + max(len(prompt) - c, 0))))

        def states(sent: Sequence[Tensor]) -> Tensor:
            batch = self.cache.batch(*sent[2:])
            attend = partial(self.cache.attend, batch)
            return predictor.row_states(sent[0], batch.positions, sent[1], attend, spans)

        arrays = padded_array(ids, kind), padded_array(where, kind)
        rows = self.replays(states, (*arrays, *self.cache.arrays(slots, known, widths)))
        return rows[: len(where)]

    def _fresh(self, i: int, draft: tuple[int, ...]) -> list[int]:
        """The tokens of a text, and of its draft, whose keys and values no slot stores."""
        prompt, ids = self.prompts[i].ids, self.answers[i].ids
        past = self.cached[i] - len(prompt)
        return [*ids[past:], *draft] if past >= 0 else [*prompt[past:], *ids, *draft]

    def _first_draft(self, i: int) -> tuple[int, ...]:
        """The rest of the prompt's draft, if the answer so far begins like it."""
        prompt, decoded = self.prompts[i], self.answers[i].ids
        if prompt.draft[: len(decoded)] != tuple(decoded):
            return ()
        return prompt.draft[len(decoded) : prompt.limit - 1]

    def _draft(self, i: int, minimum: int) -> tuple[int, ...]:
        # A step decodes one token more than its draft has.
        lookup = self.lookups[i]
        if not (minimum or lookup.predicted):
            return ()
        left = self.prompts[i].limit - len(self.answers[i].ids) - 1
        return lookup.draft(min(left, MAX_DRAFT), minimum)


def _minimum_draft(answers: int, device: str) -> int:
    """Draft tokens for each of so many answers, however few were predicted lately."""
    most = _MINIMUM.get(device, _MINIMUM_ELSEWHERE)
    return max(min(most, (_FREE_TOKENS - 1) // answers - 1), 0)
