"""How far the greedy answer can be compressed."""

import zlib

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Compressibility(Metric):
    """Bytes of the generated answer after zlib (level 6), as a share of its UTF-8 bytes.

    The value is about 1 for a sentence, near 0 for a loop, and above 1 for a few words. An empty
    answer has 0. Own work.
    """

    label = "Compressed size"
    reads = frozenset({"generated"})
    roles = frozenset({"forget"})
    knows = None
    bounds = (0.0, np.inf)

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n], at least 0."""
        shares: list[float] = []
        for text in seen.generated:
            content = text.encode(errors="surrogatepass")
            shares.append(len(zlib.compress(content)) / len(content) if content else 0.0)
        return np.array(shares)
