"""Whether the remaining facts still imply the target."""

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.metrics.answer_match import AnswerMatch

TARGET, MINIMAL = "target", "minimal-"
"""Labels of the forget request, and of the members of each minimal set."""


class DeepUnlearning(Summary):
    """Recall max_M |M ∩ U| / |M| over the minimal sets M, U the facts that are answered wrongly.

    Without a minimal set of facts the others do not imply the target. Accuracy is the share of the
    facts outside that M that are still answered, the highest where several M have the same recall;
    the source takes the first of an unordered set. Wu et al. 2024, arXiv:2410.15153, section 3;
    wrh14/deep_unlearning@a3c4ccb calculate_recall_and_acc.py.
    """

    set: str = Field(examples=["retain"], description="evaluation set whose rows have labels")

    def columns(self) -> tuple[MetricColumn, ...]:
        """Recall, accuracy, and whether the target itself is gone."""
        return (
            MetricColumn("deep_recall", "Deep unlearning, recall", "higher"),
            MetricColumn("deep_accuracy", "Deep unlearning, accuracy", "higher"),
            MetricColumn("target_known", "Target answered", "lower"),
        )

    def compute(self, of: MetricInputs) -> Values:
        """None of them where no fact has a label."""
        seen = of.model.sets[self.set]
        known = AnswerMatch(rule="contains").per_example(seen) > 0
        names = {label for labels in seen.labels for label in labels} - {TARGET}
        if not names:
            return {}
        best = -1.0, -1.0
        for name in names:
            inside = np.array([name in labels for labels in seen.labels])
            best = max(best, (float((~known[inside]).mean()), float(known[~inside].mean())))
        target = np.array([TARGET in labels for labels in seen.labels])
        columns = (column.name for column in self.columns())
        return dict(zip(columns, (*best, float(known[target].all())), strict=True))
