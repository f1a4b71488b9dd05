"""What `unlearnbench plan` tells of the runs of a plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from unlearnbench import registry
from unlearnbench.console import Console, duration
from unlearnbench.errors import RecordError
from unlearnbench.execution import LOCAL_RUNS
from unlearnbench.forecast import Forecast, in_order
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.schedule import Schedule
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


def schedules(planned: Plan, rows: Mapping[float, int]) -> list[dict[str, Any]]:
    """Every optimiser step of each kind of run, ready for JSON.

    Runs of one kind have the same forget fraction, schedule, epochs and learning rate.

    rows  to forget, by forget fraction
    """
    kinds: dict[tuple[float, float, tuple[int, ...], Schedule], list[str]] = {}
    for one in planned.runs:
        if one.learning_rate is not None:
            made = one.schedule(rows[one.forget_fraction])
            key = (one.forget_fraction, one.learning_rate, one.evaluate_at, made)
            labels = kinds.setdefault(key, [])
            if one.method.label not in labels:
                labels.append(one.method.label)
    return [
        {
            "forget_fraction": fraction,
            "methods": labels,
            "schedule": made.name,
            "epochs": made.epochs,
            "learning_rate": rate,
            "evaluated_after_epochs": list(evaluate_at),
            "rate_weighted_steps": sum(made.factor(step) for step in range(made.steps)),
            "steps": list(_steps(made, rate)),
        }
        for (fraction, rate, evaluate_at, made), labels in kinds.items()
    ]


def _steps(made: Schedule, rate: float) -> Iterator[dict[str, Any]]:
    epoch = 1
    for step in range(made.steps):
        while step >= made.end(epoch):
            epoch += 1
        places = [divmod(position, made.rows) for position in made.drawn(step)]
        yield {
            "step": step + 1,
            "epoch": epoch,
            "rows": Counter(past + 1 for past, _ in places),
            "factor": made.factor(step),
            "learning_rate": rate * made.factor(step),
        }


def print_schedules(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A table for each kind of run, with a line for each of its steps."""
    for kind in found:
        rows = [
            (
                one["step"],
                one["epoch"],
                ", ".join(f"{count} of epoch {epoch}" for epoch, count in one["rows"].items()),
                f"{one['factor']:.4f}",
                f"{one['learning_rate']:.4g}",
            )
            for one in kind["steps"]
        ]
        console.table(
            ("step", "epoch", "rows drawn", "factor", "rate"),
            rows,
            f"forget {kind['forget_fraction']:g} · {', '.join(kind['methods'])} · "
            f"lr {kind['learning_rate']:g} · schedule {kind['schedule']} · "
            f"{kind['epochs']} epochs: {len(rows)} steps, as much as "
            f"{kind['rate_weighted_steps']:.4g} at the full rate",
        )
