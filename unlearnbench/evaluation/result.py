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


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model at one moment on all four sets."""

    profile: str
    """Name and hash of the rules, `tofu@1a2b3c4d`; numbers of different profiles do not compare."""
    sets: Mapping[SetName, SetEvaluation]
