"""The contract of an observation: a number for each token, defined beside a metric that reads it.

    class Rank(Observation):
        name = "rank"

        def per_token(self, logits: Tensor, labels: Tensor) -> Tensor:
            return (logits > logits.gather(1, labels[:, None])).sum(1)

A metric with `observes = (Rank(),)` reads it from `seen.tokens.observed["rank"]`. Observations are
made in the pass that scores the true answers, and stored with every evaluation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # which takes a second, and listing metrics does not need it
    from torch import Tensor


class Observation(ABC):
    """Base of observations. Two observations with the same name must be the same."""

    name: ClassVar[str]
    """Letters, digits and `_`; stored with each evaluation."""

    @abstractmethod
    def per_token(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute a number for each of C scored tokens of true answers [C], EOS included.

        The numbers are stored in float32, and as NaN for tokens whose loss is undefined.

        Args:
            logits: Logits that predict the tokens [C, V], in float32 at least.
            labels: Ids of the tokens [C].
        """
