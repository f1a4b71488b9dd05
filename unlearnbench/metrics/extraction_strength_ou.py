"""Extraction strength as open-unlearning computes it."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics.extraction_strength import ExtractionStrength


class ExtractionStrengthOU(Metric):
    """max(ES, 1/L): locuslab/open-unlearning@d3d7cf9:src/evals/metrics/memorization.py.

    Its loop over k stops at L − 1, so that an answer of L tokens never falls below 1/L. On
    forget10, even a destroyed model has about 0.03. Use this metric to compare with published
    numbers. `extraction_strength` reaches 0.
    """

    label = "Extraction strength (open-unlearning)"
    reads = frozenset({"tokens"})
    roles = frozenset({"forget"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in (0, 1]; 0 for an empty answer, as open-unlearning counts it."""
        tokens = seen.tokens
        lengths = np.maximum(tokens.lengths - tokens.end_counts, 0)  # [n]
        strengths = ExtractionStrength().per_example(seen)
        floor = np.divide(1, lengths, out=np.zeros(len(lengths)), where=lengths > 0)
        return np.where(lengths > 0, np.maximum(strengths, floor), 0.0)
