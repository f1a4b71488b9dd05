"""Put answered questions in front of the question."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from unlearnbench.api.attack import AttackRows, PromptAttack
from unlearnbench.api.benchmark import Question


class InContext(PromptAttack):
    """Show other rows with their true answers in front of the question.

    of: retain    k rows to keep, drawn by `seed` for each question: they restore the task and the
                  form of its answers, and teach no forgotten fact
    of: subject   the first k other forget rows about the same subject, such as TOFU's author:
                  relearning in context (Lynch et al. 2024, arXiv:2402.16835). Rows that are not
                  training rows, or have a subject of their own, are left out

    The row itself is never shown, nor a row that contains its answer. Shown rows are turns of the
    model's template. In front of a text that is continued, they are texts with blank lines between
    them. Plain text has no question that could stand after them, and is left out.
    """

    label = "Examples in context"

    of: Literal["retain", "subject"] = Field(
        default="retain", description="kind of rows that are shown"
    )
    k: int = Field(default=5, ge=1, le=100, description="number of rows in front of the question")
    seed: int = Field(default=0, ge=0, description="seed of the choice of retain rows")

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """Whether a row is a question for which there are rows to show."""
        return not row.is_plain_text and bool(rows.beside(row, 1, self.of, self.seed))

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """Return a row with other rows in front of it."""
        shown = rows.beside(row, self.k, self.of, self.seed)
        examples = tuple((other.question, other.answer) for other in shown)
        return replace(row, examples=(*examples, *row.examples))
