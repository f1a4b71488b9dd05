"""`unlearnbench plan`: the runs of a configuration, their work, schedules, memory and time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import Config, Json, Overrides, Plugins, above_zero, register_plugins
from unlearnbench.console import Console, format_bytes, format_duration
from unlearnbench.errors import RecordError

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset, SplitKey
    from unlearnbench.config.schema import HyperParameter, SweepConfig
    from unlearnbench.config.step_schedule import Schedule
    from unlearnbench.estimates.run_estimate import Estimate
    from unlearnbench.estimates.work import SplitSize
    from unlearnbench.plan.plan import Plan
    from unlearnbench.plan.run_spec import RunSpec

FLOPS = 400e12
"""FLOP/s of one process: bf16 on an H100 or H200 (989e12) at 40 %."""
DEVICE_MEMORY = 80e9
"""Bytes of a GPU where this machine has none: an H100's."""
_OF_A_QUESTION = 170
"""Bytes of a record for a question of an evaluation, as the quickstart's take."""
_PARTS = ("weights", "gradients", "optimizer", "activations", "casts", "logits", "reference")
_GIB = 2**30

app = new_group()


@command(app, "plan")
def plan(
    config: Config,
    schedule: Annotated[
        bool,
        flag(
            "--schedule",
            "Also print every optimiser step of each kind of run: epoch, rows, learning rate.",
        ),
    ] = False,
    memory: Annotated[
        bool,
        flag(
            "--memory",
            "Also print memory and hours of each kind of run; from the hub it needs configs only.",
        ),
    ] = False,
    flops: Annotated[
        float,
        option(
            "N",
            "FLOP/s that a process reaches.",
            parser=above_zero,
            default=f"{FLOPS:g}, 40 % of an H100's in bf16",
        ),
    ] = FLOPS,
    device_memory: Annotated[
        float | None,
        option(
            "GB",
            "Memory of a GPU, in 1e9 bytes.",
            parser=above_zero,
            default="this machine's, else 80",
        ),
    ] = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Print the runs of a config and what they cost; runs and writes nothing.

    Examples:
      unlearnbench plan quickstart
      unlearnbench plan my.yaml --set seeds=[0,1,2] --json
      unlearnbench plan tofu_phi_1_5 --memory --flops 200e12
      unlearnbench plan tofu_llama2_7b --schedule --set methods=[ce-u]
    """
    planned, benchmark = plan_runs(config, overrides, plugins)
    from unlearnbench.config.profiles import profile_of
    from unlearnbench.estimates.run_estimate import estimate_plan
    from unlearnbench.estimates.work import SplitSize, count_work
    from unlearnbench.evaluation.sets import evaluation_sets
    from unlearnbench.models.device import device_memory as memory_here
    from unlearnbench.results.sweep_folder import check_owner
    from unlearnbench.runs.planned_models import planned_models
    from unlearnbench.sweep.follow_up_runs import pending_runs, stages_of

    check_owner(planned)
    profile = profile_of(planned.config.evaluation)
    rows: dict[SplitKey, SplitSize] = {}
    for fraction, split in benchmark.splits.items():
        sets = evaluation_sets(benchmark, fraction, profile)
        rows[fraction] = SplitSize(len(split.forget), sum(map(len, sets.values())))
    first = (*planned.runs, *pending_runs(planned))
    work, stages = count_work(replace(planned, runs=first), rows), stages_of(planned)
    records = planned.folder / "records"
    recorded = sum((records / run.id / "record.json").is_file() for run in planned.runs)
    steps = schedules(planned, {f: one.forget for f, one in rows.items()}) if schedule else []
    estimates: list[Estimate] = []
    unknown: list[str] = []
    device = 0
    if memory:
        device = int(device_memory * 1e9 if device_memory else memory_here() or DEVICE_MEMORY)
        estimates, unknown = estimate_plan(planned, benchmark, flops, device)
    console = Console()
    if as_json:
        output = {"work": asdict(work), "counts": planned.counts(), "recorded": recorded}
        output |= {"stages": [asdict(stage) for stage in stages]}
        if memory:
            output["memory"] = memory_json(estimates, unknown, flops, device)
        if schedule:
            output["schedules"] = steps
        output["trained_first"] = [asdict(one) for one in planned_models(planned, benchmark)]
        console.print_json(planned.to_json() | output)
        return
    up_to = "up to " if any(stage.at_most for stage in stages) else ""
    runs = sum(stage.runs for stage in stages)
    title = f"{planned.config.name}: {up_to}{runs} runs into {planned.folder}"
    columns = ("model", "forget", "method", "hyper-parameters", "learning rates", "seeds", "runs")
    console.table(columns, grouped(planned.runs), title)
    for stage in stages if runs > len(planned.runs) or up_to else ():
        console.print(f"{stage.title}: {'up to ' * stage.at_most}{stage.runs} runs")
    if len(stages) > 1:
        console.print("work of the first of these stages:")
    each, rest = divmod(work.evaluated_questions, max(work.evaluations, 1))
    asked = f", {work.evaluated_questions} questions in all" if rest else f" of {each} questions"
    console.print(
        f"training: {work.optimiser_steps} optimiser steps, {work.training_rows} rows\n"
        f"evaluation: {work.evaluations} evaluations{asked}"
    )
    if planned.config.attacks:
        names = ", ".join(spec.name for spec in planned.config.attacks)
        known = all(spec.settings["at"] != "best" for spec in planned.config.attacks)
        console.print(
            f"under attacks: {'' if known else 'up to '}{work.attacked_evaluations} times, "
            "with the sets that each is about, "
            f"and the retain and start models likewise ({names})"
        )
    for line in before_the_runs(planned, benchmark, work.evaluated_questions):
        console.print(line)
    if recorded:
        console.print(f"{recorded} of {work.runs} runs are recorded already and are not run again")
        console.print(time_left(planned, first))
    else:
        console.print(time_here(planned, benchmark, first))
    if memory:
        print_memory(estimates, unknown, flops, device, console)
    print_schedules(steps, console)


def read_config(
    config: str, overrides: Sequence[str] | None, plugins: list[str] | None
) -> SweepConfig:
    """Register the methods of `plugins`, and load `config` with its `overrides`."""
    from unlearnbench.config.loader import load_config

    register_plugins(plugins)
    return load_config(config, overrides or ())


def plan_runs(
    config: str, overrides: Sequence[str] | None, plugins: list[str] | None
) -> tuple[Plan, Dataset]:
    """Plan a configuration on its data, and print the warnings that came up."""
    settings = read_config(config, overrides, plugins)
    from unlearnbench.runs.plan_sweep import plan_sweep
    from unlearnbench.runtime.deferred_warnings import drain

    planned = plan_sweep(settings)
    for line in drain():
        Console().note(f"warning: {line}")
    return planned


def grouped(runs: Sequence[RunSpec]) -> list[tuple[Any, ...]]:
    """Runs by model, split and method: a page, not a line per run.

    Of the hyper-parameters those are shown that are not the defaults, or differ between runs.
    """
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    settings = {run.id: _settings(run) for run in runs}
    for run in runs:
        for name, value in settings[run.id].items():
            values[run.method.label, name].add(repr(value))
    groups: dict[tuple[str, SplitKey, str, str], list[RunSpec]] = defaultdict(list)
    for run in runs:
        label = run.method.label
        defaults = _defaults(run) | {"retain.weight": 1.0}
        shown = ", ".join(
            f"{name}={value}{' (default)' if defaults.get(name) == value else ''}"
            for name, value in settings[run.id].items()
            if len(values[label, name]) > 1 or defaults.get(name) != value
        )
        groups[run.model.name, run.forget_fraction, label, shown or "defaults"].append(run)
    lines: list[tuple[Any, ...]] = []
    for key, group in groups.items():
        rates = dict.fromkeys(
            "none" if (r := run.learning_rate) is None else f"{r:g}" for run in group
        )
        seeds = dict.fromkeys(str(run.seed) for run in group)
        lines.append((*key, ", ".join(rates), ", ".join(seeds), len(group)))
    return lines


def _settings(run: RunSpec) -> dict[str, HyperParameter]:
    """The hyper-parameters of a run, and the weight of its retain term."""
    # A run's identity leaves some out at their defaults.
    known, retain = _defaults(run) | run.method.hyperparameters, run.method.retain
    return known | ({"retain.weight": retain.weight} if retain else {})


def _defaults(run: RunSpec) -> dict[str, HyperParameter]:
    from unlearnbench.config import method_specs

    return method_specs.default_hyperparameters(run.method.name, run.method.modifiers)


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


def schedules(planned: Plan, rows: Mapping[SplitKey, int]) -> list[dict[str, Any]]:
    """Every optimiser step of each kind of run, ready for JSON.

    Runs of one kind have the same split, schedule, epochs and learning rate.

    rows  to forget, by split
    """
    kinds: dict[tuple[SplitKey, float, tuple[int, ...], Schedule], dict[str, None]]
    kinds = defaultdict(dict)
    for run in planned.runs:
        if run.learning_rate is not None:
            schedule = run.schedule(rows[run.forget_fraction])
            key = (run.forget_fraction, run.learning_rate, run.evaluate_at, schedule)
            kinds[key][run.method.label] = None
    return [
        {
            "forget_fraction": fraction,
            "methods": list(labels),
            "schedule": schedule.name,
            "epochs": schedule.epochs,
            "learning_rate": rate,
            "evaluated_after_epochs": list(evaluate_at),
            "rate_weighted_steps": sum(schedule.factor(step) for step in range(schedule.steps)),
            "steps": [
                {
                    "step": step + 1,
                    "epoch": next(epoch for epoch in count(1) if step < schedule.end(epoch)),
                    "rows": Counter(at // schedule.rows + 1 for at in schedule.positions(step)),
                    "factor": schedule.factor(step),
                    "learning_rate": rate * schedule.factor(step),
                }
                for step in range(schedule.steps)
            ],
        }
        for (fraction, rate, evaluate_at, schedule), labels in kinds.items()
    ]


def print_schedules(found: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A table for each kind of run, with a line for each of its steps."""
    from unlearnbench.api.benchmark import split_label

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
            f"{split_label(kind['forget_fraction'])} · {', '.join(kind['methods'])} · "
            f"lr {kind['learning_rate']:g} · schedule {kind['schedule']} · "
            f"{kind['epochs']} epochs: {len(rows)} steps, as much as "
            f"{kind['rate_weighted_steps']:.4g} at the full rate",
        )


def memory_json(
    found: Sequence[Estimate], unknown: Sequence[str], flops: float, device: int
) -> dict[str, Any]:
    """The estimates, ready for JSON: bytes in MiB, no hours for what does not fit.

    device  bytes of a GPU
    """
    kinds = [
        {
            "model": one.run.model.name,
            "method": one.run.method.label,
            "runs": one.runs,
            "processes": one.resources.world_size,
            "rows_at_a_time": one.setup.items,
            "memory_mib": one.memory.to_json(),
            "fits": one.fits,
            "hours": one.hours.total if one.fits else None,
            "hours_by_work": asdict(one.hours) if one.fits else None,
            "gpu_hours": one.gpu_hours if one.fits else None,
        }
        for one in found
    ]
    how = {"flops": flops, "device_memory_mib": round(device / 2**20), "unknown": unknown}
    return {"kinds": kinds} | how


def print_memory(
    found: Sequence[Estimate], unknown: Sequence[str], flops: float, device: int, console: Console
) -> None:
    """Print the estimates as a table, what does not fit, the assumptions, and what is not known."""
    from unlearnbench.estimates.hours import ASSUMED
    from unlearnbench.estimates.preflight import gib, refusals
    from unlearnbench.estimates.run_estimate import CHARACTERS, TEMPLATE
    from unlearnbench.models.device import USABLE_SHARE

    if found:
        columns = (
            *("model", "method", "runs", "GPUs", "rows at a time"),
            *(*_PARTS, "evaluation", "peak GiB", "hours a run", "GPU hours"),
        )
        title = "memory of each process in GiB, and hours of the longest run: an estimate"
        console.table(columns, [_memory_row(one) for one in found], title)
        over = [estimate for estimate in found if not estimate.fits]
        total = sum(estimate.gpu_hours for estimate in found if estimate.fits)
        if any(estimate.resources.gpu for estimate in found) and total:
            console.print(f"{total:.3g} GPU hours {'of what fits' if over else 'in all'}")
        elif total:
            console.print("hours and memory are what a GPU would need (--flops); these use CPUs")
        for line in refusals(over, device):
            console.print(line)
        if not over and any(one.limit is not None for one in found):
            console.print(
                f"all of it fits GPUs of {gib(device)} ({device / 1e9:.3g} GB; "
                f"--device-memory), of which {USABLE_SHARE:.0%} can be used"
            )
        console.print(
            f"\nassumed: {flops:g} FLOP/s of a process in bf16 (--flops; the device's "
            f"× the share of it that is reached), {ASSUMED}, {CHARACTERS} characters and a "
            f"template of {TEMPLATE} tokens for a row's length; time to prepare models and to "
            "evaluate what runs are compared with is not in it"
        )
    for line in unknown:
        console.print(f"not known: {line}")


def _memory_row(one: Estimate) -> tuple[Any, ...]:
    sizes = [getattr(one.memory, part) for part in _PARTS]
    sizes += [one.memory.evaluation, one.memory.peak]
    return (
        one.run.model.name,
        one.run.method.label,
        one.runs,
        f"{one.resources.gpu:g}",
        one.setup.items,
        *(f"{size / _GIB:.2f}" for size in sizes),
        # The speed of decoding depends on free memory, and there is none.
        *((f"{one.hours.total:.2g}", f"{one.gpu_hours:.2g}") if one.fits else ("–", "–")),
    )
