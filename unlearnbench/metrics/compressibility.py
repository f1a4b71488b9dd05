"""How far the greedy answer can be compressed."""

import zlib

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Compressibility(Metric):
    """Bytes of the generated answer after zlib (level 6), as a share of its UTF-8 bytes.

    About 1 for a sentence, near 0 for a loop, above 1 for a few words; an empty answer has 0. Own
    work.
    """

    label = "Compressed size"
    reads = frozenset({"generated"})
    roles = frozenset({"forget"})
    knows = None
    bounds = (0.0, np.inf)

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] at least 0."""
        texts = [text.encode(errors="surrogatepass") for text in seen.generated]
        return np.array([len(zlib.compress(text)) / len(text) if text else 0.0 for text in texts])
