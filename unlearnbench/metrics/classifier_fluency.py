"""Fluency of the greedy answer, by a text classifier."""

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Better, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics._text_models import TextModelMetric, classifier


class ClassifierFluency(TextModelMetric):
    """Probability that a classifier gives a greedy answer for `target`; an empty answer has 0.

    open-unlearning's `forget_Q_A_gibberish` (locuslab/open-unlearning@d3d7cf9,
    configs/eval/tofu_metrics) is the probability of `clean` for the first 32 tokens, by
    madhurjindal/autonlp-Gibberish-Detector-492513457. It detects collapse. It does not detect a
    refusal, which is as clean as a good answer.

    The metric is computed only if `evaluation.metrics` names it with its `model`, and only this
    model is downloaded. The classifier is loaded once in a process. It runs on the CPU, one text at
    a time, so that no number depends on other texts.
    """

    plugin_name = "classifier-fluency"
    kind_of_model = "classifier"
    usual_model = "madhurjindal/autonlp-Gibberish-Detector-492513457 for open-unlearning's"
    label = "Classifier fluency"
    reads = frozenset({"generated"})
    knows = None

    model: str | None = Field(
        default=None, description="hub id or folder of a sequence classifier in safetensors"
    )
    target: str = Field(default="clean", description="label whose probability is the metric")
    max_tokens: int = Field(
        default=32, ge=1, description="number of tokens of a text that are read"
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return probabilities [n]."""
        judge = classifier(self.source, self.target)
        probabilities: list[float] = []
        for text in seen.generated:
            read = judge.probability(text, max_tokens=self.max_tokens) if text else 0.0
            probabilities.append(read)
        return np.array(probabilities)

    def better(self, role: Role) -> Better | None:
        """Return `higher` on each set that is answered."""
        return None if role == "holdout" else "higher"
