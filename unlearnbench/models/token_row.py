"""A question with its answer as a sequence of token ids, of which the answer's are scored."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One sequence: the prompt, the answer, and what ends the turn.

    Rows are equal if a model computes the same for them. The fields that do not change what a model
    computes, such as `scores`, are not compared.
    """

    ids: tuple[int, ...]
    start: int
    """Index of the first scored token, at least 1. All of `ids[start:]` are scored."""
    scores: tuple[float, ...] = field(default=(), compare=False)
    """The data's score of each token of `ids[start:]`; empty if the data have no scores."""
    label: int = field(default=0, compare=False)
    """Number of scored tokens in front of the answer, which a template writes there."""
    masked: tuple[int, ...] = ()
    """Indices of tokens that no token sees, not even the token itself."""
    cut: bool = field(default=False, compare=False)
    """Whether the row was too long."""
    end_tokens: int = field(default=0, compare=False)
    """Number of last tokens that end the turn; 0 if the answer was cut before them."""

    @property
    def ended(self) -> bool:
        """Whether the last token ends the turn."""
        return self.end_tokens > 0

    @property
    def scored(self) -> int:
        """Number of scored tokens."""
        return len(self.ids) - self.start

    @property
    def whole(self) -> Row:
        """The row with all tokens scored except the first, which nothing predicts."""
        return Row(self.ids, 1, masked=self.masked)

    def without_first(self, tokens: int) -> Row:
        """Return the row with its label and its first `tokens` answer tokens no longer scored.

        With 0 tokens the row stays as it is, and its label is scored.
        """
        if tokens == 0:
            return self
        skipped = self.label + tokens
        start = min(self.start + skipped, len(self.ids))
        return Row(self.ids, start, self.scores[skipped:], masked=self.masked)
