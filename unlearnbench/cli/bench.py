"""`unlearnbench bench …`: measure, print tables, and append the result to a record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unlearnbench.bench import STATES, Size
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import (
    Data,
    Forget,
    Json,
    Plugins,
    ProfileName,
    Rows,
    WeightType,
    register_plugins,
)
from unlearnbench.console import Console
from unlearnbench.errors import EvaluationError, did_you_mean
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.bench.measurement import ResultTable

DIFFERENT = 1
"""Exit code of a benchmark whose two ways gave different numbers."""
RECORD = Output("record", "the record", kind="appended")
_ATTACKS = ("quantization", "relearning", "sampling")
_METHODS = ("npo+nll", "ce-u", "kl-minimization", "dpo")

ModelSize = Annotated[Size, typer.Option(help="Size of the model built here.")]
Repeats = Annotated[int, option("N", "Repeats of each way.", min=1)]
Threads = Annotated[int | None, option("N", "Threads of torch.", min=1, default="torch's choice")]
Models = Annotated[
    str | None, option("FOLDER", "Save the models there, and use them the next time.")
]
Quick = Annotated[bool, flag("--quick", "Tiniest model, few rows: does it work at all?")]
Record = Annotated[str | None, option("FILE", "Append the result as a JSON line.")]
Markdown = Annotated[bool, flag("--markdown", "Print tables for a README.")]


def _state(text: str) -> str:
    if text not in STATES:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(STATES)}")
    return text


app = new_group("Measure speed and memory against the usual way of doing the same.")


@command(app, "evaluation", writes=[RECORD])
def evaluation(
    size: ModelSize = "tiny",
    dtype: WeightType = "float32",
    states: Annotated[
        list[str] | None,
        option(
            "STATE...",
            "States of the model: memorised, unlearned, random.",
            parser=_state,
            autocompletion=lambda: [*STATES],
            default="all that there are",
        ),
    ] = None,
    data: Data = "synthetic",
    forget: Forget = 0.1,
    profile: ProfileName = "tofu",
    rows: Rows = None,
    models: Models = None,
    quick: Quick = False,
    repeats: Repeats = 3,
    threads: Threads = None,
    record: Record = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Time the evaluator against a plain one, and compare their numbers.

    The plain way: batches of 32 in dataset order, padded, full logits, every answer variant by
    itself, `model.generate`. The last table has what metrics by token add, in one thread. Exit code
    1 where the two ways' metrics differ.

    Examples:
      unlearnbench bench evaluation               a tiny model, made and trained here
      unlearnbench bench evaluation --data ~/tofu --rows 400 --models bench-models
      unlearnbench bench evaluation --size 1b --dtype bfloat16
    """
    from unlearnbench.bench.evaluation import bench_evaluation, tables
    from unlearnbench.bench.evaluation_case import EvaluationBenchSettings

    settings = EvaluationBenchSettings.from_options(
        size=size,
        dtype=dtype,
        states=states,
        data=data,
        forget=forget,
        profile=profile,
        rows=rows,
        quick=quick,
    )
    console = _begin(threads)
    folder = Path(models) if models else None
    result = bench_evaluation(settings, 1 if quick else repeats, folder, console.note)
    _end(console, result, tables(result), record, markdown=markdown, as_json=as_json)
    agree = all(state["agreement"]["agree"] for state in result["states"])
    return 0 if agree else DIFFERENT


@command(app, "attacks", writes=[RECORD])
def attacks(
    names: Annotated[
        list[str] | None,
        option("NAME...", "Attacks, with their defaults.", default=" ".join(_ATTACKS)),
    ] = None,
    size: ModelSize = "tiny",
    dtype: WeightType = "float32",
    data: Data = "synthetic",
    forget: Forget = 0.1,
    profile: ProfileName = "tofu",
    rows: Rows = None,
    models: Models = None,
    quick: Quick = False,
    plugins: Plugins = None,
    repeats: Repeats = 3,
    threads: Threads = None,
    record: Record = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Time evaluations under attacks against the plain one.

    The model has memorised the answers and unlearned some; the large one has random weights. Exit
    code 1 where its weights are not what they were.

    Examples:
      unlearnbench bench attacks
      unlearnbench bench attacks --names quantization --size 1b --dtype bfloat16
    """
    from unlearnbench.bench.attacks import bench_attacks, tables
    from unlearnbench.bench.evaluation_case import EvaluationBenchSettings

    register_plugins(plugins)
    settings = EvaluationBenchSettings.from_options(
        size=size,
        dtype=dtype,
        states=None if size == "1b" and not quick else ["unlearned"],
        data=data,
        forget=forget,
        profile=profile,
        rows=rows,
        quick=quick,
    )
    console = _begin(threads)
    folder = Path(models) if models else None
    chosen = tuple(dict.fromkeys(names or _ATTACKS))
    result = bench_attacks(settings, chosen, 1 if quick else repeats, folder, console.note)
    _end(console, result, tables(result), record, markdown=markdown, as_json=as_json)
    measured = [one for state in result["states"] for one in state["attacks"]]
    return 0 if all(one["restored"] for one in measured) else DIFFERENT


@command(app, "losses", writes=[RECORD])
def losses(
    sizes: Annotated[
        list[str] | None,
        option(
            "SIZE...",
            "Tokens x hidden size x vocabulary; fewer tokens where memory ends.",
            default="2048x1024x32000",
        ),
    ] = None,
    dtype: WeightType = "float32",
    primitives: Annotated[
        list[str] | None, option("NAME...", "Losses to time.", default="all")
    ] = None,
    repeats: Repeats = 3,
    threads: Threads = None,
    record: Record = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> None:
    """Time the fused losses against library functions over full logits.

    Output layer and loss, forward and back. Memory: beyond inputs and their gradients.

    Examples:
      unlearnbench bench losses
      unlearnbench bench losses --sizes 4096x2048x128256 --primitives CE-U KL --repeats 1
    """
    from unlearnbench.bench.losses import PRIMITIVES, Size, bench_losses, tables

    parsed = [Size.parse(text) for text in sizes or ["2048x1024x32000"]]
    names = primitives or [*PRIMITIVES]
    unknown = next((name for name in names if name not in PRIMITIVES), None)
    if unknown is not None:
        near = did_you_mean(unknown, PRIMITIVES) or "."
        known = ", ".join(f"{name!r}" for name in PRIMITIVES)
        raise EvaluationError(f"--primitives: unknown {unknown!r}{near} Known: {known}")
    console = _begin(threads)
    result = bench_losses(parsed, dtype, names, repeats, console.note)
    _end(console, result, tables(result), record, markdown=markdown, as_json=as_json)


@command(app, "step", writes=[RECORD])
def step(
    size: ModelSize = "tiny",
    methods: Annotated[
        list[str] | None,
        option("METHOD...", "Names; +nll or +kl adds a retain term.", default=" ".join(_METHODS)),
    ] = None,
    batch_size: Annotated[int, option("N", "Rows to forget a step.", min=1)] = 32,
    data: Data = "synthetic",
    plugins: Plugins = None,
    repeats: Repeats = 3,
    threads: Threads = None,
    record: Record = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Time an optimiser step of methods against the usual way of writing them.

    The usual way: a forward pass for each part, padded, logits everywhere, the reference model in
    memory and run at every step. Exit code 1 where the two ways' losses differ.

    Examples:
      unlearnbench bench step
      unlearnbench bench step --size 100m --batch-size 8 --methods npo+nll ce-u
    """
    from unlearnbench.bench.step import AGREE, StepSettings, bench_step, objective_of, tables

    register_plugins(plugins)
    names = tuple(methods or _METHODS)
    for name in names:
        objective_of(name)
    settings = StepSettings(
        size=size, data=data, methods=names, batch_size=batch_size, repeats=repeats
    )
    console = _begin(threads)
    result = bench_step(settings, console.note)
    _end(console, result, tables(result), record, markdown=markdown, as_json=as_json)
    agree = all(each["losses_apart"] < AGREE for each in result["results"])
    return 0 if agree else DIFFERENT


@command(app, "sweep", writes=[RECORD])
def sweep(
    noop: Annotated[int, option("N", "Runs that do nothing.")] = 1000,
    quick: Annotated[bool, flag("--quick", "Few runs: does it work at all?")] = False,
    repeats: Repeats = 3,
    threads: Threads = None,
    record: Record = None,
    markdown: Markdown = False,
    as_json: Json = False,
) -> int:
    """Time a sweep against one Python process per run, and runs that do nothing.

    Both ways start from the same prepared models. Exit code 1 where their metrics differ, or where
    a record was lost or written twice.

    Examples:
      unlearnbench bench sweep
      unlearnbench bench sweep --noop 0 --repeats 1
    """
    from unlearnbench.bench.sweep import SweepBenchSettings, bench_sweep, sound, tables

    settings = SweepBenchSettings(1 if quick else repeats, noop, quick)
    console = _begin(threads)
    result = bench_sweep(settings, console.note)
    _end(console, result, tables(result), record, markdown=markdown, as_json=as_json)
    return 0 if sound(result) else DIFFERENT


def _begin(threads: int | None) -> Console:
    import torch

    from unlearnbench.models.device import cuda_variables

    if torch.cuda.is_available():
        os.environ.update(cuda_variables())
    if threads is not None:
        torch.set_num_threads(threads)
    return Console()


def _end(
    console: Console,
    result: dict[str, Any],
    tables: Sequence[ResultTable],
    record: str | None,
    *,
    markdown: bool,
    as_json: bool,
) -> None:
    from unlearnbench.bench.measurement import append_record, circumstances_line
    from unlearnbench.bench.measurement import markdown as as_markdown

    if record:
        append_record(Path(record), result)
        console.note(f"recorded: {record}")
    if as_json:
        console.print_json(result)
    elif markdown:
        console.print(as_markdown(tables, circumstances_line(result)))
    else:
        for table in tables:
            console.table(*table)
            console.print()
        console.print(circumstances_line(result))
