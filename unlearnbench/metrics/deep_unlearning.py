"""Whether the remaining facts still imply the target."""

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.metrics.answer_match import AnswerMatch

TARGET = "target"
"""Label of the fact that a request forgets."""
MINIMAL = "minimal-"
"""Beginning of the label of a minimal set: `minimal-0`. Each of its members has the label."""


class DeepUnlearning(Summary):
    """Recall max_M |M ∩ U| / |M| over the minimal sets M.

    U  facts that are answered wrongly

    If all facts of a minimal set are forgotten, the other facts do not imply the target. Accuracy
    is the share of the facts outside M that are still answered. If several M have the same recall,
    the highest accuracy counts, while the source takes the first of an unordered set.
    Wu et al. 2024, arXiv:2410.15153, section 3; wrh14/deep_unlearning@a3c4ccb
    calculate_recall_and_acc.py.
    """

    set: str = Field(examples=["retain"], description="evaluation set whose rows have labels")

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return recall, accuracy, and whether the target itself is still answered."""
        return (
            MetricColumn("deep_recall", "Deep unlearning, recall", "higher"),
            MetricColumn("deep_accuracy", "Deep unlearning, accuracy", "higher"),
            MetricColumn("target_known", "Target answered", "lower"),
        )

    def compute(self, of: MetricInputs) -> Values:
        """Return the numbers; none if no fact has the label of a minimal set."""
        seen = of.model.sets[self.set]
        is_known = AnswerMatch(rule="contains").per_example(seen) > 0  # [n]
        minimal_sets = {label for labels in seen.labels for label in labels} - {TARGET}
        if not minimal_sets:
            return {}
        candidates: list[tuple[float, float]] = []
        for name in minimal_sets:
            is_inside = np.array([name in labels for labels in seen.labels])
            recall = float((~is_known[is_inside]).mean())
            accuracy = float(is_known[~is_inside].mean())
            candidates.append((recall, accuracy))
        recall, accuracy = max((-1.0, -1.0), *candidates)
        is_target = np.array([TARGET in labels for labels in seen.labels])
        return {
            "deep_recall": recall,
            "deep_accuracy": accuracy,
            "target_known": float(is_known[is_target].all()),
        }
