"""What `unlearnbench plan` tells of the runs of a plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any

from unlearnbench import registry
from unlearnbench.console import duration
from unlearnbench.errors import RecordError
from unlearnbench.execution import LOCAL_RUNS
from unlearnbench.forecast import Forecast, in_order
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.settings import HyperParameter


def to_go(planned: Plan, runs: Sequence[RunSpec]) -> str:
    """What is left takes, going by what is recorded."""
    from unlearnbench.records import read_records

    try:
        took = {r.id: r.seconds for r in read_records(planned.folder) if r.place == r.id}
    except RecordError as error:  # a sweep sets it aside
        return f"how long the others take is not known: {error}"
    left = [run for run in runs if run.id not in took]
    slots = planned.config.ray.concurrent or LOCAL_RUNS
    ordered = in_order([model.name for model in planned.config.models], left)
    forecast = Forecast(ordered, slots)
    for run in planned.runs:
        if run.id in took:
            forecast.learn(run, took[run.id])
    return (
        f"the others take about {duration(forecast.to_go() or 0)}, {slots} at a time, as those did"
    )


def grouped(planned: Plan) -> list[tuple[Any, ...]]:
    """The runs of a plan by model, fraction and method: a page, not a line per run."""
    groups: dict[tuple[str, float, str, str], list[RunSpec]] = {}
    varied = _varied(planned.runs)
    for one in planned.runs:
        told = _told(one, varied[one.method.label])
        key = (one.model.name, one.forget_fraction, one.method.label, told)
        groups.setdefault(key, []).append(one)
    return [
        (
            *key,
            ", ".join(
                "none" if rate is None else f"{rate:g}"
                for rate in Counter(r.learning_rate for r in runs)
            ),
            ", ".join(str(seed) for seed in Counter(r.seed for r in runs)),
            len(runs),
        )
        for key, runs in groups.items()
    ]


def _settings(one: RunSpec) -> dict[str, HyperParameter]:
    """The hyper-parameters of a run, and the weight of its retain term."""
    retain = one.method.retain
    return one.method.hyperparameters | ({"retain.weight": retain.weight} if retain else {})


def _varied(runs: Sequence[RunSpec]) -> dict[str, set[str]]:
    """By method, the names of which its runs have several values."""
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for one in runs:
        for name, value in _settings(one).items():
            values[one.method.label][name].add(repr(value))
    return defaultdict(
        set,
        {
            method: {name for name, found in named.items() if len(found) > 1}
            for method, named in values.items()
        },
    )


def _told(one: RunSpec, varied: Collection[str]) -> str:
    """The hyper-parameters that are not the defaults, or tell runs of the plan apart."""
    defaults = registry.default_hyperparameters(one.method.name) | {"retain.weight": 1.0}
    return ", ".join(
        f"{name}={value}"
        for name, value in _settings(one).items()
        if name in varied or defaults.get(name) != value
    )
