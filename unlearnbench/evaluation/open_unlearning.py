"""open-unlearning's logs (TOFU_EVAL.json), read and written.

A key per metric, and in each `value_by_index`: {"0": {"avg_loss": …, "prob": …}, …}, where the
perturbed answers have a list in place of each number. The truth ratio's parts are logged beside it
as metrics of their own, so losses are read and nothing is taken over that was already reduced.
Source: locuslab/open-unlearning, src/evals/base.py, metrics/base.py, metrics/memorization.py.

Not in those logs, and so not known when read: token counts (0 here) and questions. A set is read
when its losses are whole; a log of the forget set alone serves as a retain model's. Written are the
metrics that its Model Utility and Forget Quality are made of: as `retain_logs_path`, and as results
that it takes for its own and summarises.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.bounded import QUESTIONS
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.files import LOSS, RECALL, Quantity, is_index
from unlearnbench.evaluation.metrics import set_metrics, summarize
from unlearnbench.evaluation.profiles import OPEN_UNLEARNING
from unlearnbench.evaluation.result import Evaluation, FloatArray, SetEvaluation, SetName

# Set, prefix of its metrics, and the metric whose answers its truth ratio is about.
_SETS: tuple[tuple[SetName, str, str], ...] = (
    ("retain", "retain", "Q_A_PARA_Prob"),
    ("forget", "forget", "Q_A_PARA_Prob"),
    ("real_authors", "ra", "Q_A_Prob"),
    ("world_facts", "wf", "Q_A_Prob"),
)


def is_open_unlearning(document: Mapping[str, Any]) -> bool:
    """Whether `document` has the keys of such a log."""
    return any(
        key.startswith(("forget_", "retain_", "ra_", "wf_"))
        and isinstance(value, dict)
        and "value_by_index" in value
        for key, value in document.items()
    )


def from_open_unlearning(path: Path, document: Mapping[str, Any]) -> Evaluation:
    """The sets of such a log, under profile `open-unlearning`; the forget set must be there."""
    log = _Log(path, document)
    sets: dict[SetName, SetEvaluation] = {}
    for name, prefix, base in _SETS:
        needed = [f"{prefix}_{base}", f"{prefix}_Q_A_PERT_Prob"]
        if name != "forget":
            needed += [f"{prefix}_Q_A_Prob", f"{prefix}_Q_A_ROUGE"]
        missing = [key for key in needed if key not in document]
        if not missing:
            sets[name] = _set(log, prefix, base)
        elif name == "forget":
            raise EvaluationError(
                f"{path}: no {missing[0]!r} in it; Forget Quality needs the losses that "
                "open-unlearning keeps beside forget_truth_ratio in TOFU_EVAL.json"
            )
    return Evaluation(OPEN_UNLEARNING.id, sets)


def check_profile(profile: str, path: Path) -> None:
    """Raise EvaluationError unless an evaluation by `profile` may become such a log."""
    if profile != OPEN_UNLEARNING.id:
        raise EvaluationError(
            f"{path}: open-unlearning's log of an evaluation by profile {profile} would pass its "
            f"numbers off as {OPEN_UNLEARNING.id}'s; use --profile open-unlearning, or write "
            "TOFU's format"
        )


def to_open_unlearning(evaluation: Evaluation, path: Path) -> dict[str, Any]:
    """`evaluation` as such a log, to be written to `path`; all four sets must be there."""
    check_profile(evaluation.profile, path)
    document: dict[str, Any] = {}
    for name, prefix, base in _SETS:
        e = evaluation.sets[name]
        metrics = set_metrics(name, e, OPEN_UNLEARNING)
        ratio = np.exp(-e.perturbed_loss.mean(axis=1)) / (  # false over true
            np.exp(-e.base_loss) + OPEN_UNLEARNING.truth_ratio_epsilon
        )
        document[f"{prefix}_{base}"] = _losses(e.base_loss)
        document[f"{prefix}_Q_A_Prob"] = _losses(e.answer_loss)
        document[f"{prefix}_Q_A_PERT_Prob"] = _losses(e.perturbed_loss)
        rouge = zip(e.rouge1_recall.tolist(), e.rouge_l_recall.tolist(), strict=True)
        texts = zip(e.questions, e.references, e.generated, strict=True)
        rows = [
            dict(zip(_SAID, (*recalls, *text), strict=True))
            for recalls, text in zip(rouge, texts, strict=True)
        ]
        document[f"{prefix}_Q_A_ROUGE"] = _metric(metrics.rouge, rows)
        scores = [{"score": score} for score in ratio.tolist()]
        key = "forget_truth_ratio" if name == "forget" else f"{prefix}_Truth_Ratio"
        document[key] = _metric(metrics.truth_ratio, scores)
        if base == "Q_A_Prob":
            document[f"{prefix}_Q_A_Prob_normalised"] = _metric(metrics.probability, [])
    document["model_utility"] = {
        "agg_value": summarize(evaluation, None, OPEN_UNLEARNING)["model_utility"]
    }
    return document


_SAID: tuple[str, ...] = ("rouge1_recall", "rougeL_recall", "input", "ground_truth", "generation")


def _losses(losses: FloatArray) -> dict[str, Any]:
    probabilities = np.exp(-losses)  # [n] or [n, k]
    pairs = zip(probabilities.tolist(), losses.tolist(), strict=True)
    mean = float(probabilities.mean())
    return _metric(mean, [{"prob": p, "avg_loss": loss} for p, loss in pairs])


def _metric(value: float | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"agg_value": value, "value_by_index": {str(i): row for i, row in enumerate(rows)}}


def _set(log: _Log, prefix: str, base: str) -> SetEvaluation:
    perturbed = log.losses(f"{prefix}_Q_A_PERT_Prob", per_answer=True)
    n = len(perturbed)
    base_loss = log.losses(f"{prefix}_{base}", n)
    unknown = np.full(n, np.nan)
    answer, rouge = f"{prefix}_Q_A_Prob", f"{prefix}_Q_A_ROUGE"
    said = log.column(rouge, n) if rouge in log.document else []
    tokens = np.zeros(n, dtype=np.int64)
    return SetEvaluation(
        questions=(),
        generated=tuple(str(row.get("generation", "")) for row in said),
        references=tuple(str(row.get("ground_truth", "")) for row in said),
        answer_loss=log.losses(answer, n) if answer in log.document else unknown,
        answer_tokens=tokens,
        base_loss=base_loss,
        base_tokens=tokens,
        perturbed_loss=perturbed,
        perturbed_tokens=np.zeros(perturbed.shape, dtype=np.int64),
        rouge1_recall=log.numbers(rouge, "rouge1_recall", RECALL) if said else unknown,
        rouge_l_recall=log.numbers(rouge, "rougeL_recall", RECALL) if said else unknown,
    )


class _Log:
    """The metrics of a log; every complaint names the place."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        self.path, self.document = path, document

    def error(self, key: str, message: str) -> EvaluationError:
        return EvaluationError(
            f"{self.path}: {key}: {message}; the log is incomplete or not open-unlearning's: "
            "evaluate again"
        )

    def column(self, key: str, n: int | None = None) -> list[dict[str, Any]]:
        """[n] what `key` has of each question, in the order of the questions."""
        found = self.document[key]
        table = found.get("value_by_index") if isinstance(found, dict) else None
        if not isinstance(table, dict) or not table:
            raise self.error(key, "no value_by_index")
        if len(table) > QUESTIONS:
            raise self.error(key, f"{len(table)} questions, and a set has at most {QUESTIONS}")
        if not all(map(is_index, table)):
            raise self.error(key, "expected indices 0, 1, …")
        rows = [table[index] for index in sorted(table, key=int)]
        if not all(isinstance(row, dict) for row in rows):
            raise self.error(key, "a question without values")
        if n is not None and len(rows) != n:
            raise self.error(key, f"{len(rows)} questions, where {n} were expected")
        return rows

    def losses(self, key: str, n: int | None = None, *, per_answer: bool = False) -> FloatArray:
        """[n] or [n, k] mean losses."""
        return self.numbers(key, "avg_loss", LOSS, n, per_answer=per_answer)

    def numbers(
        self,
        key: str,
        value: str,
        what: Quantity,
        n: int | None = None,
        *,
        per_answer: bool = False,
    ) -> FloatArray:
        """[n], or [n, k] where each question has a value per perturbed answer."""
        column = [row.get(value) for row in self.column(key, n)]
        rows = column if per_answer else [[number] for number in column]
        width = len(rows[0]) if isinstance(rows[0], list) else 0
        for row in rows:
            if not isinstance(row, list) or len(row) != width or not row:
                raise self.error(key, f"expected equally many values {value!r} for every question")
            for number in row:
                if wrong := what.problem(number):
                    raise self.error(key, f"{value!r}: {wrong}")
        array = np.array(rows, dtype=np.float64)
        return array if per_answer else array[:, 0]
