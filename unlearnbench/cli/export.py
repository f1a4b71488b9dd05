"""`unlearnbench export`: the unlearned model of a run as a folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, named_in, register_plugins

if TYPE_CHECKING:
    from unlearnbench.report.exported_model import Epoch

app = new_group()


def _epoch(text: str) -> Epoch:
    """Parse `best`, `last` or the number of an epoch."""
    if text in ("best", "last"):
        return cast("Epoch", text)
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text} is none of best, last and the number of an epoch")


@command(app, "export")
def export(
    run: Annotated[
        str, argument("RUN", "A method, a setting's label, a run's id, or FOLDER:one of these.")
    ],
    to: Annotated[str, option("FOLDER", "Where the model goes: a new folder.")],
    folder: Annotated[str, option("FOLDER", "The sweep's folder.", "--in")] = "runs/quickstart",
    epoch: Annotated[
        Any,  # typer takes no union
        option("EPOCH", "best of those that keep enough utility, last, or N.", parser=_epoch),
    ] = "best",
    adapter: Annotated[
        bool, flag("--adapter", "Write a LoRA run's adapter, not the merged model.")
    ] = False,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Write the unlearned model of a run: weights, tokenizer and a card with its numbers.

    Records hold no weights, so the run is trained again, from the settings in its record. The files
    are then loaded and evaluated, and compared with the record. Of a method, the best setting is
    taken, with its first seed. `hf upload REPO FOLDER` puts the folder on the hub.

    Examples:
      unlearnbench export npo+nll --to ./unlearned
      unlearnbench export 5f0c --in runs/mine --epoch last --to ./unlearned
    """
    from unlearnbench.report.exported_model import check_place, choose, comparison, export_model
    from unlearnbench.report.sweep_tracker import sweep_config
    from unlearnbench.runs.remade_model import spec_of

    register_plugins(plugins)
    (sweep, name), target, console = named_in(run, folder), Path(to), Console()
    check_place(target)
    choice = choose(sweep, name, epoch)
    row = choice.row
    spec_of(choice.record)  # raises where it cannot be trained again
    console.note(f"{choice.record.id}  {choice.title}")
    config = sweep_config(sweep)
    remade = export_model(choice, config, target, adapter=adapter, show=console.note)
    if as_json:
        fields = ("device", "compared", "first_other_step", "same_start")
        shown: dict[str, Any] = {
            **{"record": choice.record.id, "method": row.method, "model": row.model},
            **{"epoch": row.epoch, "seed": row.seed, "folder": str(target)},
            "recorded": {name: row.metrics.get(name) for name in row.headline.columns},
            **{name: getattr(remade, name) for name in fields},
            "differences": [asdict(other) for other in remade.differences],
            "metrics": dict(remade.metrics),
        }
        console.print_json(shown)
        return
    for line in comparison(remade):
        console.print(line)
    console.print(f"model  {target}")
