"""A metric with an observation of its own, as an outsider writes it: one file."""

from typing import ClassVar

import numpy as np
from torch import Tensor

from unlearnbench.api.metric import Metric, Role
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Rank(Observation):
    """How many tokens are more probable than the true one."""

    name = "rank"

    def per_token(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits > logits.gather(1, labels[:, None])).sum(1)


class ReciprocalRank(Metric):
    """Mean reciprocal rank of the true answer's tokens."""

    label = "Mean reciprocal rank"
    reads = frozenset({"tokens"})
    observes: ClassVar = (Rank(),)
    roles: ClassVar[frozenset[Role]] = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        ranks = seen.tokens.by_answer(seen.tokens.observed["rank"], eos=False)
        return np.array([np.mean(1 / (1 + rank)) if rank.size else np.nan for rank in ranks])
