"""Drafts of the tokens that may come next in an answer, looked up in texts that resemble it."""

from collections.abc import Iterable, Sequence

MAX_DRAFT = 16
"""Largest number of draft tokens of an answer in a step."""
_MOST_FREE = 4
"""Largest number of draft tokens that an answer gets only because they are free."""
_FREE_TOKENS = {"cpu": 64}
"""Number of tokens of a step, by device, up to which another token costs no time.

Such a step waits for something else: on a CPU for Python, on a GPU for its memory.
"""
_FREE_TOKENS_ELSEWHERE = 256


class DraftLookup:
    """Drafts the next tokens of one answer from other texts and from the answer itself.

    The answer's last two tokens are looked up, and the tokens that followed them there are the
    draft. A text serves again once the answer has come back to it, and a repetitive answer drafts
    itself.

    A draft is as long as the latest run of tokens that the lookup would have predicted. An answer
    that resembles no text therefore costs next to nothing, and a repetition is soon decoded in
    large steps.
    """

    def __init__(self, texts: Sequence[Sequence[int]], answer: Iterable[int] = ()) -> None:
        """Index the texts.

        Args:
            texts: Tokens of texts that the answer may share phrases with. The first text takes
                precedence, and within a text the first occurrence of a pair.
            answer: Tokens that the answer begins with.
        """
        self.answer: list[int] = []
        self.predicted = 0
        """Number of the latest tokens in a row that the lookup would have predicted."""
        self._after: dict[tuple[int, int], tuple[Sequence[int], int]] = {}
        """By pair of tokens: a text, and the index in it of the token that followed the pair."""
        # A later entry replaces an earlier one, so the entries that take precedence come last.
        for text in reversed(texts):
            for i in range(len(text) - 2, 0, -1):
                self._after[text[i - 1], text[i]] = text, i + 1
        self.append(answer)

    def append(self, tokens: Iterable[int]) -> None:
        """Add tokens to the answer, and learn from each how the answer may go on.

        For each token, `predicted` counts whether the lookup would have drafted it, and the place
        behind the two tokens before it is noted, so that a repetition is drafted later.
        """
        # Local names, because this loop runs for every decoded token.
        answer = self.answer
        after = self._after
        for token in tokens:
            if len(answer) >= 2:
                pair = answer[-2], answer[-1]
                text, following = after.get(pair, ((), 0))
                is_predicted = following < len(text) and text[following] == token
                self.predicted = self.predicted + 1 if is_predicted else 0
                after[pair] = answer, len(answer)
            answer.append(token)

    def draft(self, most: int, minimum: int = 0) -> tuple[int, ...]:
        """Return tokens that may come next.

        Args:
            most: Largest number of tokens.
            minimum: Number of tokens that are drafted even if fewer were predicted lately.
        """
        count = min(most, max(self.predicted, minimum))
        if count < 1 or len(self.answer) < 2:
            return ()
        text, begin = self._after.get((self.answer[-2], self.answer[-1]), ((), 0))
        if text is not self.answer:
            return tuple(text[begin : begin + count])
        # The answer repeats itself from `begin` on. Its period may be shorter than the draft.
        period = len(text) - begin
        return tuple(text[begin + i % period] for i in range(count))


def minimum_draft(answer_count: int, device: str) -> int:
    """Return the number of draft tokens that each of `answer_count` answers gets for free.

    For example, 16 answers on a CPU get 2 each: with the latest token of each answer, the step
    then has 48 tokens, and with 3 it would have 64.

    Args:
        answer_count: Answers in the step.
        device: Type of the device, for example `cuda`.
    """
    free_tokens = _FREE_TOKENS.get(device, _FREE_TOKENS_ELSEWHERE)
    return max(min(_MOST_FREE, (free_tokens - 1) // answer_count - 1), 0)
