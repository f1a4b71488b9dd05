"""open-unlearning's logs (TOFU_EVAL.json), read and written.

A key per metric, and in each `value_by_index`: {"0": {"avg_loss": …, "prob": …}, …}, where the
perturbed answers have a list in place of each number. The losses that a truth ratio is made of are
logged as metrics of their own: these are read, and no reduced value is.
Source: locuslab/open-unlearning, src/evals/base.py, metrics/base.py, metrics/memorization.py.

The logs have no token counts (0 here), no values by token and no questions. A set is read when its
losses are complete; a log of the forget set alone serves as a retain model's. Memorization and
membership inference are logged as one number per question: these are read as they are. Everything
that open-unlearning's TOFU evaluation logs without further models is written, so that it accepts
the file as `retain_logs_path` and as results of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation, SetName
from unlearnbench.config.profiles import OPEN_UNLEARNING
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.log_format import LOSS, NUMBER, RECALL, SCORE, LogReader, Quantity
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.stats.roc import auc
from unlearnbench.stats.text_overlap import rouge_l_f1

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
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
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
        name: log.numbers(key, len(sets["forget"].answer_loss), "score", SCORE)
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
            found[_OURS.get(key, key)] = part.numbers(f"{key}.{group}", None, "score", NUMBER)
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


def check_profile(profile: str, path: Path) -> None:
    """Raise EvaluationError unless an evaluation by `profile` may become such a log."""
    if profile != OPEN_UNLEARNING.id:
        raise EvaluationError(
            f"{path}: open-unlearning's log of an evaluation by profile {profile} would pass its "
            f"numbers off as {OPEN_UNLEARNING.id}'s; use --profile open-unlearning, or write "
            "TOFU's format"
        )


def to_open_unlearning(
    evaluation: Evaluation, path: Path, retain: Evaluation | None = None
) -> dict[str, Any]:
    """`evaluation` as such a log, to be written to `path`; all four sets must be there.

    retain  the retain model's evaluation, without which there is no `forget_quality`, `privleak`
            and `mia_reference`

    Memorization needs an evaluation with values by token, attacks the holdout rows as well.
    """
    check_profile(evaluation.profile, path)
    values = summarize(evaluation, retain, OPEN_UNLEARNING)
    document: dict[str, Any] = {}
    for name, prefix, base in _SETS:
        e = evaluation.sets[name]
        ratio = np.exp(-e.perturbed_loss.mean(axis=1)) / (  # false over true
            np.exp(-e.base_loss) + OPEN_UNLEARNING.truth_ratio_epsilon
        )
        document[f"{prefix}_{base}"] = _losses(e.base_loss)
        document[f"{prefix}_Q_A_Prob"] = _losses(e.answer_loss)
        document[f"{prefix}_Q_A_PERT_Prob"] = _losses(e.perturbed_loss)
        document[f"{prefix}_Q_A_ROUGE"] = _metric(values[f"rouge_{name}"], _rouge_rows(e))
        key = "forget_truth_ratio" if name == "forget" else f"{prefix}_Truth_Ratio"
        document[key] = _metric(values[f"truth_ratio_{name}"], _rows(score=ratio))
        if base == "Q_A_Prob":
            shares = next(
                found
                for measure in plan_of(OPEN_UNLEARNING).measures
                if measure.name == "probability" and name in measure.sets
                if (found := measure.per_example(e)) is not None
            )
            document[f"{prefix}_Q_A_Prob_normalised"] = _metric(
                values[f"probability_{name}"], _rows(prob=shares)
            )
    document |= _memorization(evaluation.sets["forget"]) | _attacks(evaluation, retain)
    for name in ("forget_quality", "privleak", "model_utility"):
        if name == "model_utility" or values[name] is not None:
            document[name] = {"agg_value": values[name]}
    return document


def _memorization(forget: SetEvaluation) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for measure in plan_of(OPEN_UNLEARNING).measures:
        if measure.name in _MEMORIZATION and "forget" in measure.sets:
            values = measure.per_example(forget)
            if values is not None:
                table = _metric(measure.metric.value(values), _rows(score=values))
                found[_MEMORIZATION[measure.name]] = table
    return found


def _attacks(evaluation: Evaluation, retain: Evaluation | None) -> dict[str, Any]:
    if any(name not in evaluation.sets for name in _GROUPS):
        return {}
    members, others = (evaluation.sets[name].values for name in _GROUPS)
    # As a log states them, also of attacks that are unknown here; then those that are known.
    pairs: dict[str, tuple[FloatArray, FloatArray] | None] = {
        name: (members[name], others[name])
        for name in members.keys() & others.keys()
        if name.startswith(_ATTACK)
    }
    inputs = MetricInputs(
        EvaluatedModel(evaluation.sets), None if retain is None else EvaluatedModel(retain.sets)
    )
    plan = plan_of(OPEN_UNLEARNING, None, {"mia-grad-norm": {}})  # where it was observed
    for one in plan.summaries.values():
        if isinstance(one, MembershipInference):
            pairs[f"{_ATTACK}{one.key}"] = one.pair(inputs)
    found: dict[str, Any] = {}
    for name, pair in sorted(pairs.items()):
        if pair is not None:
            area = auc(*pair)
            groups = {
                group: _metric(float(of_group.mean()), _rows(score=of_group))
                for group, of_group in zip(_GROUPS, pair, strict=True)
            }
            found[_THEIRS.get(name, name)] = groups | {"auc": area, "agg_value": area}
    return found


def _rouge_rows(e: SetEvaluation) -> list[dict[str, Any]]:
    """ROUGE of each question, with its texts where they are known."""
    n, texts = len(e.rouge_l_recall), bool(e.generated)
    f1 = e.values.get(_F1)
    if f1 is None and texts:
        f1 = rouge_l_f1(e.references, e.generated)
    columns: dict[str, Any] = {"rouge1_recall": e.rouge1_recall.tolist()}
    if f1 is not None:
        columns["rougeL_f1"] = f1.tolist()
    columns["rougeL_recall"] = e.rouge_l_recall.tolist()
    if texts:
        columns |= {"input": e.questions or ("",) * n}
        columns |= {"ground_truth": e.references, "generation": e.generated}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rows(**columns: FloatArray) -> list[dict[str, Any]]:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _losses(losses: FloatArray) -> dict[str, Any]:
    probabilities = np.exp(-losses)  # [n] or [n, k]
    return _metric(float(probabilities.mean()), _rows(prob=probabilities, avg_loss=losses))


def _metric(value: float | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"agg_value": value, "value_by_index": {str(i): row for i, row in enumerate(rows)}}


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
        rouge1_recall=log.numbers(rouge, n, "rouge1_recall", RECALL) if rows else unknown,
        rouge_l_recall=log.numbers(rouge, n, "rougeL_recall", RECALL) if rows else unknown,
        values={_F1: log.numbers(rouge, n, "rougeL_f1", RECALL)} if with_f1 else {},
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
        what: Quantity = LOSS,
        *,
        per_answer: bool = False,
    ) -> FloatArray:
        """[n], or [n, k] where each question has a value per perturbed answer."""
        values = [row.get(value) for row in self.column(key, n)]
        found: FloatArray = self.array(f"{key}.{value}", values, what, per_answer=per_answer)
        return found
