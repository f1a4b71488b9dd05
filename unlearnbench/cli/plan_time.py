"""The lines of `unlearnbench plan` on what a sweep takes: models to train, disk, and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unlearnbench.cli.cache import format_bytes
from unlearnbench.console import format_duration
from unlearnbench.errors import RecordError

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset
    from unlearnbench.plan.plan import Plan
    from unlearnbench.plan.run_spec import RunSpec

_OF_A_QUESTION = 170
"""Bytes of a record for a question of an evaluation, as the quickstart's take."""


def before_the_runs(planned: Plan, benchmark: Dataset, questions: int) -> list[str]:
    """The models that are trained before the runs, a line each, and the disk that all of it takes.

    questions  of all evaluations
    """
    from unlearnbench.errors import ModelError
    from unlearnbench.estimates.machine_time import weights_of
    from unlearnbench.runs.planned_models import planned_models

    models = list(planned_models(planned, benchmark))
    lines = [f"  {one.title}" for one in models if not one.done]
    kept = len(models) - len(lines)
    cached = f"; {kept} more are in {planned.config.cache_folder}" if kept else ""
    settings = {one.name: one for one in planned.config.models}
    disk = f"{format_bytes(questions * _OF_A_QUESTION)} of results"
    try:
        size = sum(
            weights_of(settings[one.model]) * (2 if settings[one.model].dtype == "bfloat16" else 4)
            for one in models
            if not one.done
        )
        disk += f", {format_bytes(size)} of models" if size else ""
    except ModelError:  # the line on time names the reason
        disk += "; that of models is not known"
    disk = f"disk: about {disk}"
    if not lines:
        made = f"all {kept} models are prepared, in {planned.config.cache_folder}"
        return [*([made] if kept else []), disk]
    unless = "" if all(one.is_tiny for one in models) else ", unless the cache has them"
    return [f"models trained first, each once{unless}{cached}:", *lines, disk]


def time_here(planned: Plan, benchmark: Dataset, runs: Sequence[RunSpec]) -> str:
    """Estimate the time of a whole sweep on this machine from a short measurement."""
    from unlearnbench.api.registry import load
    from unlearnbench.errors import ModelError
    from unlearnbench.estimates.machine_time import FACTOR, machine_seconds
    from unlearnbench.runs.planned_models import planned_models

    config = planned.config
    if config.ray.address or any(config.resources_of(model.name).gpu for model in config.models):
        return "time: not estimated for GPUs and clusters without --memory, which gives hours"
    first = [
        (one.model, one.rows * one.epochs, one.target == "base")
        for one in planned_models(planned, benchmark)
        if not one.done
    ]
    try:
        seconds = machine_seconds(planned, benchmark, runs, first)
    except ModelError as error:
        return f"time: not known: {error}"
    trained = any(getattr(load("attacks", one.name), "trains", False) for one in config.attacks)
    without = ", without what attacks train" if trained else ""
    minutes = max(1, round(seconds / 60))
    text = f"{minutes} min" if minutes < 120 else format_duration(seconds)
    return (
        f"time: about {text} on this machine as busy as it is now{without}, "
        f"within a factor of {FACTOR}"
    )


def time_left(planned: Plan, runs: Sequence[RunSpec]) -> str:
    """Estimate the time of the runs without a record from the times of those with one."""
    from unlearnbench.config.resources import LOCAL_RUNS
    from unlearnbench.estimates.time_to_go import Forecast, order_runs
    from unlearnbench.results.records import read_records

    try:
        took = {r.id: r.seconds for r in read_records(planned.folder) if r.place == r.id}
    except RecordError as error:  # a sweep sets it aside
        return f"how long the others take is not known: {error}"
    slots = planned.config.ray.concurrent or LOCAL_RUNS
    left = [run for run in runs if run.id not in took]
    forecast = Forecast(order_runs([model.name for model in planned.config.models], left), slots)
    for run in planned.runs:
        if run.id in took:
            forecast.learn(run, took[run.id])
    duration = format_duration(forecast.to_go() or 0)
    return f"the others take about {duration}, {slots} at a time, as those did"
