"""Evaluations as files: TOFU's own `eval_log_aggregated.json`, written and read.

Four top-level keys, one per set, and in each set a table per metric, {"0": value, "1": value, ...}.
TOFU's aggregator walks over whatever is at the top level, so what is ours (`question`, `profile`
and `precision`) lies inside the sets, where it is not looked at. Losses that TOFU stores twice, as
sum and as mean, are kept here as means; the sums, `truth_ratio` and `normalized_gt_loss` are
written for other readers and not read back.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unlearnbench.bounded import QUESTIONS, shortened
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.files import (
    LOSS,
    RECALL,
    TOKENS,
    Quantity,
    is_index,
    read_object,
    writing,
)
from unlearnbench.evaluation.open_unlearning import (
    from_open_unlearning,
    is_open_unlearning,
    to_open_unlearning,
)
from unlearnbench.evaluation.profiles import TOFU, Profile
from unlearnbench.evaluation.result import Evaluation, FloatArray, IntArray, SetEvaluation, SetName

FILES: dict[SetName, str] = {
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
    "forget": "eval_log_forget.json",
}
"""Names of the sets in a log, in the order of the published ones."""

_FACTS: tuple[SetName, ...] = ("real_authors", "world_facts")
_PER_QUESTION = (
    "answer_loss",
    "answer_tokens",
    "base_loss",
    "base_tokens",
    "rouge1_recall",
    "rouge_l_recall",
)
# Prompts of the published logs, as (before, after) the question.
_TEMPLATES = (("[INST] ", " [/INST]"), ("Question: ", "\n"))


def write_log(
    evaluation: Evaluation, path: Path | str, *, layout: Literal["tofu", "open-unlearning"] = "tofu"
) -> None:
    """Write `evaluation`; gzipped where `path` ends in `.gz`. Same evaluation, same bytes.

    layout  whose log it looks like; open-unlearning's lacks token counts
    """
    path = Path(path)
    ours = layout == "tofu"
    document = _to_json(evaluation) if ours else to_open_unlearning(evaluation, path)
    content = json.dumps(document, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        # No time of writing inside, so that equal evaluations are equal files.
        content = gzip.compress(content, compresslevel=6, mtime=0)
    with writing(path, "the evaluation log") as part:
        part.write_bytes(content)


def _to_json(evaluation: Evaluation) -> dict[str, Any]:
    known = {} if evaluation.precision is None else {"precision": evaluation.precision}
    return {
        file: _set_to_json(name, evaluation.sets[name], evaluation.profile) | known
        for name, file in FILES.items()
    }


def read_log(path: Path | str, *, profile: Profile = TOFU) -> Evaluation:
    """Read a log of ours, of TOFU, or of open-unlearning (TOFU_EVAL.json); gzip is recognised.

    profile  taken for the rules of a log that names none, as TOFU's published ones
    """
    path = Path(path)
    document = read_object(path)
    if is_open_unlearning(document):
        return from_open_unlearning(path, document)
    missing = [file for file in FILES.values() if not isinstance(document.get(file), dict)]
    if missing:
        raise EvaluationError(
            f"{path}: no {missing[0]!r} in it; expected an eval_log_aggregated.json with the keys "
            f"{', '.join(FILES.values())}"
        )
    tables = {name: _Tables(path, file, document[file]) for name, file in FILES.items()}
    profiles = {table.text("profile", profile.id) for table in tables.values()}
    precisions = {table.text("precision", "") for table in tables.values()}
    for what, found in (("profiles", profiles), ("precisions", precisions)):
        if len(found) > 1:
            raise EvaluationError(
                f"{path}: sets of different {what} ({shortened(sorted(found))}); evaluate again "
                "and write them in one go"
            )
    sets: dict[SetName, SetEvaluation] = {n: _set_from_json(tables[n]) for n in FILES}
    return Evaluation(profiles.pop(), sets, precision=precisions.pop() or None)


class _Tables:
    """The metrics of one set in a file, aligned by question; every complaint names the place."""

    def __init__(self, path: Path, file: str, tables: Mapping[str, Any]) -> None:
        self._path = path
        self._file = file
        self._tables = tables
        first = self._table("avg_gt_loss")
        if not first or not all(map(is_index, first)):
            raise self.error("avg_gt_loss", "expected {index: value} with indices 0, 1, …")
        if len(first) > QUESTIONS:
            raise self.error("avg_gt_loss", f"{len(first)} questions; the bound is {QUESTIONS}")
        # A merged log of several processes may have them in another order.
        self._order = sorted(first, key=int)

    def error(self, key: str, message: str) -> EvaluationError:
        return EvaluationError(
            f"{self._path}: {self._file}.{key}: {message}; the log is incomplete or not TOFU's: "
            "evaluate again"
        )

    def __contains__(self, key: str) -> bool:
        return key in self._tables

    def _table(self, key: str) -> Mapping[str, Any]:
        table = self._tables.get(key)
        if not isinstance(table, dict):
            raise self.error(key, "missing" if table is None else "not a table by index")
        return table

    def text(self, key: str, default: str) -> str:
        """What is one text for the whole set; `default` where the log does not say it."""
        text = self._tables.get(key, default)
        if not isinstance(text, str):
            raise self.error(key, f"expected text, got {shortened(text)}")
        return text

    def column(self, key: str) -> list[Any]:
        """[n] values in the order of the questions."""
        table = self._table(key)
        if set(table) != set(self._order):
            raise self.error(key, f"{len(table)} entries for {len(self._order)} questions")
        return [table[index] for index in self._order]

    def texts(self, key: str) -> tuple[str, ...]:
        """[n]"""
        column = self.column(key)
        if not all(isinstance(value, str) for value in column):
            raise self.error(key, "expected text for every question")
        return tuple(column)

    def floats(self, key: str, what: Quantity, *, per_answer: bool = False) -> FloatArray:
        """[n], or [n, k] where each question has a value per perturbed answer."""
        return np.array(self._numbers(key, what, per_answer), dtype=np.float64)

    def counts(self, key: str, *, per_answer: bool = False) -> IntArray:
        """[n] or [n, k] tokens."""
        return np.array(self._numbers(key, TOKENS, per_answer), dtype=np.int64)

    def _numbers(self, key: str, what: Quantity, per_answer: bool) -> list[Any]:
        column = self.column(key)
        if per_answer and not all(
            isinstance(row, list) and len(row) == len(column[0]) > 0 for row in column
        ):
            raise self.error(key, "expected equally many perturbed answers for every question")
        for value in chain.from_iterable(column) if per_answer else column:
            if wrong := what.problem(value):
                raise self.error(key, wrong)
        return column


def _set_from_json(tables: _Tables) -> SetEvaluation:
    questions: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    if "generated_text" in tables:
        rows = tables.column("generated_text")
        if not all(
            isinstance(row, list) and len(row) == 3 and all(isinstance(text, str) for text in row)
            for row in rows
        ):
            raise tables.error("generated_text", "expected [prompt, generated, reference]")
        prompts, generated, references = (tuple(column) for column in zip(*rows, strict=True))
        questions = tuple(_question_of(prompt) for prompt in prompts) if any(prompts) else ()
    if "question" in tables:
        questions = tables.texts("question")
    perturbed_loss = tables.floats("average_perturb_loss", LOSS, per_answer=True)
    perturbed_tokens = tables.counts("num_token_perturb", per_answer=True)
    if perturbed_loss.shape != perturbed_tokens.shape:
        raise tables.error("num_token_perturb", "not as many as in average_perturb_loss")
    return SetEvaluation(
        questions=questions,
        generated=generated,
        references=references,
        answer_loss=tables.floats("avg_gt_loss", LOSS),
        answer_tokens=tables.counts("num_token_gt"),
        base_loss=tables.floats("avg_paraphrased_loss", LOSS),
        base_tokens=tables.counts("num_token_paraphrased"),
        perturbed_loss=perturbed_loss,
        perturbed_tokens=perturbed_tokens,
        rouge1_recall=tables.floats("rouge1_recall", RECALL),
        rouge_l_recall=tables.floats("rougeL_recall", RECALL),
    )


def _question_of(prompt: str) -> str:
    """The question inside a prompt of the published logs; any other prompt as it is."""
    for before, after in _TEMPLATES:
        if prompt.startswith(before) and prompt.endswith(after):
            return prompt[len(before) : -len(after)]
    return prompt


def _set_to_json(name: SetName, evaluation: SetEvaluation, profile: str) -> dict[str, Any]:
    _check_aligned(name, evaluation)
    e = evaluation
    with np.errstate(over="ignore", invalid="ignore"):
        truth_ratio = np.exp(e.base_loss - e.perturbed_loss.mean(axis=1))  # [n] false over true
        sums = (
            e.answer_loss * e.answer_tokens,
            e.base_loss * e.base_tokens,
            e.perturbed_loss * e.perturbed_tokens,
        )
        # [n] -log(P(answer) / Σ_options P)
        options = np.column_stack([e.answer_loss, e.perturbed_loss])  # [n, 1 + k]
        normalized_loss = np.logaddexp.reduce(-options, axis=1) + e.answer_loss
    columns: dict[str, Sequence[Any]] = {
        "avg_gt_loss": e.answer_loss.tolist(),
        "gt_loss": sums[0].tolist(),
        "num_token_gt": e.answer_tokens.tolist(),
        "generated_text": _generated_text(e),
        "rouge1_recall": e.rouge1_recall.tolist(),
        "rougeL_recall": e.rouge_l_recall.tolist(),
        "average_perturb_loss": e.perturbed_loss.tolist(),
        "avg_paraphrased_loss": e.base_loss.tolist(),
        "truth_ratio": truth_ratio.tolist(),
        "paraphrased_loss": sums[1].tolist(),
        "perturb_loss": sums[2].tolist(),
        "num_token_paraphrased": e.base_tokens.tolist(),
        "num_token_perturb": e.perturbed_tokens.tolist(),
        "normalized_gt_loss": normalized_loss.tolist() if name in _FACTS else (),
        "question": e.questions,
    }
    tables: dict[str, Any] = {
        key: {str(index): value for index, value in enumerate(column)}
        for key, column in columns.items()
        if column
    }
    return tables | {"profile": profile}


def _generated_text(evaluation: SetEvaluation) -> list[list[str]]:
    """[n] of [prompt, generated, reference]; the question stands for the prompt."""
    prompts = evaluation.questions or ("",) * len(evaluation.generated)
    triples = zip(prompts, evaluation.generated, evaluation.references, strict=False)
    return [list(triple) for triple in triples]


def _check_aligned(name: SetName, evaluation: SetEvaluation) -> None:
    e = evaluation
    n = len(e.answer_loss)
    k = e.perturbed_loss.shape[-1]
    one = {field: getattr(e, field).shape for field in _PER_QUESTION}
    wrong = [f"{field} {shape}" for field, shape in one.items() if shape != (n,)]
    for field in ("perturbed_loss", "perturbed_tokens"):
        if getattr(e, field).shape != (n, k):
            wrong.append(f"{field} {getattr(e, field).shape}")
    for field in ("questions", "generated", "references"):
        if len(getattr(e, field)) not in (0, n):
            wrong.append(f"{field} {len(getattr(e, field))}")
    if len(e.generated) != len(e.references):
        wrong.append("generated answers without references, or the reverse")
    if n == 0 or k == 0 or wrong:
        raise EvaluationError(
            f"cannot write the evaluation of set {name!r}: {n} questions with {k} perturbed "
            f"answers each do not fit {', '.join(wrong) or 'a log, which needs one of each'}"
        )
