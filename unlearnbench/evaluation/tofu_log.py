"""Evaluations as files: TOFU's own `eval_log_aggregated.json`, written and read.

Four top-level keys, one per set, and in each set a table per metric, {"0": value, "1": value, ...}.
TOFU's aggregator iterates over the top level, so keys of our own (`question`, `profile` and
`precision`) are inside the sets. Of losses that TOFU stores twice, as sum and mean, the means are
read; the sums, `truth_ratio` and `normalized_gt_loss` are written for other readers alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import EvaluationError, shortened
from unlearnbench.evaluation.log_format import LogReader, read_object
from unlearnbench.evaluation.observation_file import SUFFIX, read_observations
from unlearnbench.evaluation.open_unlearning_log import (
    from_open_unlearning,
    is_open_unlearning,
)
from unlearnbench.files.outputs import writing

FILES: dict[SetName, str] = {
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
    "forget": "eval_log_forget.json",
}
"""Names of the sets in a log, in the order of the published ones."""

_FACTS: tuple[SetName, ...] = ("real_authors", "world_facts")
# Prompts of the published logs, as (before, after) the question.
_TEMPLATES = (("[INST] ", " [/INST]"), ("Question: ", "\n"))


def write_log(evaluation: Evaluation, path: Path | str) -> None:
    """Write `evaluation`; gzipped where `path` ends in `.gz`. Same evaluation, same bytes."""
    path = Path(path)
    check_sets(evaluation.sets, path)
    for name in FILES:
        there = evaluation.sets[name].perturbed
        if not (there.size and there.all()):
            raise EvaluationError(
                f"{path}: questions of set {name!r} have different numbers of wrong "
                "answers, or none, and such a log needs equally many; use `unlearnbench evaluate "
                "--questions` instead"
            )
    precision = {} if evaluation.precision is None else {"precision": evaluation.precision}
    document = {
        file: _set_to_json(name, evaluation.sets[name], evaluation.profile) | precision
        for name, file in FILES.items()
    }
    content = json.dumps(document, separators=(",", ":")).encode()
    if path.suffix == ".gz":
        # Without a time stamp, so that equal evaluations are equal files.
        content = gzip.compress(content, compresslevel=6, mtime=0)
    with writing(path, "the evaluation log") as part:
        part.write_bytes(content)


def read_log(path: Path | str, *, profile: Profile = TOFU) -> Evaluation:
    """Read a log of ours, of TOFU, or of open-unlearning (TOFU_EVAL.json); gzip is recognised.

    path     or a record's file, `epoch-<k>.safetensors`
    profile  of a log that names none, as TOFU's published ones
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return read_observations(path)
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


def check_sets(sets: Collection[SetName], path: Path) -> None:
    """Raise EvaluationError unless a log can be written of an evaluation on these sets."""
    missing = [name for name in FILES if name not in sets]
    if missing:
        raise EvaluationError(
            f"{path}: the evaluation has no set {missing[0]!r}, and such a log needs "
            f"{', '.join(FILES)}: only evaluations on TOFU's sets can be written so"
        )


class _Tables(LogReader):
    """The metrics of one set in a file, aligned by question."""

    def __init__(self, path: Path, file: str, tables: Mapping[str, Any]) -> None:
        super().__init__(f"{path}: {file}.", "TOFU's")
        self.tables = tables
        self._order = self.indices("avg_gt_loss", self._table("avg_gt_loss"))

    def _table(self, key: str) -> Mapping[str, Any]:
        table = self.tables.get(key)
        if not isinstance(table, dict):
            raise self.error(key, "missing" if table is None else "not a table by index")
        return table

    def text(self, key: str, default: str) -> str:
        """A text that the whole set shares; `default` where the log has none."""
        text = self.tables.get(key, default)
        if not isinstance(text, str):
            raise self.error(key, f"expected text, got {shortened(text)}")
        return text

    def column(self, key: str) -> list[Any]:
        """[n] values in the order of the questions."""
        table = self._table(key)
        if set(table) != set(self._order):
            raise self.error(key, f"{len(table)} entries for {len(self._order)} questions")
        return [table[index] for index in self._order]

    def numbers(self, key: str, *, whole: bool = False, per_answer: bool = False) -> Any:
        """[n], or [n, k] where each question has a value per perturbed answer."""
        return self.array(key, self.column(key), whole=whole, per_answer=per_answer)


def _set_from_json(tables: _Tables) -> SetEvaluation:
    questions: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    if "generated_text" in tables.tables:
        rows = tables.column("generated_text")
        if not all(
            isinstance(row, list) and len(row) == 3 and all(isinstance(text, str) for text in row)
            for row in rows
        ):
            raise tables.error("generated_text", "expected [prompt, generated, reference]")
        prompts, generated, references = (tuple(column) for column in zip(*rows, strict=True))
        questions = tuple(_question_of(prompt) for prompt in prompts) if any(prompts) else ()
    if "question" in tables.tables:
        column = tables.column("question")
        if not all(isinstance(question, str) for question in column):
            raise tables.error("question", "expected text for every question")
        questions = tuple(column)
    perturbed_loss = tables.numbers("average_perturb_loss", per_answer=True)
    perturbed_tokens = tables.numbers("num_token_perturb", whole=True, per_answer=True)
    if perturbed_loss.shape != perturbed_tokens.shape:
        raise tables.error("num_token_perturb", "not as many as in average_perturb_loss")
    return SetEvaluation(
        questions=questions,
        generated=generated,
        references=references,
        answer_loss=tables.numbers("avg_gt_loss"),
        answer_tokens=tables.numbers("num_token_gt", whole=True),
        base_loss=tables.numbers("avg_paraphrased_loss"),
        base_tokens=tables.numbers("num_token_paraphrased", whole=True),
        perturbed_loss=perturbed_loss,
        perturbed_tokens=perturbed_tokens,
        rouge1_recall=tables.numbers("rouge1_recall"),
        rouge_l_recall=tables.numbers("rougeL_recall"),
    )


def _question_of(prompt: str) -> str:
    """The question inside a prompt of the published logs; other prompts unchanged."""
    for before, after in _TEMPLATES:
        if prompt.startswith(before) and prompt.endswith(after):
            return prompt[len(before) : -len(after)]
    return prompt


def _set_to_json(name: SetName, evaluation: SetEvaluation, profile: str) -> dict[str, Any]:
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
    """[n] of [prompt, generated, reference], with the question as prompt."""
    prompts = evaluation.questions or ("",) * len(evaluation.generated)
    triples = zip(prompts, evaluation.generated, evaluation.references, strict=False)
    return [list(triple) for triple in triples]
