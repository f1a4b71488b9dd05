"""What `unlearnbench bench …` does: measures, prints tables, and keeps a record."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench import registry
from unlearnbench.console import Console
from unlearnbench.errors import EvaluationError, did_you_mean

if TYPE_CHECKING:
    from unlearnbench.bench.tables import Table

DIFFERENT = 1
"""Exit code of a benchmark whose two ways gave different numbers."""


def evaluation(args: argparse.Namespace) -> int:
    """`unlearnbench bench evaluation`."""
    from unlearnbench.bench.evaluation import bench_evaluation, tables
    from unlearnbench.bench.exam import Settings

    settings = Settings.from_arguments(args)
    console = _begin(args)
    folder = Path(args.models) if args.models else None
    result = bench_evaluation(settings, 1 if args.quick else args.repeats, folder, console.note)
    _end(args, console, result, tables(result))
    agree = all(state["agreement"]["agree"] for state in result["states"])
    return 0 if agree else DIFFERENT


def losses(args: argparse.Namespace) -> int:
    """`unlearnbench bench losses`."""
    from unlearnbench.bench.losses import PRIMITIVES, Size, bench_losses, tables

    sizes = [Size.parse(text) for text in args.sizes]
    names = args.primitives or [*PRIMITIVES]
    unknown = next((name for name in names if name not in PRIMITIVES), None)
    if unknown is not None:
        near = did_you_mean(unknown, PRIMITIVES) or "."
        known = ", ".join(f"{name!r}" for name in PRIMITIVES)
        raise EvaluationError(f"--primitives: unknown {unknown!r}{near} Known: {known}")
    console = _begin(args)
    result = bench_losses(sizes, args.dtype, names, args.repeats, console.note)
    _end(args, console, result, tables(result))
    return 0


def step(args: argparse.Namespace) -> int:
    """`unlearnbench bench step`."""
    from unlearnbench.bench.step import AGREE, StepSettings, bench_step, objective_of, tables

    for file in args.plugin:
        registry.register_file(file)
    for name in args.methods:
        objective_of(name)
    settings = StepSettings(
        size=args.size,
        data=args.data,
        methods=tuple(args.methods),
        batch_size=args.batch_size,
        repeats=args.repeats,
    )
    console = _begin(args)
    result = bench_step(settings, console.note)
    _end(args, console, result, tables(result))
    agree = all(each["losses_apart"] < AGREE for each in result["results"])
    return 0 if agree else DIFFERENT


def sweep(args: argparse.Namespace) -> int:
    """`unlearnbench bench sweep`."""
    from unlearnbench.bench.sweep import SweepBenchSettings, bench_sweep, sound, tables

    settings = SweepBenchSettings(1 if args.quick else args.repeats, args.noop, args.quick)
    console = _begin(args)
    result = bench_sweep(settings, console.note)
    _end(args, console, result, tables(result))
    return 0 if sound(result) else DIFFERENT


def _begin(args: argparse.Namespace) -> Console:
    import torch

    from unlearnbench.device import cuda_variables
    from unlearnbench.evaluation.files import check_place

    if args.record:
        check_place(Path(args.record), "the record")
    if torch.cuda.is_available():
        os.environ.update(cuda_variables())
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return Console()


def _end(
    args: argparse.Namespace, console: Console, result: dict[str, Any], tables: Sequence[Table]
) -> None:
    from unlearnbench.bench.tables import append_record, made_on, markdown

    if args.record:
        append_record(Path(args.record), result)
        console.note(f"recorded: {args.record}")
    if args.json:
        console.print_json(result)
    elif args.markdown:
        console.print(markdown(tables, made_on(result)))
    else:
        for table in tables:
            console.table(*table)
            console.print()
        console.print(made_on(result))
