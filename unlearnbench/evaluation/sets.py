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
    """The questions of each set: the profile's number of rows, from its column.

    Set `holdout` is there if there are such rows. Its questions are always the original ones, as in
    open-unlearning.

    Raises: EvaluationError for a row without that column.
    """
    split = benchmark.splits[fraction]
    chosen = {n: q[: profile.rows] for n, q in split.sets.items() if q or n != "holdout"}
    if profile.question_key == "question":
        return chosen
    files: dict[SetName, str] = {"retain": "retain_perturbed", "forget": f"{split.name}_perturbed"}
    for name, file in ((name, file) for name, file in files.items() if name in chosen):
        chosen[name] = tuple(
            _paraphrased(row, i, name, file) for i, row in enumerate(chosen[name], start=1)
        )
    return chosen


def is_answered(rows: Sequence[Question], role: Role | None) -> bool:
    """True if answers to a set are generated: a metric reads them, and the rows ask for them."""
    return role not in SCORED_ONLY and not any(row.is_scored_only for row in rows)


def _paraphrased(row: Question, number: int, name: str, file: str) -> Question:
    if not row.paraphrased_question:
        raise EvaluationError(
            f"set {name} ({file}): row {number} has no 'paraphrased_question', which question_key "
            "names; add the column to that file, or leave question_key out"
        )
    # The other wording is the original then, which an attack can ask.
    return replace(row, question=row.paraphrased_question, paraphrased_question=row.question)
