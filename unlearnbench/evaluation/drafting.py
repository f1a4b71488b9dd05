"""Guesses at the next tokens of an answer, from texts that it has been in step with before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Guesser:
    """Looks an answer's last two tokens up in its drafts and in the answer so far.

    What followed them there is guessed to follow here: a draft serves again after the answer has
    come back to it, and an answer that goes round in circles is its own draft. As many tokens are
    guessed as guesses would have been right in a row, so that text which cannot be guessed costs
    next to nothing and a circle is soon taken in large steps.
    """

    def __init__(self, drafts: Sequence[Sequence[int]], answer: Iterable[int] = ()) -> None:
        self.answer: list[int] = []
        self.right = 0
        """Tokens in a row, up to the last one, that a guess would have had."""
        self._after: dict[tuple[int, int], tuple[Sequence[int], int]] = {}
        # The first draft wins, and within one the first place.
        for draft in reversed(drafts):
            for i in range(len(draft) - 2, 0, -1):
                self._after[draft[i - 1], draft[i]] = draft, i + 1
        self.hear(answer)

    def hear(self, tokens: Iterable[int]) -> None:
        """The answer goes on with `tokens`."""
        answer = self.answer
        for token in tokens:
            if len(answer) >= 2:
                pair = answer[-2], answer[-1]
                self.right = self.right + 1 if self._follow(pair, 1) == (token,) else 0
                self._after[pair] = answer, len(answer)
            answer.append(token)

    def guess(self, most: int, unasked: int = 0) -> tuple[int, ...]:
        """At most `most` tokens that may come next; `unasked` whatever past guesses were like."""
        tokens = min(most, max(self.right, unasked))
        if tokens < 1 or len(self.answer) < 2:
            return ()
        return self._follow((self.answer[-2], self.answer[-1]), tokens)

    def _follow(self, pair: tuple[int, int], tokens: int) -> tuple[int, ...]:
        source, begin = self._after.get(pair, ((), 0))
        if source is not self.answer:
            return tuple(source[begin : begin + tokens])
        # To its end and round again: the period of a repetition may be short.
        period = len(source) - begin
        return tuple(source[begin + i % period] for i in range(tokens))
