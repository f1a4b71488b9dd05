"""An evaluation as a table: a row per question, for a notebook.

Parquet or JSON lines, by the name of the file; `pandas.read_parquet(path)` and
`pandas.read_json(path, lines=True)` read them. The perturbed answers' values are lists, so that
there is one row per question whatever their number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.files import writing
from unlearnbench.evaluation.metrics import truth_ratios
from unlearnbench.evaluation.profiles import Profile, profile_of_id
from unlearnbench.evaluation.result import SETS, Evaluation, SetEvaluation, SetName

SUFFIXES = (".parquet", ".jsonl")


def questions_table(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One dictionary per question, set by set.

    set, index            where the question stands, as in TOFU's log
    question, reference, generated      None where the evaluation has scores only
    answer_loss, answer_tokens          true answer: mean loss in nats, scored tokens
    base_loss, base_tokens              what the truth ratio is about: paraphrase, or answer
    perturbed_loss, perturbed_tokens    lists, one value per perturbed answer
    truth_ratio           R by the evaluation's own profile: above 1 the true answer is likelier
    rouge1_recall, rougeL_recall        of the generated answer
    """
    profile = profile_of_id(evaluation.profile)
    return [
        row
        for name in SETS
        if name in evaluation.sets
        for row in _rows(name, evaluation.sets[name], profile)
    ]


def _rows(name: SetName, found: SetEvaluation, profile: Profile) -> list[dict[str, Any]]:
    n = len(found.answer_loss)
    with np.errstate(over="ignore", invalid="ignore"):
        ratios = truth_ratios(found, profile)
    columns: dict[str, list[Any]] = {
        "set": [name] * n,
        "index": list(range(n)),
        "question": list(found.questions) or [None] * n,
        "reference": list(found.references) or [None] * n,
        "generated": list(found.generated) or [None] * n,
        "answer_loss": found.answer_loss.tolist(),
        "answer_tokens": found.answer_tokens.tolist(),
        "base_loss": found.base_loss.tolist(),
        "base_tokens": found.base_tokens.tolist(),
        "perturbed_loss": found.perturbed_loss.tolist(),
        "perturbed_tokens": found.perturbed_tokens.tolist(),
        "truth_ratio": ratios.tolist(),
        "rouge1_recall": found.rouge1_recall.tolist(),
        "rougeL_recall": found.rouge_l_recall.tolist(),
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def check_questions_path(path: Path | str) -> None:
    """Raise EvaluationError unless `write_questions` knows the kind of file."""
    if Path(path).suffix not in SUFFIXES:
        raise EvaluationError(
            f"{path}: questions are written as {' or '.join(SUFFIXES)}; choose by the file's ending"
        )


def write_questions(evaluation: Evaluation, path: Path | str) -> None:
    """Write `questions_table` to `path`, Parquet or JSON lines; whole or not at all."""
    path = Path(path)
    check_questions_path(path)
    rows = questions_table(evaluation)
    with writing(path, "the questions") as part:
        if path.suffix == ".parquet":
            _write_parquet(rows, part, evaluation.profile)
        else:
            lines = (json.dumps(_plain(row), ensure_ascii=False) + "\n" for row in rows)
            with part.open("w", encoding="utf-8") as file:
                file.writelines(lines)


def _write_parquet(rows: list[dict[str, Any]], path: Path, profile: str) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(rows)
    # Numbers without their rules are worth little: they go with the file.
    table = table.replace_schema_metadata({"unlearnbench.profile": profile})
    parquet.write_table(table, path, compression="zstd")


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """`row` with None for what JSON lacks, NaN and infinity."""
    return {key: _finite(value) for key, value in row.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
