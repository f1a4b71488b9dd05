"""Diversity of a sequence's tokens."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def token_entropy(tokens: Sequence[Hashable]) -> float:
    """Compute −Σ_i f_i log₂ f_i / log₂ n, where f_i are the frequencies of the n tokens.

    The value is 1 if all tokens differ, and 0 if one token is repeated.

    Source: sail-sg/closer-look-LLM-unlearning@b622294:metrics/metrics.py, `compute_token_entropy`.

    Returns:
        The entropy in [0, 1]; 0 if there are fewer than two tokens.
    """
    n = len(tokens)
    if n < 2:
        return 0.0
    frequencies = [count / n for count in Counter(tokens).values()]
    entropy = -math.fsum(f * math.log2(f) for f in frequencies)
    # Rounding may leave a quotient slightly outside.
    return min(max(entropy / math.log2(n), 0.0), 1.0)
