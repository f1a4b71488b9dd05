"""Whether the greedy answer states the true one."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric, Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.metrics._text_models import TextModelMetric, classifier


class AnswerEntailment(TextModelMetric):
    """1 if a classifier's most probable label of a premise and a hypothesis is `target`, else 0.

    On forget sets, the premise is the greedy answer and the hypothesis is the true one: whoever
    reads the answer learns the truth. On all other sets it is the other way round: the answer says
    nothing that the truth does not say. An answer whose ROUGE-L recall is below `least_rouge` has
    0.

    Yuan et al. 2025, arXiv:2410.08109, call it Entailment Score (ES), which is not extraction
    strength. They use sileod/deberta-v3-base-tasksource-nli:
    sail-sg/closer-look-LLM-unlearning@b622294:metrics/metrics.py, `get_entailment_results`. That
    code takes the first direction for all sets of its real-world experiments (`tofu=False`), which
    is `premise: answer` here.

    The metric is computed only if `evaluation.metrics` names it with its `model`, and only this
    model is downloaded. It runs on the CPU, one pair at a time.
    """

    plugin_name = "answer-entailment"
    kind_of_model = "classifier"
    usual_model = "sileod/deberta-v3-base-tasksource-nli for the profile closer-look"
    label = "Answer entailment"
    reads: ClassVar[frozenset[Reads]] = frozenset({"generated", "rouge"})
    on_request: ClassVar[frozenset[Role]] = frozenset({"forget", "retain", "general"})

    model: str | None = Field(
        default=None, description="hub id or folder of a classifier of pairs in safetensors"
    )
    target: str = Field(default="entailment", description="label that counts")
    least_rouge: float = Field(
        default=0.1, ge=0, le=1, description="ROUGE-L recall below which an answer counts as false"
    )
    premise: Literal["by-role", "answer", "truth"] = Field(
        default="by-role",
        description="text from which the other one has to follow; by-role: the answer on forget "
        "sets, the truth on all others",
    )

    def for_role(self, role: Role) -> Metric:
        """Return the metric in the direction that belongs to a role."""
        if self.premise != "by-role":
            return self
        premise = "answer" if role == "forget" else "truth"
        return self.model_copy(update={"premise": premise})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n], 0 or 1, in the direction of a forget set if the role is not known."""
        judge = classifier(self.source, self.target)
        values = np.where(np.isnan(seen.rouge_l_recall), np.nan, 0.0)
        texts = zip(seen.generated, seen.whole_references, strict=True)
        for i, (answer, truth) in enumerate(texts):
            if seen.rouge_l_recall[i] >= self.least_rouge:
                pair = (truth, answer) if self.premise == "truth" else (answer, truth)
                values[i] = float(judge.chooses_target(*pair))
        return values
