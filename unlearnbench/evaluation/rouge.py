"""ROUGE recall as TOFU counts it: rouge_score with the Porter stemmer, reference first.

Recall, so an answer is not punished for running on after it has said what the reference says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.result import FloatArray


def rouge_recall(
    references: Sequence[str], predictions: Sequence[str]
) -> tuple[FloatArray, FloatArray]:
    """([n] ROUGE-1 recall, [n] ROUGE-L recall) of each prediction against its reference."""
    if len(references) != len(predictions):
        raise EvaluationError(
            f"ROUGE: {len(references)} references and {len(predictions)} generated answers; "
            "each answer needs its reference"
        )
    pairs = [_recall(*pair) for pair in zip(references, predictions, strict=True)]
    recalls = np.array(pairs, dtype=np.float64).reshape(-1, 2)  # [n, 2]
    return recalls[:, 0].copy(), recalls[:, 1].copy()


# A sweep's workers see the same answers again and again: what a run does not touch (facts, retain
# rows) is said word for word as the epoch before. 16384 pairs are about 10 MB.
@lru_cache(maxsize=16384)
def _recall(reference: str, prediction: str) -> tuple[float, float]:
    scores = _scorer().score(reference, prediction)
    return float(scores["rouge1"].recall), float(scores["rougeL"].recall)


@cache
def _scorer() -> Any:
    # Imported here: rouge_score loads nltk, which takes longer than the rest of the command line.
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rouge1", "rougeL"], use_stemmer=True)
