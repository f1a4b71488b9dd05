"""Sampled tokens that do not depend on the batch that they are sampled in.

Every answer has its own random numbers, one per token, made from its seed words alone; a token is
the first whose cumulative probability exceeds the number. So an answer depends neither on the
batch, nor on the number of processes, except for rounding: where another batch changes a
probability by 1e-7, one token in about 10 million changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Distribution(NamedTuple):
    """The distribution that tokens are sampled from."""

    temperature: float = 1.0
    top_p: float = 1.0
    """The most probable tokens are kept that have this share together, at least one."""


def uniform_numbers(seed: Sequence[int], count: int) -> NDArray[np.float64]:
    """[count] numbers in [0, 1) from the non-negative words of `seed`; more begin as fewer do."""
    return np.random.default_rng(seed).random(count)


def choose(logits: Tensor, distribution: Distribution, uniform: Tensor) -> Tensor:
    """[B] token of each row of `logits` [B, V], chosen by its number in `uniform` [B]."""
    # float64: the sum over 128k probabilities would lose most digits of the small ones.
    probabilities = (logits.double() / distribution.temperature).softmax(1)
    if torch.are_deterministic_algorithms_enabled():  # `cumsum` is deterministic on CPUs only
        probabilities, uniform = probabilities.cpu(), uniform.cpu()
    if distribution.top_p < 1:
        probabilities = _nucleus(probabilities, distribution.top_p)
    cumulative = probabilities.cumsum(1)
    passed = cumulative > (uniform.double().unsqueeze(1) * cumulative[:, -1:])
    return passed.int().argmax(1).to(logits.device)  # the first one


def _nucleus(probabilities: Tensor, share: float) -> Tensor:
    """`probabilities` [B, V] with 0 for all but the most probable tokens (Holtzman et al. 2020)."""
    ordered, tokens = probabilities.sort(dim=1, descending=True, stable=True)
    before = ordered.cumsum(1) - ordered
    kept = ordered.where(before < share, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, tokens, kept)
