"""An evaluation as frozen values: per question, per set; everything else is computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

SetName = Literal["retain", "forget", "real_authors", "world_facts"]
SETS: tuple[SetName, ...] = get_args(SetName)

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """One set of n questions with k perturbed answers each; arrays are aligned by question."""

    questions: tuple[str, ...]
    generated: tuple[str, ...]
    """Greedy answers; empty when only scores are known (TOFU's published logs)."""
    references: tuple[str, ...]
    """True answers as decoded from their tokens, what ROUGE compares with."""
    answer_loss: FloatArray
    """[n] mean negative log-likelihood of the true answer's tokens, EOS included, in nats."""
    answer_tokens: IntArray
    """[n]"""
    base_loss: FloatArray
    """[n] the same of the answer that the truth ratio is about: paraphrase or answer."""
    base_tokens: IntArray
    """[n]"""
    perturbed_loss: FloatArray
    """[n, k]"""
    perturbed_tokens: IntArray
    """[n, k]"""
    rouge1_recall: FloatArray
    """[n]"""
    rouge_l_recall: FloatArray
    """[n]"""


@dataclass(frozen=True)
class Statistics:
    """How an evaluation came about. None of it is part of the result, or written to logs."""

    generated: int
    """Tokens of all greedy answers, EOS included."""
    drafted: int
    """Of these, tokens that were verified as part of a draft, not decoded one by one."""
    steps: int
    """Forward passes that decoding took, batches added up."""
    steps_saved: int
    """Passes more that the same batches would have taken with one token a pass."""
    ties: tuple[str, ...]
    """Questions whose greedy answer hung on a tie (`prediction.tie_gap`) at some token: another
    batch size or machine may give another answer there, and to no other question."""
    not_finite: str | None
    """First question where logits were NaN or infinite."""
    scoring_seconds: float
    generation_seconds: float
    rouge_seconds: float
    """After the model's work."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model at one moment on all four sets."""

    profile: str
    """Name and hash of the rules, `tofu@1a2b3c4d`; numbers of different profiles do not compare."""
    sets: Mapping[SetName, SetEvaluation]
    statistics: Statistics | None = None
    """None where the evaluation was read from a log."""
    answers: Mapping[SetName, tuple[tuple[int, ...], ...]] | None = None
    """Ids of the greedy answers, without EOS: drafts for the next evaluation; not in logs."""
    precision: str | None = None
    """`float32`, `bfloat16`, see `precision.py`; None where a log does not say it."""
