"""Observations by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import AnswerTokens, SetEvaluation

Observe = Callable[..., SetEvaluation]


def observed(
    losses: Sequence[Sequence[float]] = (),
    hits: Sequence[str] = (),
    *,
    ended: bool = True,
    perturbed: int = 0,
    **columns: Any,
) -> SetEvaluation:
    """A set from the losses of each answer's tokens, or from `110` for hit, hit, miss.

    The last token of each is EOS, unless not `ended`.
    """
    losses = losses or [[1.0] * len(one) for one in hits]
    hits = hits or ["1" * len(one) for one in losses]
    n, means = len(losses), np.array([np.mean(one) for one in losses])
    flat = "".join(hits)
    tokens = AnswerTokens(
        lengths=np.array([len(one) for one in losses]),
        ended=np.full(n, ended),
        loss=np.concatenate([np.asarray(one, dtype=np.float32) for one in losses]),
        hit=np.array([mark == "1" for mark in flat]),
        tied=np.zeros(len(flat), dtype=bool),
    )
    known: dict[str, Any] = {
        "questions": tuple(f"question {i}" for i in range(n)),
        "generated": ("",) * n,
        "references": tuple(f"answer {i}" for i in range(n)),
        "answer_loss": means,
        "answer_tokens": tokens.lengths,
        "base_loss": means + 0.1,
        "base_tokens": tokens.lengths,
        "perturbed_loss": np.ones((n, perturbed)),
        "perturbed_tokens": np.ones((n, perturbed), dtype=np.int64),
        "rouge1_recall": np.ones(n),
        "rouge_l_recall": np.ones(n),
        "token_columns": tokens,
    }
    return SetEvaluation(**{**known, **columns})


@pytest.fixture
def observe() -> Observe:
    """Makes a set of observations, see `observed`."""
    return observed
