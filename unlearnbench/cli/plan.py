"""`unlearnbench plan`: the runs of a configuration, their work, schedules, memory and time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import Config, Json, Overrides, Plugins, above_zero, register_plugins
from unlearnbench.cli.plan_time import before_the_runs, time_here, time_left
from unlearnbench.console import Console
from unlearnbench.errors import Problem

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Dataset, SplitKey
    from unlearnbench.config.schema import HyperParameter, SweepConfig
    from unlearnbench.config.step_schedule import Schedule
    from unlearnbench.config.yaml_tree import YamlNode
    from unlearnbench.estimates.run_estimate import Estimate
    from unlearnbench.estimates.work import SplitSize
    from unlearnbench.plan.plan import Plan
    from unlearnbench.plan.run_spec import RunSpec

SWEEPS = "Sweeps"
"""Heading of the commands that plan and carry out runs."""
FLOPS = 400e12
"""FLOP/s of one process: bf16 on an H100 or H200 (989e12) at 40 %."""
DEVICE_MEMORY = 80e9
"""Bytes of a GPU where this machine has none: an H100's."""
_PARTS = ("weights", "gradients", "optimizer", "activations", "casts", "logits", "reference")
_GIB = 2**30

app = new_group()


@command(app, "plan", panel=SWEEPS)
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
            "Also print memory and hours of each kind of run, with the formula; from the hub "
            "it needs configs only.",
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
    from unlearnbench.estimates.work import SplitSize, count_work
    from unlearnbench.evaluation.sets import evaluation_sets
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
    console = Console()
    if as_json:
        output = {"work": asdict(work), "counts": planned.counts(), "recorded": recorded}
        output |= {"stages": [asdict(stage) for stage in stages]}
        if memory:
            output["memory"] = memory_json(planned, benchmark, flops, device_memory)
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
        print_memory(planned, benchmark, flops, device_memory, console)
    print_schedules(steps, console)


def read_config(
    config: str, overrides: Sequence[str] | None, plugins: list[str] | None
) -> SweepConfig:
    """Register the methods of `plugins`, and load `config` with its `overrides`."""
    from unlearnbench.config.loader import load_config

    register_plugins(plugins)
    return load_config(config, overrides or (), _input_problems)


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


def _input_problems(root: YamlNode) -> Sequence[Problem]:
    from unlearnbench.runs.plan_sweep import input_problems

    return input_problems(root)


def grouped(runs: Sequence[RunSpec]) -> list[tuple[Any, ...]]:
    """Runs by model, split and method: a page, not a line per run.

    Of the hyper-parameters those are shown that are not the defaults, or differ between runs.
    """
    from unlearnbench.config import method_specs

    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    settings = {run.id: _settings(run) for run in runs}
    for run in runs:
        for name, value in settings[run.id].items():
            values[run.method.label, name].add(repr(value))
    groups: dict[tuple[str, SplitKey, str, str], list[RunSpec]] = defaultdict(list)
    for run in runs:
        label = run.method.label
        defaults = method_specs.default_hyperparameters(run.method.name) | {"retain.weight": 1.0}
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
    from unlearnbench.config import method_specs

    # A run's identity leaves some out at their defaults.
    known = method_specs.default_hyperparameters(run.method.name) | run.method.hyperparameters
    retain = run.method.retain
    return known | ({"retain.weight": retain.weight} if retain else {})


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
    planned: Plan, benchmark: Dataset, flops: float, memory: float | None
) -> dict[str, Any]:
    """The estimates, ready for JSON: bytes in MiB, no hours for what does not fit.

    memory  of a GPU, in 1e9 bytes; None for that of this machine's
    """
    from unlearnbench.estimates.run_estimate import FORMULA, estimate_plan

    device = _device(memory)
    found, unknown = estimate_plan(planned, benchmark, flops, device)
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
    mib = round(device / 2**20)
    how = {"flops": flops, "device_memory_mib": mib, "unknown": unknown, "formula": FORMULA}
    return {"kinds": kinds} | how


def print_memory(
    planned: Plan, benchmark: Dataset, flops: float, memory: float | None, console: Console
) -> None:
    """Print the estimates as a table, what does not fit, the formula, and what is not known."""
    from unlearnbench.estimates.hours import ASSUMED
    from unlearnbench.estimates.preflight import gib, refusals
    from unlearnbench.estimates.run_estimate import CHARACTERS, FORMULA, TEMPLATE, estimate_plan
    from unlearnbench.models.device import USABLE_SHARE

    device = _device(memory)
    found, unknown = estimate_plan(planned, benchmark, flops, device)
    if found:
        columns = (
            *("model", "method", "runs", "GPUs", "rows at a time"),
            *(*_PARTS, "evaluation", "peak GiB", "hours a run", "GPU hours"),
        )
        title = "memory of each process in GiB, and hours of the longest run: an estimate"
        console.table(columns, [_memory_row(one) for one in found], title)
        run = [one for one in found if one.fits]
        over = [one for one in found if not one.fits]
        if run:
            total = sum(one.gpu_hours for one in run)
            spent: Counter[str] = Counter()
            for one in run:
                for name, hours in asdict(one.hours).items():
                    spent[name] += hours / one.hours.total * one.gpu_hours
            parts = ", ".join(f"{value:.2g} {name}" for name, value in spent.items())
            what = "of what fits" if over else "in all"
            if any(one.resources.gpu for one in found):
                console.print(f"{total:.3g} GPU hours {what}, of which about {parts}")
            else:
                console.print(
                    "hours are those of a GPU (--flops); these runs use CPUs, for which --memory "
                    "estimates nothing: `time` above is measured here, and memory is what a "
                    "GPU would need"
                )
        for line in refusals(over, planned.config, benchmark, device):
            console.print(line)
        if not over and any(one.limit is not None for one in found):
            console.print(
                f"all of it fits GPUs of {gib(device)} ({device / 1e9:.3g} GB; "
                f"--device-memory), of which {USABLE_SHARE:.0%} can be used"
            )
        console.print(
            f"\n{FORMULA}\n\nassumed: {flops:g} FLOP/s of a process in bf16 (--flops; the device's "
            f"× the share of it that is reached), {ASSUMED}, {CHARACTERS} characters and a "
            f"template of {TEMPLATE} tokens for a row's length; time to prepare models and to "
            "evaluate what runs are compared with is not in it"
        )
    for line in unknown:
        console.print(f"not known: {line}")


def _device(memory: float | None) -> int:
    """Bytes of a GPU: `memory` in 1e9, else this machine's, else `DEVICE_MEMORY`."""
    from unlearnbench.models.device import device_memory

    return int(memory * 1e9 if memory is not None else device_memory() or DEVICE_MEMORY)


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
