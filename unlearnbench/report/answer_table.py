"""The answers of a run's model to the questions, next to the truth and to what it is compared with.

A tracker shows the tables of several runs side by side. That is why the question comes first and
the run's own answer second: MLflow groups tables by the first column, and compares the second.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.api.tracker import AnswerTable
from unlearnbench.base.errors import DamagedError
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import Record

COLUMNS = (
    "question",
    "answer",
    "true answer",
    "start model",
    "retain model",
    "ROUGE-L",
    "set",
    "when",
)
"""Columns of a table of answers. `when` is the epoch or step of the run's model."""
MOST_FORGET_ROWS = 400
"""Most questions of a forget set in a table: all of TOFU's forget10."""
MOST_OTHER_ROWS = 100
"""Most questions of any other set in a table."""
_DIGITS = 3
"""Decimals of ROUGE-L recall."""

_Answers = Mapping[tuple[str, str, str], str]
"""Answers of a model by set, question and true answer."""


class AnswerTables:
    """Makes the tables of runs. The answers of start and retain models are read only once."""

    def __init__(self) -> None:
        self._answers_of: dict[str, _Answers] = {}

    def table(
        self, record: Record, epoch: int, references: Iterable[Record], forget_sets: Sequence[str]
    ) -> AnswerTable:
        """Make the table of a run's model.

        Args:
            record: Record of the run. It may be the start or the retain model itself.
            epoch: One of its evaluated epochs or steps.
            references: The start and retain models of the same model and split.
            forget_sets: Names of the sets whose rows are to be forgotten. They come first.

        Returns:
            A table without rows if its evaluation has no answers, or cannot be read.
        """
        answers_of = {reference.kind: self._answers(reference) for reference in references}
        start = answers_of.get("fine-tuned", {})
        retain = answers_of.get("retain", {})
        evaluation = _evaluation(record, epoch)
        sets = {} if evaluation is None else evaluation.sets
        names = sorted(sets, key=lambda name: (name not in forget_sets, name))
        rows: list[tuple[str | float | int | None, ...]] = []
        for name in names:
            answered = sets[name]
            most = MOST_FORGET_ROWS if name in forget_sets else MOST_OTHER_ROWS
            for position, (question, truth, answer) in enumerate(_answered(answered, most)):
                key = name, question, truth
                score = _rounded(float(answered.rouge_l_recall[position]))
                # In the order of COLUMNS.
                rows.append(
                    (question, answer, truth, start.get(key), retain.get(key), score, name, epoch)
                )
        return AnswerTable(COLUMNS, rows, tuple(forget_sets), str(Unit.of_spec(record.spec)))

    def _answers(self, record: Record) -> _Answers:
        """Read the answers of a start or retain model."""
        if record.id in self._answers_of:
            return self._answers_of[record.id]
        evaluation = _evaluation(record, last_epoch(record))
        sets = {} if evaluation is None else evaluation.sets
        answers: dict[tuple[str, str, str], str] = {}
        for name, answered in sets.items():
            for question, truth, answer in _answered(answered, MOST_FORGET_ROWS):
                answers[name, question, truth] = answer
        self._answers_of[record.id] = answers
        return answers


def last_epoch(record: Record) -> int | None:
    """Return the last epoch (or step) that was evaluated; None if none was."""
    return max(record.evaluations, default=None)


def _evaluation(record: Record, epoch: int | None) -> Evaluation | None:
    """Read an evaluation; None if there is none, or if its file is damaged.

    A damaged file must not end tracking. The report names the file, and the next sweep makes it
    again.
    """
    try:
        return None if epoch is None else record.evaluations.get(epoch)
    except DamagedError:
        return None


def _answered(answered: SetEvaluation, most: int) -> list[tuple[str, str, str]]:
    """List question, true answer and answer of a set's first rows.

    Args:
        answered: Observations of the set.
        most: Most rows to list.

    Returns:
        An empty list if the set was only scored, so that no answer was generated.
    """
    has_texts = answered.questions and answered.references and answered.generated
    if not has_texts:
        return []
    return list(
        zip(
            answered.questions[:most],
            answered.references[:most],
            answered.generated[:most],
            strict=False,
        )
    )


def _rounded(score: float) -> float | None:
    """Round a score. An undefined one becomes None."""
    return round(score, _DIGITS) if math.isfinite(score) else None
