"""Ask the question in other words."""

from dataclasses import replace

from unlearnbench.api.attack import AttackRows, PromptAttack
from unlearnbench.api.benchmark import Question


class Paraphrase(PromptAttack):
    """Ask each question in its other wording, TOFU's column `paraphrased_question`.

    open-unlearning's view `forget_Q_A_PARA_Prob` and others paraphrase the answer. This attack
    paraphrases the question, as in Patil, Hase and Bansal 2024 (arXiv:2309.17410), whose rephrased
    inputs recover deleted facts. With the profile's `question_key: paraphrased_question` the plain
    evaluation asks the paraphrase, and this attack asks the original. Rows without another wording
    are left out. A text that is continued (`format: text`) counts as a question if it has one.
    """

    label = "Paraphrased question"

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """Whether a row has another wording."""
        return bool(row.paraphrased_question)

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """Return a row with its other wording."""
        return replace(row, question=row.paraphrased_question or row.question)
