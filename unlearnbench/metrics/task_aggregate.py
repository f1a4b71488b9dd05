"""Harmonic mean over several tasks."""

from pydantic import Field

from unlearnbench.api.metric import MetricColumn, MetricInputs, Summary, Values
from unlearnbench.stats.harmonic_mean import harmonic_mean


class TaskAggregate(Summary):
    """Harmonic mean of columns x of retain sets and 1 − x of forget sets; 0 as soon as one is 0.

    This is the task aggregate of SemEval-2025 task 4: Ramakrishna et al. 2025, arXiv:2504.02883,
    section 4.
    """

    kept: tuple[str, ...] = Field(
        examples=[("rouge_retain",)], description="columns that should stay high"
    )
    gone: tuple[str, ...] = Field(
        examples=[("rouge_forget",)], description="columns that should become 0"
    )

    def columns(self) -> tuple[MetricColumn, ...]:
        """Return `task_aggregate`, and the mean of each half."""
        return (
            MetricColumn("task_aggregate", "Task aggregate", "higher"),
            MetricColumn("tasks_kept", "Tasks kept", "higher"),
            MetricColumn("tasks_forgotten", "Tasks forgotten", "higher"),
        )

    def parts(self) -> tuple[str, ...]:
        """Return the columns of both halves."""
        return (*self.kept, *self.gone)

    def compute(self, of: MetricInputs) -> Values:
        """Return the three means. A mean is None if one of its columns has no number."""
        kept = [of.model.values.get(name) for name in self.kept]
        left = [of.model.values.get(name) for name in self.gone]
        gone = [None if value is None else 1 - value for value in left]
        return {
            "task_aggregate": harmonic_mean(kept + gone),
            "tasks_kept": harmonic_mean(kept),
            "tasks_forgotten": harmonic_mean(gone),
        }
