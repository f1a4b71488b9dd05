"""Closeness in meaning of the answer to the true one."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Better, Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics._text_models import TextModelMetric, sentence_encoder


class SentenceSimilarity(TextModelMetric):
    """max(0, cos(e(answer), e(truth))), where e is a sentence encoder.

    Yuan et al. 2025, arXiv:2410.08109, call it Cosine Similarity (CS), and use
    paraphrase-MiniLM-L6-v2: sail-sg/closer-look-LLM-unlearning@b622294:metrics/metrics.py,
    `eval_cosine_similarity`. An answer without a word has the encoder's vector of an empty text,
    whose similarity to a sentence need not be 0.

    In that code, the truth is never cut, whereas it is as long as the reference of ROUGE here, so
    that a profile's `max_length` may cut it.

    The metric is computed only if `evaluation.metrics` names it with its `model`, and only this
    model is downloaded. It runs on the CPU, one text at a time.
    """

    plugin_name = "sentence-similarity"
    kind_of_model = "sentence encoder"
    usual_model = "sentence-transformers/paraphrase-MiniLM-L6-v2 for the profile closer-look"
    label = "Sentence similarity"
    reads: ClassVar[frozenset[Reads]] = frozenset({"generated"})
    on_request: ClassVar[frozenset[Role]] = frozenset({"forget", "retain", "general"})
    # An encoder gives two unrelated texts more than 0, so no model is at the end of the scale.
    knows = None

    model: str | None = Field(
        default=None, description="hub id or folder of a sentence encoder in safetensors"
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return similarities [n] in [0, 1]."""
        encoder = sentence_encoder(self.source)
        similarities: list[float] = []
        for answer, truth in zip(seen.generated, seen.whole_references, strict=True):
            # Rounding may leave the cosine of equal texts slightly above 1.
            similarities.append(min(max(0.0, encoder.cosine(answer, truth)), 1.0))
        return np.array(similarities)

    def better(self, role: Role) -> Better | None:
        """Return `lower` for rows to forget, and `higher` for rows to keep."""
        if role == "holdout":
            return None
        return "lower" if role == "forget" else "higher"
