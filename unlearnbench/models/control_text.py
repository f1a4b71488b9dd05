"""Control tokens inside the texts of rows.

A tokenizer reads `</s>` in a user's text as the token that ends a sequence, not as four characters.
Rows with such texts are counted and reported. An answer that consists of control tokens alone has
no text to learn, to forget or to compare, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import DataError
from unlearnbench.base.row_texts import row_text


class ControlText:
    """The control tokens of a tokenizer, to be looked for in texts."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Make the pattern. Where two tokens begin alike, the longer one is found."""
        known = sorted({token for token in tokens if token.strip()}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, known))) if known else None
        # Tokenizers may have thousands of control tokens, and most texts hold none of their
        # first characters.
        self._firsts = frozenset(token[0] for token in known)

    @classmethod
    def of(cls, tokenizer: Any) -> ControlText:
        """The special tokens of a tokenizer, those that decoding leaves out."""
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        return cls([*tokenizer.all_special_tokens, *(t.content for t in added if t.special)])

    def first_in(self, text: str) -> str:
        """The first control token in a text; empty if there is none."""
        if self._pattern is None or self._firsts.isdisjoint(text):
            return ""
        found = self._pattern.search(text)
        return found[0] if found else ""

    def first_in_row(self, row: Question) -> str:
        """The first control token in the texts of a row; empty if there is none."""
        shown = (text for example in row.examples for text in example)
        texts = (row.question, *row.scored_answers, row.prefix, row.system or "", *shown)
        return next(filter(None, map(self.first_in, texts)), "")

    def check_answers(self, row: Question) -> None:
        """Raise DataError if an answer of a row consists of control tokens alone."""
        for answer in row.scored_answers:
            if not self._is_control_alone(answer):
                continue
            place = row.place or f"the row {row_text(row.opening)}"
            raise DataError(
                f"{place}: the answer {answer!r} has no text, "
                "only control tokens of the tokenizer; write the answer, or leave the row out"
            )

    def _is_control_alone(self, text: str) -> bool:
        """Whether nothing is left of a text without its control tokens, of which it has some."""
        if self._pattern is None or not self.first_in(text):
            return False
        return not self._pattern.sub("", text).strip()
