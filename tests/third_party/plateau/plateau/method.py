"""Plateau: gradient ascent whose push fades out as an answer becomes improbable."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from unlearnbench import LossBatch, Method, Needs


class Plateau(Method):
    """Plateau: own work, 2026

    L = mean_t w · tanh(log p_t / w)

    Symbols:
        t: answer token of a forget row
        p_t: probability of token t
        w: `width`, the number of nats after which the push fades out
    """

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    width: float = Field(default=8.0, gt=0, le=100, description="nats after which the push fades")

    def loss(self, batch: LossBatch) -> Tensor:
        """Return the loss as a scalar."""
        logprob = batch.forget.token_logprob  # [N]
        return batch.forget.mean_tokens(self.width * (logprob / self.width).tanh())
