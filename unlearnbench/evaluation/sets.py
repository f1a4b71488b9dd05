"""The questions of the evaluation sets under a profile."""

from collections.abc import Sequence
from dataclasses import replace

from unlearnbench.api.benchmark import Dataset, Question, SplitKey
from unlearnbench.api.metric import SCORED_ONLY, Role
from unlearnbench.api.observations import SetName
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError


def evaluation_sets(
    benchmark: Dataset, fraction: SplitKey, profile: Profile
) -> dict[SetName, tuple[Question, ...]]:
    """Return the questions of each set: as many rows as the profile has, from its column.

    The set `holdout` is there if there are such rows. Its questions are always the original ones,
    as in open-unlearning.

    Args:
        benchmark: The rows of the benchmark.
        fraction: The split.
        profile: Rules of the evaluation.

    Raises:
        EvaluationError: A row has no question in the profile's column.
    """
    split = benchmark.splits[fraction]
    sets = {
        name: rows[: profile.rows] for name, rows in split.sets.items() if rows or name != "holdout"
    }
    if profile.question_key == "question":
        return sets
    files: dict[SetName, str] = {"retain": "retain_perturbed", "forget": f"{split.name}_perturbed"}
    for name, file in files.items():
        if name in sets:
            sets[name] = tuple(
                _paraphrased(row, number, name, file)
                for number, row in enumerate(sets[name], start=1)
            )
    return sets


def is_answered(rows: Sequence[Question], role: Role | None) -> bool:
    """Whether answers to a set are generated: a metric reads them, and the rows ask for them."""
    return role not in SCORED_ONLY and not any(row.is_scored_only for row in rows)


def _paraphrased(row: Question, number: int, name: str, file: str) -> Question:
    """Return a row that asks the paraphrased question.

    Args:
        row: The row.
        number: Its number in the set, from 1, for the message.
        name: Name of the set.
        file: Name of TOFU's file with the set.

    Raises:
        EvaluationError: The row has no paraphrased question.
    """
    if not row.paraphrased_question:
        raise EvaluationError(
            f"set {name} ({file}): row {number} has no 'paraphrased_question', which question_key "
            "names; add the column to that file, or leave question_key out"
        )
    # An attack by a paraphrase then asks the original question.
    return replace(row, question=row.paraphrased_question, paraphrased_question=row.question)
