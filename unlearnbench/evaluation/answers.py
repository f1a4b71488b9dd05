"""Prompts, and the answers that a model gives to them, as tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from unlearnbench.evaluation.predictor import NOT_FINITE


@dataclass(frozen=True)
class Prompt:
    """The tokens before an answer, and drafts of it.

    Drafts change only how fast the answer is decoded.
    """

    ids: tuple[int, ...]
    limit: int
    """Largest number of tokens of the answer."""
    draft: tuple[int, ...] = ()
    """A likely answer, with the token that ends it; empty if none is known."""
    similar: tuple[tuple[int, ...], ...] = ()
    """Texts that the answer may share phrases with."""
    seed: tuple[int, ...] = ()
    """Words from which the random numbers of a sampled answer are made."""
    whole: tuple[int, ...] = ()
    """The prompt with the tokens that the model does not see, for `LogitRules`.

    Empty if the model sees all tokens of `ids`.
    """


@dataclass(frozen=True, eq=False)
class Stops:
    """The tokens and the text that end an answer."""

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
    """Whether a token of `Stops.ids` has ended it."""
    at_text: bool = False
    """Whether `Stops.text` has ended it."""
    finite: bool = True
    """False if it stopped because logits were NaN or infinite."""
    tied: bool = False
    """Whether the choice of a token hung on a tie, see `predictor.tie_gap`."""
    drafted: int = 0
    """Tokens that were accepted from drafts, including the token that ends the answer."""

    @property
    def tokens(self) -> int:
        """Number of decoded tokens, including the token that ends the answer."""
        return len(self.ids) + self.ended

    def accept(
        self,
        draft: Sequence[int],
        tokens: Sequence[int],
        tied: Sequence[bool],
        limit: int,
        stops: Stops,
    ) -> int:
        """Append the right beginning of a draft and the token after it, up to a stop.

        The result is the same as decoding one token at a time.

        Args:
            draft: Tokens that may come next.
            tokens: The model's own choice in place of each draft token. If the model has read the
                whole draft, also its choice after the draft.
            tied: For each of `tokens`, whether the choice hung on a tie.
            limit: Largest number of tokens of the answer.
            stops: Tokens and text that end the answer.

        Returns:
            How many tokens of the draft were right, even if the answer ended before them.
        """
        right = 0
        most = min(len(draft), len(tokens))
        while right < most and draft[right] == tokens[right]:
            right += 1
        # Behind the first wrong draft token, the model has read a text that is not the answer.
        for i, token in enumerate(tokens[: right + 1]):
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
        """Whether there are tokens left to decode."""
        has_stopped = self.ended or self.at_text
        return self.finite and not has_stopped and len(self.ids) < limit
