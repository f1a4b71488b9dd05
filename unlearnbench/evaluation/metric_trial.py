"""A trial of all metrics of a plan on made-up observations, so that faults show before training."""

from collections.abc import Iterable

from unlearnbench.api.metric import EvaluatedModel, Measure, MetricInputs, Summary
from unlearnbench.api.metric_engine import MetricPlan, column_name, columns_of, computed
from unlearnbench.api.registry import offers
from unlearnbench.base.errors import PluginError
from unlearnbench.evaluation.made_up_sets import SAMPLES, MadeUpModels, made_up_models


def try_metrics(plan: MetricPlan, sets: Iterable[str] = (), samples: int = SAMPLES) -> None:
    """Compute every metric of a plan once.

    Args:
        plan: The metrics.
        sets: Further evaluation sets of the benchmark, which only summaries read.
        samples: Sampled answers to each question under an attack.

    Raises:
        PluginError: A metric is at fault. The message has a line for each one.
    """
    set_names = [name for measure in plan.measures for name in measure.sets]
    set_names += sets
    models = made_up_models(dict.fromkeys(set_names), plan.observations, samples)
    trial = _Trial(models)
    faults = [str(fault) for fault in plan.faults]
    for measure in plan.measures:
        try:
            trial.add_measure(measure)
        except PluginError as error:
            faults.append(str(error))
            trial.failed.update(column_name(measure, name) for name in measure.sets)
    for summary in plan.in_order:
        try:
            trial.add_summary(summary, plan.own)
        except PluginError as error:
            faults.append(str(error))
    faults += _unused_metrics(plan)
    if faults:
        raise PluginError("\n".join(dict.fromkeys(faults)))


class _Trial:
    """Three made-up models, and their numbers as far as they are computed."""

    def __init__(self, models: MadeUpModels) -> None:
        self.models = models
        self.run_values: dict[str, float | None] = {}
        self.retain_values: dict[str, float | None] = {}
        self.start_values: dict[str, float | None] = {}
        self.failed: set[str] = set()
        """Columns of metrics that failed."""

    def add_measure(self, measure: Measure) -> None:
        """Compute a metric on each of its sets. Raises PluginError if it fails or is undefined."""
        values_of_models = self.run_values, self.retain_values, self.start_values
        for values, sets in zip(values_of_models, self.models, strict=True):
            for name in measure.sets:
                value = measure.value(sets[name])
                values[column_name(measure, name)] = value
                if value is None:
                    raise PluginError(
                        f"metric {measure.name!r} is undefined on ordinary observations of a "
                        f"set {name!r}: a value is NaN or infinite"
                    )

    def add_summary(self, summary: Summary, own: frozenset[str]) -> None:
        """Compute a summary of each model. Raises PluginError if it fails or is undefined.

        Args:
            summary: Its inputs are computed already.
            own: Columns of the benchmark's own metrics. Only these have to be defined.
        """
        run = EvaluatedModel(self.models.run, self.run_values)
        retain = EvaluatedModel(self.models.retain, self.retain_values)
        start = EvaluatedModel(self.models.start, self.start_values)
        values = computed(summary, MetricInputs(run, retain, start))
        # Later summaries read these numbers, also of the models that runs are compared with.
        self.run_values |= values
        self.retain_values |= computed(summary, MetricInputs(retain))
        self.start_values |= computed(summary, MetricInputs(start))
        if self.failed & {*summary.parts()}:
            return  # The fault of a part has been reported.
        own_columns = [column.name for column in columns_of(summary) if column.name in own]
        if own_columns and all(values.get(name) is None for name in own_columns):
            raise PluginError(
                f"metric {type(summary).__name__}: {', '.join(own_columns)} is undefined on "
                "ordinary observations: its settings name sets or columns that the benchmark has "
                "not"
            )


def _unused_metrics(plan: MetricPlan) -> list[str]:
    """Return a message for each metric of a user's file that no set of the benchmark reports."""
    if plan.faults:
        return []
    used = {measure.name for measure in plan.measures}
    used |= {name.replace("-", "_") for name in plan.summaries}
    messages: list[str] = []
    for offer in offers("metrics"):
        is_used = bool(used & {offer.name, offer.name.replace("-", "_")})
        # Only metrics of files have a digest.
        if offer.digest and not is_used:
            messages.append(
                f"metric {offer.name!r} of {offer.package} has no `roles` that this benchmark's "
                "sets have, so that no set would report it; add `roles = "
                'frozenset({"forget"})`, or name it in `evaluation.metrics`'
            )
    return messages
