"""Train on some forget rows, and measure the others."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from unlearnbench.api.attack import AttackRows, AttackTools
from unlearnbench.api.benchmark import Question
from unlearnbench.attacks._training_steps import TrainingAttack
from unlearnbench.base.errors import DataError


class Relearning(TrainingAttack):
    """Train on rows about every second subject to forget, and measure the rows about the others.

    The attack follows Deeb and Roger (2024, arXiv:2410.08827), whose facts for training and for the
    test have nothing in common. So knowledge that returns had been hidden, not removed. A model
    that never knew the rows gains nothing on the other subjects, except for the language that the
    rows have in common.

    Rows of evaluation sets that are not training rows themselves belong to no half. All of them are
    measured.
    """

    label = "Relearning"

    rows: Literal["forget", "half", "other-half", "retain"] = Field(
        default="other-half",
        description="rows that the attack trains on, and rows that it measures; forget: trains "
        "on all rows to forget and measures them; half: trains on the rows to forget "
        "of every second subject and measures the same rows; other-half: trains on "
        "every second subject and measures the other subjects; retain: trains on "
        "rows to keep and measures all rows to forget; for unrelated rows, use the "
        "attack `fine-tuning`",
    )

    def training_rows(self, tools: AttackTools) -> Sequence[Question]:
        """Return the rows to train on.

        Raises:
            DataError: There is only one subject, and so no other half.
        """
        if self.rows in ("half", "other-half"):
            self._check(tools.rows)
        return self._trained(tools.rows)

    def rows_of_step(self, rows: AttackRows) -> int:
        """Return how many rows a step trains on: the batch, or all rows if there are fewer."""
        return min(self.batch_size, len(self._trained(rows)))

    def _trained(self, rows: AttackRows) -> Sequence[Question]:
        if self.rows == "forget":
            return rows.forget
        if self.rows == "retain":
            return rows.retain
        return rows.half()

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """Whether a row is measured: all rows, or the rows of one half."""
        if self.rows not in ("half", "other-half"):
            return True
        self._check(rows)
        # A row that two subjects share is in both halves. It is trained, and not measured.
        is_trained = rows.in_half(row)
        if self.rows == "other-half":
            return not is_trained
        return is_trained or not rows.in_half(row, True)

    def _check(self, rows: AttackRows) -> None:
        """Raise DataError if all rows to forget are about one subject."""
        if rows.subject_count < 2:
            names_subjects = any(row.subject for row in rows.forget)
            which = f"a subject has {rows.subject_rows}"
            if names_subjects:
                which = "by the column that data.subject names"
            raise DataError(
                f"relearning: rows: {self.rows} needs two subjects, and all of the "
                f"{len(rows.forget)} rows to forget are about one ({which}); use a split with more "
                "rows to forget, or rows: forget"
            )
