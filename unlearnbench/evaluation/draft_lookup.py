"""n-gram lookup drafts for speculative greedy decoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
        answer = self.answer
        for token in tokens:
            if len(answer) >= 2:
                pair = answer[-2], answer[-1]
                self.predicted = self.predicted + 1 if self._follow(pair, 1) == (token,) else 0
                self._after[pair] = answer, len(answer)
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
