"""The questions of the four evaluation sets, as a profile asks them."""

from __future__ import annotations

from dataclasses import replace

from unlearnbench.data.benchmark import Benchmark, Question
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.profiles import Profile
from unlearnbench.evaluation.result import SetName


def evaluation_sets(
    benchmark: Benchmark, fraction: float, profile: Profile
) -> dict[SetName, tuple[Question, ...]]:
    """The questions of each set, as many as the profile takes, by the column that it asks.

    Raises: EvaluationError for a row without that column.
    """
    sets: dict[SetName, tuple[Question, ...]] = {
        "retain": benchmark.retain_perturbed,
        "forget": benchmark.splits[fraction].forget_perturbed,
        "real_authors": benchmark.real_authors,
        "world_facts": benchmark.world_facts,
    }
    taken: dict[SetName, tuple[Question, ...]] = {n: q[: profile.rows] for n, q in sets.items()}
    if profile.question_key == "question":
        return taken
    split = benchmark.splits[fraction].name
    files: dict[SetName, str] = {"retain": "retain_perturbed", "forget": f"{split}_perturbed"}
    for name, file in files.items():
        taken[name] = tuple(
            _paraphrased(row, i, name, file) for i, row in enumerate(taken[name], start=1)
        )
    return taken


def _paraphrased(row: Question, number: int, name: str, file: str) -> Question:
    if not row.paraphrased_question:
        raise EvaluationError(
            f"set {name} ({file}): row {number} has no 'paraphrased_question', which question_key "
            "asks; add the column to that file, or leave question_key out"
        )
    return replace(row, question=row.paraphrased_question)
