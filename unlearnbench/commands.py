"""What each command of the command line does; every stage is imported when it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench import registry
from unlearnbench.bounded import shortened, whole_number
from unlearnbench.config import load_config
from unlearnbench.console import Console, finite
from unlearnbench.errors import Problem, RecordError, UnlearnbenchError
from unlearnbench.memory import memory_json, print_memory
from unlearnbench.outcomes import tally, troubled
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.planning import grouped, print_schedules, schedules, to_go
from unlearnbench.searching import OBJECTIVES
from unlearnbench.settings import SweepConfig
from unlearnbench.workload import Rows, estimate

if TYPE_CHECKING:
    from unlearnbench.data.benchmark import Benchmark
    from unlearnbench.document import Entry

Command = Callable[[argparse.Namespace], int]

SOME_FAILED = 1
_HEADLINES = ("model_utility", "log10_forget_quality", "forget_quality", "ks_statistic")


def quickstart(args: argparse.Namespace) -> int:
    """`unlearnbench quickstart`."""
    args.config = "quickstart"
    return sweep(args)


def plan(args: argparse.Namespace) -> int:
    """`unlearnbench plan CONFIG`: prints, and writes nothing."""
    planned, benchmark = _plan(args)
    from unlearnbench.folder import check_owner
    from unlearnbench.stages import asked_later, stages_of

    check_owner(planned)
    rows = {fraction: _rows(planned.config, benchmark, fraction) for fraction in benchmark.splits}
    first = (*planned.runs, *asked_later(planned))
    work, stages = estimate(replace(planned, runs=first), rows), stages_of(planned)
    records = planned.folder / "records"
    kept = sum((records / run.id / "record.json").is_file() for run in planned.runs)
    console = Console()
    if args.json:
        told = {"work": asdict(work), "counts": planned.counts(), "recorded": kept}
        told |= {"stages": [asdict(stage) for stage in stages]}
        if args.memory:
            told["memory"] = memory_json(planned, benchmark, args.flops, args.device_memory)
        if args.schedule:
            told["schedules"] = schedules(planned, {f: one.forget for f, one in rows.items()})
        console.print_json(planned.to_json() | told)
        return 0
    up_to = "up to " if any(stage.at_most for stage in stages) else ""
    runs = sum(stage.runs for stage in stages)
    title = f"{planned.config.name}: {up_to}{runs} runs into {planned.folder}"
    columns = ("model", "forget", "method", "hyper-parameters", "learning rates", "seeds", "runs")
    console.table(columns, grouped(planned), title)
    for stage in stages if runs > len(planned.runs) or up_to else ():
        console.print(f"{stage.title}: {'up to ' * stage.at_most}{stage.runs} runs")
    if len(stages) > 1:
        console.print("work of the first of these stages:")
    console.print(
        f"training: {work.optimiser_steps} optimiser steps, {work.training_rows} rows\n"
        f"evaluation: {work.evaluations} times, {work.evaluated_questions} questions in all"
    )
    if kept:
        console.print(f"{kept} of {work.runs} runs are recorded already and are not run again")
        console.print(to_go(planned, first))
    if args.memory:
        print_memory(planned, benchmark, args.flops, args.device_memory, console)
    if args.schedule:
        print_schedules(schedules(planned, {f: one.forget for f, one in rows.items()}), console)
    return 0


def sweep(args: argparse.Namespace) -> int:
    """`unlearnbench sweep CONFIG`: all runs, then the page; exit code 1 where runs failed."""
    config = _config(args)
    _check_machine(config)
    from unlearnbench.selection import read_selection
    from unlearnbench.sweep import run_sweep

    console = Console()
    result = run_sweep(config, console)
    chosen = read_selection(result.folder) if config.select else None
    if args.json:
        console.print_json(
            {
                "folder": str(result.folder),
                **{s: result.count(s) for s in ("finished", "collapsed", "stopped", "failed")},
                "without_result": [asdict(end) for end in troubled(result.ends)],
                "no_result": list(result.no_result),
                "report": str(result.report),
                "csv": str(result.csv),
                "mlflow": result.mlflow_command,
                "seconds": dict(result.seconds),
                "busy": dict(result.busy),
            }
            | ({"selection": chosen} if chosen is not None else {})
        )
    else:
        if chosen is not None:
            _print_selection(chosen, console)
        console.print(tally((end.status for end in result.ends), result.total))
        for end in troubled(result.ends):
            console.print(str(end))
        console.print(
            f"page    {result.report}\ntable   {result.csv}\nMLflow  {result.mlflow_command}"
        )
    return SOME_FAILED if result.failed else 0


def run(args: argparse.Namespace) -> int:
    """`unlearnbench run CONFIG`: one run in this process; without a choice, lists the runs."""
    from unlearnbench import group

    group.join()
    planned, _ = _plan(args)
    chosen = _selected(planned, args.select)
    console = Console()
    if len(chosen) != 1:
        what = "is more than one run" if chosen else "is none of the runs"
        lines = [f"{i:4}  {r.id}  {r.title}" for i, r in enumerate(planned.runs)]
        asked = f"--select {shortened(args.select)[1:-1]}" if args.select else planned.config.name
        raise UnlearnbenchError(
            "\n".join([*lines, f"{asked} {what}; choose one with --select POSITION or ID"])
        )
    _check_machine(planned.config)
    from unlearnbench.folder import claim_folder
    from unlearnbench.running import run_single

    with group.leader_first():
        folder = claim_folder(planned)
    tell = console.note if group.leads() else _silent
    tell(f"{chosen[0].id}  {chosen[0].title}")
    record = run_single(chosen[0], planned.config, folder, tell)
    leads = group.leads()
    group.leave()
    if not leads:
        return 0
    metrics = [finite(result.metrics) for result in record.epochs]
    if args.json:
        epochs = [
            {"epoch": e.epoch} | values for e, values in zip(record.epochs, metrics, strict=True)
        ]
        console.print_json({"id": record.id, "status": record.status, "epochs": epochs})
        return 0
    rows = [
        (e.epoch, *(values.get(name) for name in _HEADLINES))
        for e, values in zip(record.epochs, metrics, strict=True)
    ]
    console.table(("epoch", *_HEADLINES), rows)
    console.print(f"{record.status}: {folder / 'records' / record.id}")
    return 0


def _silent(_: str) -> None:
    """What the other processes of a run have to say."""


def _config(args: argparse.Namespace) -> SweepConfig:
    for file in args.plugin:
        registry.register_file(file)
    return load_config(args.config, args.set, _input_problems)


def _input_problems(root: Entry) -> Sequence[Problem]:
    from unlearnbench.inputs import input_problems

    return input_problems(root)


def _check_machine(config: SweepConfig) -> None:
    """Whether the optimiser is there, before anything is spent; on a cluster the workers check."""
    trainings = [config.training_of(name) for name in config.method_names]
    optimizers = {training.optimizer for training in trainings} - {"adamw"}
    if config.ray.address is None and optimizers:
        import torch

        from unlearnbench.optimisation import check_optimizer

        # A try on a GPU would hold memory of it for as long as the command lasts.
        on_gpus = any(config.resources_of(model.name).gpu for model in config.models)
        for name in sorted(optimizers):
            check_optimizer(name, None if on_gpus else torch.device("cpu"))


def _plan(args: argparse.Namespace) -> tuple[Plan, Benchmark]:
    config = _config(args)
    from unlearnbench.inputs import plan_sweep
    from unlearnbench.notices import taken

    planned = plan_sweep(config)
    for line in taken():
        Console().note(f"warning: {line}")
    return planned


def _rows(config: SweepConfig, benchmark: Benchmark, fraction: float) -> Rows:
    from unlearnbench.evaluation.profiles import profile_of
    from unlearnbench.evaluation.sets import evaluation_sets

    how = config.evaluation
    profile = profile_of(how)
    sets = evaluation_sets(benchmark, fraction, profile)
    return Rows(len(benchmark.splits[fraction].forget), sum(map(len, sets.values())))


def _print_selection(chosen: Mapping[str, Any], console: Console) -> None:
    """What each method's best setting is, and how it does on seeds that had no part in that."""
    columns = (
        *("model", "forget", "method", "learning rate", "epoch"),
        *("Model Utility", "±", "log10 FQ", "±", "on seeds"),
    )
    rows: list[tuple[Any, ...]] = []
    for one in chosen["choices"]:
        reported = one["reported"]
        numbers = [reported[name] for name in OBJECTIVES]
        values = [value for pair in numbers for value in pair.values()]
        seeds = ", ".join(map(str, reported["seeds"]))
        if one["why_not"]:
            values, seeds = [None] * 4, one["why_not"]
        setting = one["setting"] or one["method"]
        place = (one["model"], one["forget_fraction"], setting, one["learning_rate"], one["epoch"])
        rows.append((*place, *values, seeds))
    on = ", ".join(map(str, chosen["chosen_on_seeds"]))
    console.table(columns, rows, f"best of each method, chosen on seeds {on}, reported on others")
    console.print(f"rule: {chosen['rule']}\n")


def _selected(planned: Plan, select: str | None) -> list[RunSpec]:
    runs = list(planned.runs)
    if select is None:
        return runs
    position = whole_number(select)
    if position is not None and position < len(runs):
        return [runs[position]]
    return [one for one in runs if one.id.startswith(select)]


def sweep_folder(name: str) -> Path:
    """The folder, where it is a sweep's. Raises: RecordError elsewhere."""
    folder = Path(name)
    if not (folder / "records").is_dir():
        raise RecordError(
            f"{name} is no sweep's folder: it has no records/; a sweep writes to output/name, "
            "such as runs/quickstart"
        )
    return folder
