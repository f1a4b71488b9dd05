"""A trial of all metrics on made-up observations, before any training: faults cost nothing then."""

from __future__ import annotations

from collections.abc import Iterable

from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.api.registry import offers
from unlearnbench.config.metric_plan import MetricPlan, columns_of, computed
from unlearnbench.errors import PluginError
from unlearnbench.evaluation.made_up_sets import made_up_models


def try_metrics(plan: MetricPlan, sets: Iterable[str] = ()) -> None:
    """Compute every metric once. Raises: PluginError with a line for each that is at fault.

    sets  further evaluation sets of the benchmark, which only summaries read
    """
    faults = [str(fault) for fault in plan.faults]
    names = dict.fromkeys([*(name for one in plan.measures for name in one.sets), *sets])
    models = made_up_models(names)
    known = [dict[str, float | None](), dict[str, float | None](), dict[str, float | None]()]
    for measure in plan.measures:
        try:
            for values, seen in zip(known, models, strict=True):
                for name in measure.sets:
                    values[f"{measure.name}_{name}"] = found = measure.value(seen[name])
                    if found is None:
                        raise PluginError(
                            f"metric {measure.name!r} is undefined on ordinary observations of a "
                            f"set {name!r}: a value is NaN or infinite"
                        )
        except PluginError as error:
            faults.append(str(error))
    retain, start = (EvaluatedModel(s, v) for s, v in zip(models[1:], known[1:], strict=True))
    for summary in plan.in_order:
        try:
            values = computed(
                summary, MetricInputs(EvaluatedModel(models[0], known[0]), retain, start)
            )
            known[0] |= values
            own = [one.name for one in columns_of(summary) if one.name in plan.own]
            if own and all(values.get(name) is None for name in own):
                faults.append(
                    f"metric {type(summary).__name__}: {', '.join(own)} is undefined on ordinary "
                    "observations: its settings name sets or columns that the benchmark has not"
                )
        except PluginError as error:
            faults.append(str(error))
    used = {one.name for one in plan.measures} | {name.replace("-", "_") for name in plan.summaries}
    faults += [
        f"metric {offer.name!r} of {offer.package} has no `roles` that this benchmark's sets have, "
        'so that no set would report it; add `roles = frozenset({"forget"})`, or name it in '
        "`evaluation.metrics`"
        for offer in offers("metrics")
        if offer.digest
        and not used & {offer.name, offer.name.replace("-", "_")}
        and not plan.faults
    ]
    if faults:
        raise PluginError("\n".join(faults))
