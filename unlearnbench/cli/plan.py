"""`unlearnbench plan`: the runs of a configuration, their work, memory and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console, format_bytes, format_duration
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import Config, Json, Overrides, Plugins, register_plugins

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset, SplitKey
    from unlearnbench.config.plan import Plan, RunSpec
    from unlearnbench.config.schema import HyperParameter, SweepConfig
    from unlearnbench.results.run_estimate import Estimate

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
    memory: Annotated[
        bool, flag("--memory", "Also print memory and hours of each kind of run.")
    ] = False,
    flops: Annotated[
        float, option("N", "FLOP/s of a process; the default is 40 % of an H100's.", min=1)
    ] = FLOPS,
    device_memory: Annotated[
        float | None,
        option("GB", "Memory of a GPU in 1e9 bytes.", min=0.1, default="this machine's, else 80"),
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
    """
    planned, benchmark = plan_runs(config, overrides, plugins)
    from unlearnbench.models.device import device_memory as memory_here
    from unlearnbench.results.run_estimate import estimate_plan
    from unlearnbench.results.sweep_folder import check_owner
    from unlearnbench.results.time_to_go import count_work
    from unlearnbench.runs.prepared_models import planned_models
    from unlearnbench.sweep.follow_up_runs import pending_runs, stages_of

    check_owner(planned)
    first = (*planned.runs, *pending_runs(planned))
    work, stages = count_work(replace(planned, runs=first), benchmark), stages_of(planned)
    records = planned.folder / "records"
    recorded = sum((records / run.id / "record.json").is_file() for run in planned.runs)
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
        models = planned_models(planned, benchmark)
        output["trained_first"] = [asdict(model) for model in models]
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
    console.print(
        f"training: {work.optimiser_steps} optimiser steps, {work.training_rows} rows\n"
        f"evaluation: {work.evaluations} evaluations, {work.evaluated_questions} questions in all"
    )
    if planned.config.attacks:
        names = ", ".join(spec.name for spec in planned.config.attacks)
        known = all(spec.settings["at"] != "best" for spec in planned.config.attacks)
        console.print(
            f"under attacks: {'' if known else 'up to '}{work.attacked_evaluations} times, "
            f"and the retain and start models likewise ({names})"
        )
    for line in before_the_runs(planned, benchmark, work.evaluated_questions):
        console.print(line)
    if recorded:
        console.print(f"{recorded} of {work.runs} runs are recorded already and are not run again")
    if left := [run for run in first if not (records / run.id / "record.json").is_file()]:
        console.print(time_here(planned, benchmark, left))
    if memory:
        print_memory(estimates, unknown, flops, device, console)


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
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.runs.plan_sweep import plan_sweep

    planned = plan_sweep(settings)
    for line in drain():
        Console().note(f"warning: {line}")
    return planned


def grouped(runs: Sequence[RunSpec]) -> list[tuple[Any, ...]]:
    """Runs by model, split, method and hyper-parameters that are not the defaults."""
    groups: dict[tuple[str, SplitKey, str, str], list[RunSpec]] = defaultdict(list)
    for run in runs:
        shown = ", ".join(f"{name}={value}" for name, value in _changed(run)) or "defaults"
        groups[run.model.name, run.forget_fraction, run.method.label, shown].append(run)
    lines: list[tuple[Any, ...]] = []
    for key, group in groups.items():
        rates = dict.fromkeys(
            "none" if (r := run.learning_rate) is None else f"{r:g}" for run in group
        )
        seeds = dict.fromkeys(str(run.seed) for run in group)
        lines.append((*key, ", ".join(rates), ", ".join(seeds), len(group)))
    return lines


def _changed(run: RunSpec) -> Iterator[tuple[str, HyperParameter]]:
    """The hyper-parameters of a run, and its retain term's weight, other than the defaults."""
    from unlearnbench.config.method_specs import default_hyperparameters

    defaults = default_hyperparameters(run.method.name, run.method.modifiers)
    for name, value in run.method.hyperparameters.items():
        if defaults.get(name) != value:
            yield name, value
    if run.method.retain and run.method.retain.weight != 1.0:
        yield "retain.weight", run.method.retain.weight


def before_the_runs(planned: Plan, benchmark: Dataset, questions: int) -> list[str]:
    """The models that are trained before the runs, a line each, and the disk that all of it takes.

    questions  of all evaluations
    """
    from unlearnbench.base.errors import ModelError
    from unlearnbench.results.time_to_go import weights_of
    from unlearnbench.runs.prepared_models import planned_models

    models = list(planned_models(planned, benchmark))
    new = [model for model in models if not model.done]
    settings = {model.name: model for model in planned.config.models}
    disk = f"disk: about {format_bytes(questions * _OF_A_QUESTION)} of results"
    try:
        size = sum(
            weights_of(settings[model.model])
            * (2 if settings[model.model].dtype == "bfloat16" else 4)
            for model in new
        )
        disk += f", {format_bytes(size)} of models" if size else ""
    except ModelError:  # the line on time names the reason
        disk += "; that of models is not known"
    lines = [f"{len(models) - len(new)} models are prepared, in {planned.config.cache_folder}"]
    lines = lines if len(new) < len(models) else []
    if new:
        lines += ["models trained first, each once:", *(f"  {model.title}" for model in new)]
    return [*lines, disk]


def time_here(planned: Plan, benchmark: Dataset, runs: Sequence[RunSpec]) -> str:
    """Estimate the time of runs and models on this machine from a short measurement."""
    from unlearnbench.api.registry import load
    from unlearnbench.base.errors import ModelError
    from unlearnbench.results.time_to_go import FACTOR, machine_seconds
    from unlearnbench.runs.prepared_models import planned_models

    config = planned.config
    if config.ray.address or any(config.resources_of(model.name).gpu for model in config.models):
        return "time: not estimated for GPUs and clusters without --memory, which gives hours"
    first = [
        (model.model, model.rows * model.epochs, model.target == "base")
        for model in planned_models(planned, benchmark)
        if not model.done
    ]
    try:
        seconds = machine_seconds(planned, benchmark, runs, first)
    except ModelError as error:
        return f"time: not known: {error}"
    trained = any(
        getattr(load("attacks", attack.name), "trains", False) for attack in config.attacks
    )
    without = ", without what attacks train" if trained else ""
    without = ", without what attacks train" if config.attacks else ""
    minutes = max(1, round(seconds / 60))
    text = f"{minutes} min" if minutes < 120 else format_duration(seconds)
    return (
        f"time: about {text} on this machine as busy as it is now{without}, "
        f"within a factor of {FACTOR}"
    )


def memory_json(
    estimates: Sequence[Estimate], unknown: Sequence[str], flops: float, device: int
) -> dict[str, Any]:
    """The estimates, ready for JSON: bytes in MiB, no hours for what does not fit.

    device  bytes of a GPU
    """
    kinds = [
        {
            "model": estimate.run.model.name,
            "method": estimate.run.method.label,
            "runs": estimate.runs,
            "processes": estimate.resources.world_size,
            "rows_at_a_time": estimate.setup.items,
            "memory_mib": estimate.memory.to_json(),
            "fits": estimate.fits,
            "hours": estimate.hours.total if estimate.fits else None,
            "hours_by_work": asdict(estimate.hours) if estimate.fits else None,
            "gpu_hours": estimate.gpu_hours if estimate.fits else None,
        }
        for estimate in estimates
    ]
    assumed = {"flops": flops, "device_memory_mib": round(device / 2**20), "unknown": unknown}
    return {"kinds": kinds} | assumed


def print_memory(
    estimates: Sequence[Estimate],
    unknown: Sequence[str],
    flops: float,
    device: int,
    console: Console,
) -> None:
    """Print the estimates as a table, what does not fit, the assumptions, and what is not known."""
    from unlearnbench.models.device import USABLE_SHARE
    from unlearnbench.results.run_estimate import ASSUMED, CHARACTERS, TEMPLATE, refusals

    if estimates:
        columns = (
            *("model", "method", "runs", "GPUs", "rows at a time"),
            *(*_PARTS, "evaluation", "peak GiB", "hours a run", "GPU hours"),
        )
        title = "memory of each process in GiB, and hours of the longest run: an estimate"
        console.table(columns, [_memory_row(estimate) for estimate in estimates], title)
        over = [estimate for estimate in estimates if not estimate.fits]
        if total := sum(estimate.gpu_hours for estimate in estimates if estimate.fits):
            console.print(f"{total:.3g} GPU hours {'of what fits' if over else 'in all'}")
        for line in refusals(over, device):
            console.print(line)
        if not over:
            console.print(
                f"all of it fits GPUs of {device / 1e9:.3g} GB (--device-memory), of which "
                f"{USABLE_SHARE:.0%} can be used"
            )
        console.print(
            f"\nassumed: {flops:g} FLOP/s of a process in bf16 (--flops; the device's × the share "
            f"of it that is reached), {ASSUMED}, {CHARACTERS} characters and a template of "
            f"{TEMPLATE} tokens for a row's length; time to prepare models and to evaluate what "
            "runs are compared with is not in it"
        )
    for line in unknown:
        console.print(f"not known: {line}")


def _memory_row(estimate: Estimate) -> tuple[Any, ...]:
    sizes = [getattr(estimate.memory, part) for part in _PARTS]
    sizes += [estimate.memory.evaluation, estimate.memory.peak]
    hours = (f"{estimate.hours.total:.2g}", f"{estimate.gpu_hours:.2g}")
    return (
        estimate.run.model.name,
        estimate.run.method.label,
        estimate.runs,
        f"{estimate.resources.gpu:g}",
        estimate.setup.items,
        *(f"{size / _GIB:.2f}" for size in sizes),
        # The speed of decoding depends on free memory, and there is none.
        *(hours if estimate.fits else ("–", "–")),
    )
