"""The question in other words."""

from __future__ import annotations

from dataclasses import replace

from unlearnbench.api.attack import AttackRows, PromptAttack
from unlearnbench.api.benchmark import Question


class Paraphrase(PromptAttack):
    """Ask each question in its paraphrase (TOFU's `paraphrased_question`), if it has one."""

    label = "Paraphrased question"

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """The row with its paraphrased question."""
        del point, rows
        return replace(row, question=row.paraphrased_question or row.question)
