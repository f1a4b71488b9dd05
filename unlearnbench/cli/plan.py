"""`unlearnbench plan`: the runs of a configuration, their work, memory and time."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console, format_duration
from unlearnbench.base.number_text import float_text
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import Config, Json, Overrides, Plugins, register_plugins

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset, SplitKey
    from unlearnbench.config.plan import Plan
    from unlearnbench.config.run_spec import RunSpec
    from unlearnbench.config.schema import HyperParameter
    from unlearnbench.results.run_estimate import Estimate
    from unlearnbench.runs.prepared_models import PlannedModel

FLOPS = 400e12
"""FLOP/s of one process: bf16 on an H100 or H200 (989e12) at 40 %."""
DEVICE_MEMORY = 80e9
"""Bytes of a GPU where this machine has none: an H100's."""
_PARTS = (
    *("weights", "gradients", "optimizer", "activations", "casts", "logits", "reference"),
    *("evaluation", "peak"),
)

_RANGE = {"low": 0.7, "likely": 1.0, "high": 1.7}
"""Of the likely wall time: on an H100 two runs took 1.05 and 1.4 times as long."""

app = new_group()


@command(app, "plan")
def plan(
    config: Config,
    memory: Annotated[
        bool, flag("--memory", "Also print memory and hours of each kind of run, on GPUs.")
    ] = False,
    flops: Annotated[
        float,
        option("N", "FLOP/s of a process.", min=1, default="400e12, 40 % of an H100's in bf16"),
    ] = FLOPS,
    device_memory: Annotated[
        float | None,
        option("GB", "Memory of a GPU in 1e9 bytes.", min=0.1, default="this machine's, else 80"),
    ] = None,
    gpus: Annotated[
        int | None, option("N", "GPUs of the sweep, for its wall time.", min=1, default="a run's")
    ] = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Print the runs of a config and what they cost. Nothing is run or written.

    Examples:
      unlearnbench plan quickstart
      unlearnbench plan my.yaml --set seeds=[0,1,2] --json
      unlearnbench plan tofu_phi_1_5 --memory --flops 200e12
      unlearnbench plan tofu_llama2_7b --memory --gpus 8
    """
    planned, benchmark = plan_runs(config, overrides, plugins)
    from unlearnbench.models.device import device_count
    from unlearnbench.models.device import device_memory as memory_here
    from unlearnbench.results.effort import efforts_of, planned_work
    from unlearnbench.results.records import PROVISIONAL
    from unlearnbench.results.repeated_runs import repeated_runs, repetition_lines
    from unlearnbench.results.run_estimate import Rates, estimate_plan, sweep_seconds
    from unlearnbench.results.sweep_folder import check_owner
    from unlearnbench.runs.prepared_models import planned_models
    from unlearnbench.sweep.follow_up_runs import pending_runs, stages_of
    from unlearnbench.sweep.ray_cluster import lacking_resources

    check_owner(planned)
    lacking = lacking_resources(planned.config, device_count(), os.cpu_count() or 1)
    # A search draws runs, which the plan does not have yet.
    whole = replace(planned, runs=(*planned.runs, *pending_runs(planned)))
    work, stages = planned_work(efforts_of(whole.runs, benchmark)), stages_of(planned)
    models = list(planned_models(whole, benchmark))
    ends = ("", PROVISIONAL["stopped"]) if planned.config.search.scheduler else ("",)
    recorded_ids = {f.parent.name for f in planned.folder.glob("records/*/record.json")}
    left = [run for run in whole.runs if recorded_ids.isdisjoint(run.id + end for end in ends)]
    recorded = len({run.id for run in planned.runs} - {run.id for run in left})
    repeated = repeated_runs(planned.runs, planned.folder, planned.references)
    repetitions = repetition_lines(repeated)
    estimates: list[Estimate] = []
    costs: dict[str, Any] = {}
    device = 0
    memory |= gpus is not None or device_memory is not None or flops != FLOPS
    if memory:
        device = int(device_memory * 1e9 if device_memory else memory_here() or DEVICE_MEMORY)
        estimates, unknown = estimate_plan(whole, benchmark, Rates(flops), device)
        costs = memory_json(estimates, unknown, flops, device)
        each = max((estimate.resources.gpu or 1 for estimate in estimates), default=1)
        gpus = math.ceil(each) if gpus is None else gpus
        if estimates and gpus >= each and all(estimate.fits for estimate in estimates):
            likely = sweep_seconds(estimates, int(gpus / each), models_left(models)) / 3600
            costs["wall_hours"] = {"gpus": gpus} | {k: likely * x for k, x in _RANGE.items()}
    console = Console()
    if as_json:
        output = {"work": work, "recorded": recorded, "repeated": repetitions}
        if benchmark.notes:
            output["rows_read"] = [*benchmark.notes]
        if lacking:
            output["cannot_run_here"] = lacking
        output |= {"stages": [asdict(stage) for stage in stages]}
        if memory:
            output["memory"] = costs
        output["trained_first"] = [asdict(model) for model in models]
        console.print_json(planned.to_json() | output)
        return
    for line in benchmark.notes:
        console.paragraph(line, indent="  ")
    up_to = "up to " if any(stage.at_most for stage in stages) else ""
    runs = sum(stage.runs for stage in stages)
    console.paragraph(f"{planned.config.name}: {up_to}{runs} runs into {planned.folder}")
    for line in lacking:
        console.paragraph(f"cannot run here: {line}")
    print_runs(planned.runs, console)
    for stage in stages if runs > len(planned.runs) or up_to else ():
        console.print(f"{stage.title}: {'up to ' * stage.at_most}{stage.runs} runs")
    if len(stages) > 1:
        console.print("work of the first of these stages:")
    console.print(
        f"training: {work['optimiser_steps']} optimiser steps, {work['training_rows']} rows"
    )
    console.print(
        f"evaluation: {work['evaluations']} evaluations, "
        f"{work['evaluated_questions']} questions in all"
    )
    for line in budget_lines(planned.runs, benchmark):
        console.paragraph(line)
    has_retain = "retain" in planned.config.references
    if planned.config.attacks:
        names = ", ".join(spec.name for spec in planned.config.attacks)
        known = all(spec.settings["at"] != "best" for spec in planned.config.attacks)
        others = "retain and start models" if has_retain else "start models"
        console.paragraph(
            f"under attacks: {'' if known else 'up to '}{work['attacked_evaluations']} times, "
            f"and the {others} likewise ({names})"
        )
    new = [model for model in models if not model.done]
    if len(new) < len(models):
        done = len(models) - len(new)
        console.print(f"{done} models are prepared, in {planned.config.cache_folder}")
    if new:
        console.print("models trained first, each once:")
        for model in new:
            console.paragraph(f"  {model.title}", indent="    ")
    if recorded:
        console.paragraph(
            f"{recorded} of {work['runs']} runs are recorded already and are not run again"
        )
    for line in repetitions:
        console.paragraph(line)
    if left:
        console.paragraph(time_here(replace(planned, runs=tuple(left)), benchmark, new))
    if memory:
        print_memory(costs, estimates, device, console)


def plan_runs(
    config: str, overrides: Sequence[str] | None, plugins: list[str] | None
) -> tuple[Plan, Dataset]:
    """Plan a configuration on its data, and print the warnings that came up."""
    from unlearnbench.config.loader import load_config

    register_plugins(plugins)
    settings = load_config(config, overrides or ())
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.runs.plan_sweep import plan_sweep

    planned = plan_sweep(settings)
    for line in drain():
        Console().note(f"warning: {line}")
    return planned


def print_runs(runs: Sequence[RunSpec], console: Console) -> None:
    """Print the runs as a table. What all of them have in common stands above it, once."""
    columns = ("model", "forget", "method", "hyperparameters", "learning rates", "seeds", "runs")
    rows = grouped(runs)
    common: set[str] = set()
    for place, name in enumerate(columns):
        values = {row[place] for row in rows}
        is_common = len(values) == 1 and name in ("model", "forget", "seeds")
        if is_common or (name == "hyperparameters" and values == {_DEFAULTS}):
            common.add(name)
    if rows:
        texts = {
            "model": f"model {rows[0][0]}",
            "forget": _split_text(runs[0].forget_fraction),
            "hyperparameters": "hyperparameters by default",
            "seeds": f"seed{'s' * (len({run.seed for run in runs}) > 1)} {rows[0][5]}",
        }
        shown = [text for name, text in texts.items() if name in common]
        if shown:
            console.paragraph(f"all runs: {', '.join(shown)}")
    kept = [place for place, name in enumerate(columns) if name not in common]
    console.table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        flowing={"hyperparameters", "learning rates", "seeds"},
        keys=sum(columns[place] in ("model", "forget", "method") for place in kept),
    )


def _split_text(key: SplitKey) -> str:
    """`forget 10 %`, or `split books`."""
    from unlearnbench.api.benchmark import split_percent

    return f"split {key}" if isinstance(key, str) else split_percent(key)


_DEFAULTS = "defaults"


def grouped(runs: Sequence[RunSpec]) -> list[tuple[Any, ...]]:
    """Runs by model, split, method and hyperparameters that are not the defaults."""
    groups: dict[tuple[str, SplitKey, str, str], list[RunSpec]] = defaultdict(list)
    for run in runs:
        shown = ", ".join(f"{name}={value}" for name, value in _changed(run)) or _DEFAULTS
        groups[run.model.name, run.forget_fraction, run.method.label, shown].append(run)
    lines: list[tuple[Any, ...]] = []
    for key, group in groups.items():
        rates = dict.fromkeys(
            "none" if (r := run.learning_rate) is None else float_text(r) for run in group
        )
        seeds = dict.fromkeys(str(run.seed) for run in group)
        lines.append((*key, ", ".join(rates), ", ".join(seeds), len(group)))
    return lines


def budget_lines(runs: Iterable[RunSpec], benchmark: Dataset) -> list[str]:
    """Say how many epochs the steps of runs by steps are, for each split and batch size."""
    from unlearnbench.api.benchmark import split_label
    from unlearnbench.config.unit import Unit

    lines: dict[str, None] = {}
    for run in runs:
        if run.unit is Unit.EPOCH:
            continue
        rows = len(benchmark.splits[run.forget_fraction].forget)
        each = run.schedule(rows).steps_per_epoch
        epochs = f"{run.budget / each:.3g}"
        line = (
            f"{split_label(run.forget_fraction)}: {run.unit.counted(run.budget)} are {epochs} "
            f"epoch{'s' * (epochs != '1')}, of {run.unit.counted(each)} each (batch_size "
            f"{run.training.batch_size})"
        )
        lines[line] = None
    return list(lines)


def _changed(run: RunSpec) -> Iterator[tuple[str, HyperParameter]]:
    """The hyperparameters of a run, and its retain term's weight, other than the defaults."""
    from unlearnbench.config.method_specs import default_hyperparameters

    defaults = default_hyperparameters(run.method.name, run.method.modifiers)
    for name, value in run.method.hyperparameters.items():
        if defaults.get(name) != value:
            yield name, value
    if run.method.retain and run.method.retain.weight != 1.0:
        yield "retain.weight", run.method.retain.weight


def models_left(models: Iterable[PlannedModel]) -> list[tuple[str, int, bool]]:
    """Models to train first, as `sweep_seconds` takes them."""
    left = (model for model in models if not model.done)
    return [(model.model, model.rows * model.epochs, model.target == "base") for model in left]


def time_here(planned: Plan, benchmark: Dataset, new: Sequence[PlannedModel]) -> str:
    """Estimate the time of runs and models on this machine from a short measurement."""
    from unlearnbench.attacks._training_steps import TrainingAttack
    from unlearnbench.config.entries import attack_from_spec
    from unlearnbench.config.resources import LOCAL_RUNS
    from unlearnbench.results.run_estimate import estimate_plan, sweep_seconds

    config = planned.config
    if config.ray.address or any(config.resources_of(model.name).gpu for model in config.models):
        return "estimated time: not known for GPUs and clusters; --memory estimates hours"
    estimates, unknown = estimate_plan(planned, benchmark, None, None)
    if unknown:
        return f"estimated time: not known, because of {'; '.join(unknown)}"
    first = models_left(new)
    slots = min(config.ray.concurrent or LOCAL_RUNS, os.cpu_count() or 1)
    seconds = sweep_seconds(estimates, slots, first)
    # An attack of a plug-in may train in a way of its own, whose steps nothing states.
    uncounted: list[str] = []
    for spec in config.attacks:
        attack = attack_from_spec(spec)
        if getattr(attack, "trains", False) and not isinstance(attack, TrainingAttack):
            uncounted.append(spec.name)
    without = f", without the training of {' and '.join(uncounted)}" if uncounted else ""
    minutes = max(1, round(seconds / 60))
    text = f"{minutes} min" if minutes < 120 else format_duration(seconds)
    return f"estimated time: about {text} at the current load (within a factor of 2){without}"


def memory_json(
    estimates: Sequence[Estimate], unknown: Sequence[str], flops: float, device: int
) -> dict[str, Any]:
    """Return the estimates for JSON: memory in MiB, and no hours for a run that does not fit.

    Args:
        estimates: An estimate for each kind of run.
        unknown: Reasons why further runs have no estimate.
        flops: Operations per second that are assumed for a GPU.
        device: Bytes of a GPU's memory.
    """
    kinds = [
        {
            "model": estimate.run.model.name,
            "method": estimate.run.method.label,
            "runs": estimate.runs,
            "gpus": estimate.resources.gpu,
            "processes": estimate.resources.world_size,
            "rows_at_a_time": estimate.setup.items,
            "memory_mib": estimate.memory.to_json(),
            "fits": estimate.fits,
            # The speed of decoding depends on free memory, and there is none.
            "hours": estimate.hours.total if estimate.fits else None,
            "hours_by_work": asdict(estimate.hours) if estimate.fits else None,
            "gpu_hours": estimate.gpu_hours if estimate.fits else None,
        }
        for estimate in estimates
    ]
    assumed = {"flops": flops, "device_memory_mib": round(device / 2**20), "unknown": unknown}
    return {"kinds": kinds} | assumed


def print_memory(
    memory: Mapping[str, Any], estimates: Sequence[Estimate], device: int, console: Console
) -> None:
    """Print the estimates as a table, what does not fit, the assumptions, and what is not known."""
    from unlearnbench.models.device import USABLE_SHARE
    from unlearnbench.results.effort import CHARACTERS
    from unlearnbench.results.run_estimate import refusals

    if kinds := memory["kinds"]:
        first, last = ("model", "method", "runs", "gpus", "rows_at_a_time"), ("hours", "gpu_hours")
        rows = [
            (
                *(kind[name] for name in first),
                *(f"{kind['memory_mib'][part] / 1024:.2f}" for part in _PARTS),
                *("–" if kind[name] is None else f"{kind[name]:.2g}" for name in last),
            )
            for kind in kinds
        ]
        columns = (
            *("model", "method", "runs", "GPUs", "rows at a time"),
            *(*_PARTS[:-1], "peak GiB", "hours a run", "GPU hours"),
        )
        title = "memory of each process in GiB, and hours of the longest run: an estimate"
        console.table(columns, rows, title, keys=2)
        over = [estimate for estimate in estimates if not estimate.fits]
        if total := sum(kind["gpu_hours"] or 0 for kind in kinds):
            console.print(f"{total:.3g} GPU hours {'of what fits' if over else 'in all'}")
        for line in refusals(over, device):
            console.paragraph(line)
        if wall := memory.get("wall_hours"):
            gpus, *hours = wall.values()
            low, likely, high = (format_duration(3600 * value) for value in hours)
            console.paragraph(
                f"wall time on {gpus} GPU{'s' * (gpus > 1)}: about {likely}, between {low} and "
                f"{high}; models to prepare, and evaluations of start and retain models, are in it"
            )
        if not over:
            console.paragraph(
                f"all of it fits GPUs of {device / 1e9:.3g} GB (--device-memory), of which "
                f"{USABLE_SHARE:.0%} can be used"
            )
        console.print()
        console.paragraph(
            f"assumed: {memory['flops']:g} FLOP/s of a process in bf16 (--flops; the device's × "
            f"the share of it that is reached), {CHARACTERS} characters a token, and the rates of "
            "an H100"
        )
    for line in memory["unknown"]:
        console.paragraph(f"not known: {line}")
