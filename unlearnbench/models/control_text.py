"""Control tokens inside the texts of rows.

A tokenizer reads `</s>` in a user's text as the token that ends a sequence, not as four characters.
Rows with such texts are counted and reported. An answer that consists only of control tokens has no
text to learn, to forget or to compare, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import DataError
from unlearnbench.base.row_texts import row_text


class ControlText:
    """The control tokens of a tokenizer, which are looked for in texts."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Prepare the search. If two tokens begin alike, the longer one is found."""
        # The alternatives of a pattern are tried in order.
        longest_first = sorted({token for token in tokens if token.strip()}, key=len, reverse=True)
        self._pattern: re.Pattern[str] | None = None
        if longest_first:
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        # Tokenizers may have thousands of control tokens, and most texts have none of their first
        # characters.
        self._first_characters = frozenset(token[0] for token in longest_first)

    @classmethod
    def of(cls, tokenizer: Any) -> ControlText:
        """Return the special tokens of a tokenizer, which decoding leaves out."""
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = [token.content for token in added if token.special]
        return cls([*tokenizer.all_special_tokens, *special])

    def first_in(self, text: str) -> str:
        """Return the first control token in a text; empty if there is none."""
        if self._pattern is None or self._first_characters.isdisjoint(text):
            return ""
        match = self._pattern.search(text)
        return match[0] if match else ""

    def first_in_row(self, row: Question) -> str:
        """Return the first control token in the texts of a row; empty if there is none."""
        example_texts = [text for example in row.examples for text in example]
        for text in (
            row.question,
            *row.scored_answers,
            row.prefix,
            row.system or "",
            *example_texts,
        ):
            token = self.first_in(text)
            if token:
                return token
        return ""

    def check_answers(self, row: Question) -> None:
        """Raise DataError if an answer of a row consists only of control tokens."""
        for answer in row.scored_answers:
            if not self._is_only_control(answer):
                continue
            place = row.place or f"the row {row_text(row.opening)}"
            raise DataError(
                f"{place}: the answer {answer!r} has no text, "
                "only control tokens of the tokenizer; write the answer, or leave the row out"
            )

    def _is_only_control(self, text: str) -> bool:
        """Whether a text has control tokens, and nothing but white space besides."""
        if self._pattern is None or not self.first_in(text):
            return False
        return not self._pattern.sub("", text).strip()
