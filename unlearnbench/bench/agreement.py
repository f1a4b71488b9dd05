"""Compare two evaluations of one model, with allowance for ties.

The order of two logits closer than rounding is arbitrary: another batch shape may reverse it, and
the answers then differ from there on. Such an answer is counted, and its ROUGE taken from the plain
evaluation; an answer that departs anywhere else is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.bench.plain_evaluator import PlainEvaluator, PlainResult
from unlearnbench.evaluation.predictor import tie_gap
from unlearnbench.evaluation.summary import plan_of, summarize

# bf16 has 8 bits: its logits differ with the batch's shape in the third digit.
ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 3e-2}
"""Largest difference of a metric, by the weights' type."""


@dataclass(frozen=True)
class Agreement:
    """The result of comparing two evaluations."""

    agree: bool
    largest_difference: float | None
    """Over all metrics; None if a metric is defined in one evaluation only."""
    where: str
    """The metric with that difference."""
    allowed: float
    ties: int
    """Answers that depart where two logits are equal up to rounding."""
    different_answers: int
    """Answers that depart anywhere else."""


def compare(model: Any, plain: PlainEvaluator, slow: PlainResult, fast: Evaluation) -> Agreement:
    """Compare metrics and answers of two evaluations of `model`; `plain` gave the first."""
    dtype = next(model.parameters()).dtype
    ties = different = 0
    sets: dict[SetName, SetEvaluation] = {}
    for name, reference in slow.evaluation.sets.items():
        found = fast.sets[name]
        answers = fast.answers[name] if fast.answers is not None else ()
        pairs = list(zip(slow.answers[name], answers, strict=True))
        departs = np.array([a != b for a, b in pairs])
        for i in np.flatnonzero(departs):
            gaps = top_gaps(model, plain.prompts[name][i], pairs[i][0])
            tie = bool(gaps[_shared(*pairs[i])] <= tie_gap(dtype))
            ties, different = ties + tie, different + (not tie)
        sets[name] = replace(
            found,
            rouge1_recall=np.where(departs, reference.rouge1_recall, found.rouge1_recall),
            rouge_l_recall=np.where(departs, reference.rouge_l_recall, found.rouge_l_recall),
        )
    ours = summarize(replace(fast, sets=sets), None, plain.profile)
    theirs = summarize(plain.exactly(model, slow.evaluation), None, plain.profile)
    # The plain way has no values by token, which the benchmark's own metrics do not read.
    own = plan_of(plain.profile).own
    differ = {key: difference(ours[key], theirs[key]) for key in own}
    where = max(differ, key=lambda key: differ[key])
    largest = differ[where]
    agree = largest <= ALLOWED[dtype] and not different
    finite = largest if math.isfinite(largest) else None
    return Agreement(agree, finite, where, ALLOWED[dtype], ties, different)


def difference(one: float | None, other: float | None) -> float:
    """How far two values of a metric are apart; infinite if only one is defined."""
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    return abs(one - other)


@torch.no_grad()
def top_gaps(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray[Any, Any]:
    """[len(answer) + 1] lead of the largest logit over the second, at each step of an answer."""
    device = next(model.parameters()).device
    ids = torch.tensor([[*prompt, *answer]], device=device)
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 :].double()
    top = logits.topk(2, dim=1).values
    gaps: np.ndarray[Any, Any] = (top[:, 0] - top[:, 1]).cpu().numpy()
    return gaps


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading ids that two answers share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
