"""The contract of an observation: a column of numbers by token that a metric brings along.

    class Rank(Observation):
        name = "rank"

        def per_token(self, logits: Tensor, labels: Tensor) -> Tensor:
            return (logits > logits.gather(1, labels[:, None])).sum(1)

A metric with `observes = (Rank(),)` finds it in `seen.tokens.observed["rank"]`. It is made in the
pass that scores the true answers, and stored with every evaluation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:  # which takes a second, and listing metrics does not need it
    from torch import Tensor


class Observation(ABC):
    """Base of observations; those of one name are the same."""

    name: ClassVar[str]
    """Letters, digits and `_`; stored with each evaluation."""

    @abstractmethod
    def per_token(self, logits: Tensor, labels: Tensor) -> Tensor:
        """[C] a number for each of C scored tokens of true answers, EOS included.

        Kept in float32, and as NaN where the token's loss is undefined.

        logits  [C, V] that predict them, in float32 at least
        labels  [C]
        """
