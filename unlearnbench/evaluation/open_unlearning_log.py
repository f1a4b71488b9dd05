"""open-unlearning's logs (TOFU_EVAL.json), read.

A key per metric, and in each `value_by_index`: {"0": {"avg_loss": …, "prob": …}, …}, where the
perturbed answers have a list in place of each number. The losses that a truth ratio is made of are
logged as metrics of their own: these are read, and no reduced value is.
Source: locuslab/open-unlearning, src/evals/base.py, metrics/base.py, metrics/memorization.py.

The logs have no token counts (0 here), no values by token and no questions. A set is read when its
losses are complete; a log of the forget set alone serves as a retain model's. Memorization and
membership inference are logged as one number per question: these are read as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation, SetName
from unlearnbench.config.profiles import OPEN_UNLEARNING
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.log_format import LogReader

# Set, prefix of its metrics, and the metric whose answers its truth ratio is about.
_SETS: tuple[tuple[SetName, str, str], ...] = (
    ("retain", "retain", "Q_A_PARA_Prob"),
    ("forget", "forget", "Q_A_PARA_Prob"),
    ("real_authors", "ra", "Q_A_Prob"),
    ("world_facts", "wf", "Q_A_Prob"),
)

_MEMORIZATION = {
    "exact_memorization": "exact_memorization",
    "extraction_strength_ou": "extraction_strength",
}
"""Our metrics of the forget set, and the names that such a log has for them."""
_ATTACK = "mia_"
_OURS = {"mia_gradnorm": "mia_grad_norm"}
"""Attacks that have another name here."""
_GROUPS = ("forget", "holdout")
"""Tables of an attack's scores, named as our sets."""
_F1 = "rouge_l_f1"


def is_open_unlearning(document: Mapping[str, Any]) -> bool:
    """True if `document` has the keys of such a log."""
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
                "open-unlearning logs with forget_truth_ratio in TOFU_EVAL.json"
            )
    memorization = {
        name: log.numbers(key, len(sets["forget"].answer_loss), "score")
        for name, key in _MEMORIZATION.items()
        if key in document
    }
    members, others = (_attack_scores(log, group) for group in _GROUPS)
    forget = sets["forget"]
    sets["forget"] = replace(forget, values={**forget.values, **memorization, **members})
    if others:
        sets["holdout"] = _scores_alone(others)
    return Evaluation(OPEN_UNLEARNING.id, sets)


def _attack_scores(log: _Log, group: str) -> dict[str, FloatArray]:
    """[n] by attack, the scores of the forget or the holdout rows."""
    found: dict[str, FloatArray] = {}
    for key, groups in log.document.items():
        if key.startswith(_ATTACK) and isinstance(groups, dict) and group in groups:
            part = log.part(f"{key}.{group}", groups[group])
            found[_OURS.get(key, key)] = part.numbers(f"{key}.{group}", None, "score")
    if len({len(values) for values in found.values()}) > 1:
        raise log.error("mia_*", f"attacks have unequal numbers of {group} rows")
    return found


def _scores_alone(values: Mapping[str, FloatArray]) -> SetEvaluation:
    """A set of which attacks' scores are known, and nothing else."""
    n = len(next(iter(values.values())))
    unknown, none = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    return SetEvaluation(
        questions=(),
        generated=(),
        references=(),
        answer_loss=values.get("mia_loss", unknown),
        answer_tokens=none,
        base_loss=unknown,
        base_tokens=none,
        perturbed_loss=np.empty((n, 0)),
        perturbed_tokens=np.empty((n, 0), dtype=np.int64),
        rouge1_recall=unknown,
        rouge_l_recall=unknown,
        values=values,
    )


def _set(log: _Log, prefix: str, base: str) -> SetEvaluation:
    perturbed = log.numbers(f"{prefix}_Q_A_PERT_Prob", per_answer=True)
    n = len(perturbed)
    base_loss = log.numbers(f"{prefix}_{base}", n)
    unknown = np.full(n, np.nan)
    answer, rouge = f"{prefix}_Q_A_Prob", f"{prefix}_Q_A_ROUGE"
    rows = log.column(rouge, n) if rouge in log.document else []
    texts = rows if all("generation" in row and "ground_truth" in row for row in rows) else []
    with_f1 = bool(rows) and all("rougeL_f1" in row for row in rows)
    tokens = np.zeros(n, dtype=np.int64)
    return SetEvaluation(
        questions=(),
        generated=tuple(str(row["generation"]) for row in texts),
        references=tuple(str(row["ground_truth"]) for row in texts),
        answer_loss=log.numbers(answer, n) if answer in log.document else unknown,
        answer_tokens=tokens,
        base_loss=base_loss,
        base_tokens=tokens,
        perturbed_loss=perturbed,
        perturbed_tokens=np.zeros(perturbed.shape, dtype=np.int64),
        rouge1_recall=log.numbers(rouge, n, "rouge1_recall") if rows else unknown,
        rouge_l_recall=log.numbers(rouge, n, "rougeL_recall") if rows else unknown,
        values={_F1: log.numbers(rouge, n, "rougeL_f1")} if with_f1 else {},
    )


class _Log(LogReader):
    """The metrics of a log."""

    def __init__(self, path: Path, document: Mapping[str, Any]) -> None:
        super().__init__(f"{path}: ", "open-unlearning's")
        self.path, self.document = path, document

    def part(self, key: str, value: Any) -> _Log:
        """A log of one metric alone."""
        return _Log(self.path, {key: value})

    def column(self, key: str, n: int | None = None) -> list[dict[str, Any]]:
        """[n] the table of each question under `key`, in order."""
        found = self.document[key]
        table = found.get("value_by_index") if isinstance(found, dict) else None
        if not isinstance(table, dict):
            raise self.error(key, "no value_by_index")
        rows = [table[index] for index in self.indices(key, table)]
        if not all(isinstance(row, dict) for row in rows):
            raise self.error(key, "a question without values")
        if n is not None and len(rows) != n:
            raise self.error(key, f"{len(rows)} questions, where {n} were expected")
        return rows

    def numbers(
        self,
        key: str,
        n: int | None = None,
        value: str = "avg_loss",
        *,
        per_answer: bool = False,
    ) -> FloatArray:
        """[n], or [n, k] where each question has a value per perturbed answer."""
        values = [row.get(value) for row in self.column(key, n)]
        found: FloatArray = self.array(f"{key}.{value}", values, per_answer=per_answer)
        return found
