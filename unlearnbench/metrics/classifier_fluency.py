"""Fluency of the greedy answer, by a text classifier."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Better, Metric, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.base import hub
from unlearnbench.base.errors import PluginError, UnavailableError


class ClassifierFluency(Metric):
    """Probability that a classifier gives a greedy answer for `target`; an empty answer has 0.

    open-unlearning's `forget_Q_A_gibberish` (locuslab/open-unlearning@d3d7cf9,
    configs/eval/tofu_metrics) is the probability of `clean` for the first 32 tokens, by
    madhurjindal/autonlp-Gibberish-Detector-492513457. It detects collapse. It does not detect a
    refusal, which is as clean as a good answer.

    The metric is computed only if `evaluation.metrics` names it with its `model`, and only this
    model is downloaded. The classifier is loaded once in a process. It runs on the CPU, one text at
    a time, so that no number depends on other texts.
    """

    label = "Classifier fluency"
    reads = frozenset({"generated"})
    knows = None

    model: str | None = Field(
        default=None, description="hub id or folder of a sequence classifier in safetensors"
    )
    revision: str | None = Field(default=None, description="commit or tag of the hub's model")
    target: str = Field(default="clean", description="label whose probability is the metric")
    max_tokens: int = Field(
        default=32, ge=1, description="number of tokens of a text that are read"
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return probabilities [n]."""
        if self.model is None:
            raise UnavailableError(
                "classifier-fluency has no classifier: set its `model` in evaluation.metrics, "
                "madhurjindal/autonlp-Gibberish-Detector-492513457 for open-unlearning's"
            )
        probability = _classifier(self.model, self.revision, self.target, self.max_tokens)
        return np.array([probability(text) if text else 0.0 for text in seen.generated])

    def better(self, role: Role) -> Better | None:
        """Return `higher` on each set that is answered."""
        return None if role == "holdout" else "higher"


@lru_cache(maxsize=2)
def _classifier(
    name: str, revision: str | None, target: str, max_tokens: int
) -> Callable[[str], float]:
    """Load a classifier, as a function from a text to the probability of a label.

    Raises:
        UnavailableError: The classifier cannot be loaded.
        PluginError: It does not have the label.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    try:
        folder = Path(name)
        if not folder.is_dir():
            repository = hub.Repository("model", name, revision)
            folder = hub.snapshot(repository, (*hub.SMALL, *hub.WEIGHTS))
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            folder, use_safetensors=True, dtype=torch.float32
        ).eval()
    except (hub.HubError, OSError, ValueError, KeyError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnavailableError(
            f"classifier-fluency: the classifier {name!r} cannot be loaded ({reason}); name a "
            "folder with it in evaluation.metrics, let the hub be reached once, or leave the "
            "metric out"
        ) from None
    labels = {str(label): int(location) for location, label in model.config.id2label.items()}
    if target not in labels:
        raise PluginError(
            f"classifier-fluency: {name!r} has no label {target!r}; set target to one of "
            f"{', '.join(labels)}"
        )

    def probability(text: str) -> float:
        encoded = tokenizer(text, truncation=True, max_length=max_tokens, return_tensors="pt")
        with torch.inference_mode():
            return float(model(**encoded).logits[0].softmax(0)[labels[target]])

    return probability
