"""`unlearnbench export`: the unlearned model of a run as a folder."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Plugins, named_in, register_plugins
from unlearnbench.config.precision import Attention

app = new_group()


@command(app, "export")
def export(
    run: Annotated[
        str, argument("RUN", "A method, a setting's label, a run's id, or FOLDER:one of these.")
    ],
    to: Annotated[str, option("FOLDER", "Where the model goes: a new folder.")],
    folder: Annotated[str, option("FOLDER", "The sweep's folder.", "--in")] = "runs/quickstart",
    epoch: Annotated[
        str, option("EPOCH", "best (of those that keep enough utility), last, or N.")
    ] = "best",
    step: Annotated[
        int | None, option("N", "Step to export, in a sweep by steps.", min=1, default="none")
    ] = None,
    adapter: Annotated[
        bool, flag("--adapter", "Write a LoRA run's adapter, not the merged model.")
    ] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Type of the written weights.", show_default="the base's"),
    ] = None,
    attention: Annotated[
        Attention | None,
        typer.Option(
            help="Attention implementation, for a machine without the record's.",
            show_default="the record's",
        ),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write the unlearned model of a run: weights, tokenizer and a card with its numbers.

    Records contain no weights, so the run is trained again from the settings in its record. The
    written files are then loaded and evaluated, and their numbers are compared with the sweep's
    table. If you name a method, its best setting is exported, with its first seed. After `select`
    or `tune`, the chosen setting is exported, with the first seed that reports it. The command
    `hf upload REPO FOLDER` puts the folder on the hub.

    Examples:
      unlearnbench export npo+nll --to ./unlearned
      unlearnbench export 5f0c --in runs/mine --epoch last --to ./unlearned
      unlearnbench export npo --in runs/by-steps --step 75 --to ./unlearned
    """
    from unlearnbench.report.exported_model import check_place, choose, export_model
    from unlearnbench.report.sweep_tracker import sweep_config

    register_plugins(plugins)
    console = Console()
    sweep, name = named_in(run, folder)
    target = Path(to)
    check_place(target)
    choice = choose(sweep, name, epoch, step)
    console.note(f"{choice.record.id}  {choice.title}")
    comparison = export_model(
        choice,
        sweep_config(sweep),
        sweep,
        target,
        adapter=adapter,
        dtype=dtype,
        attention=attention,
        show=console.note,
    )
    console.print(f"compared with the sweep's table: {comparison}")
    console.print(f"model  {target}")
