"""Sampled tokens that do not depend on the batch that they are sampled in.

Every answer has its own random numbers, one per token, which depend only on its seed words. The
sampled token is the first one whose cumulative probability exceeds the number. That is why an
answer depends neither on the batch nor on the number of processes, except for rounding: if another
batch changes a probability by 1e-7, one token in about 10 million changes.
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
    """Only the most probable tokens are sampled, as many as have this probability together."""


def uniform_numbers(seed: Sequence[int], count: int) -> NDArray[np.float64]:
    """Draw numbers [count] in [0, 1).

    Args:
        seed: Non-negative words.
        count: How many numbers. More numbers begin with the same ones as fewer do.
    """
    return np.random.default_rng(seed).random(count)


def choose(logits: Tensor, distribution: Distribution, uniform: Tensor) -> Tensor:
    """Choose a token for each of B texts.

    Args:
        logits: [B, V]
        distribution: The distribution that tokens are sampled from.
        uniform: A random number [B] in [0, 1) for each text.

    Returns:
        Tokens [B].
    """
    # In float32, the sum over 128k probabilities would lose most digits of the small ones.
    probabilities = (logits.double() / distribution.temperature).softmax(1)
    if torch.are_deterministic_algorithms_enabled():  # `cumsum` is deterministic only on CPUs
        probabilities = probabilities.cpu()
        uniform = uniform.cpu()
    if distribution.top_p < 1:
        probabilities = _nucleus(probabilities, distribution.top_p)
    cumulative = probabilities.cumsum(1)
    # The nucleus has a sum below 1.
    threshold = uniform.double().unsqueeze(1) * cumulative[:, -1:]
    exceeds = cumulative > threshold
    return exceeds.int().argmax(1).to(logits.device)  # of equal values, `argmax` finds the first


def _nucleus(probabilities: Tensor, share: float) -> Tensor:
    """Set all but the most probable tokens to 0 (Holtzman et al. 2020, arXiv:1904.09751).

    Args:
        probabilities: [B, V]
        share: Probability that the kept tokens have together, at least. One token is always kept.
    """
    descending, tokens = probabilities.sort(dim=1, descending=True, stable=True)
    probability_before = descending.cumsum(1) - descending
    kept = descending.where(probability_before < share, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, tokens, kept)
