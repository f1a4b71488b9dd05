"""Ask two questions at once."""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from unlearnbench.api.attack import AttackRows, PromptAttack
from unlearnbench.api.benchmark import Question


class CombinedQuestions(PromptAttack):
    """Ask a retain question and the forget question in one prompt.

    A model that recognises forget questions by their form often answers both questions (Thaker et
    al. 2024, arXiv:2410.02879, who combine queries of TOFU's forget and retain sets). A retain
    question is drawn by `seed` for each forget question. If the forget question comes first, the
    answer of the model begins with the forget answer. If the retain question comes first, the
    retain row's true answer is given as the beginning, and the forget answer is scored after it.
    Texts that are continued are no questions, and are left out.
    """

    label = "Combined with a retain question"

    first: Literal["forget", "retain"] = Field(
        default="forget", description="question that comes first in the prompt"
    )
    seed: int = Field(default=0, ge=0, description="seed of the choice of retain questions")

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """Whether a row is a question that a retain question can be combined with."""
        if row.format != "chat":
            return False
        if self.first == "retain" and row.prefix:  # the benchmark begins the answer itself
            return False
        return bool(self._retain(row, rows))

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """Return a row with both questions."""
        (other,) = self._retain(row, rows)
        if self.first == "forget":
            return replace(row, question=f"{row.question} {other.question}")
        return replace(row, question=f"{other.question} {row.question}", prefix=other.answer)

    def _retain(self, row: Question, rows: AttackRows) -> tuple[Question, ...]:
        """Draw a retain row for a forget row; none if there is no suitable one."""
        return rows.beside(row, 1, "retain", self.seed)
