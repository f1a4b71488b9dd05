"""Train on some forget rows, and measure the others."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from unlearnbench.api.attack import AttackRows, AttackTools
from unlearnbench.api.benchmark import Question
from unlearnbench.attacks._training_steps import TrainingAttack
from unlearnbench.base.errors import DataError


class Relearning(TrainingAttack):
    """Train on rows about every second subject to forget; measure the rows about the others.

    In the manner of Deeb and Roger (2024, arXiv:2410.08827), whose facts for training and for the
    test share nothing: what returns has been hidden, not removed. A model that never knew the rows
    gains nothing on the others, but for the language that the rows have in common.

    Rows of evaluation sets that are not training rows themselves are of no half, and are all
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
        """The rows to train on. Raises: DataError where there is no other half."""
        if self.rows in ("forget", "retain"):
            return tools.rows.forget if self.rows == "forget" else tools.rows.retain
        self._check(tools.rows)
        return tools.rows.half()

    def rows_of_step(self, rows: AttackRows) -> int:
        """Return how many rows a step trains on: the batch, or all rows if there are fewer."""
        if self.rows in ("forget", "retain"):
            known = rows.forget if self.rows == "forget" else rows.retain
        else:
            known = rows.half()
        return min(self.batch_size, len(known))

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """True unless the row is of the half that is not measured."""
        if self.rows not in ("half", "other-half"):
            return True
        self._check(rows)
        # Rows that two subjects share are of both halves, and only train.
        trained = rows.in_half(row)
        return not trained if self.rows == "other-half" else trained or not rows.in_half(row, True)

    def _check(self, rows: AttackRows) -> None:
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
