"""`unlearnbench export`: the unlearned model of a run as a folder, and on the hub."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, named_in, register_plugins
from unlearnbench.console import Console
from unlearnbench.errors import ModelError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.reporting.exported_model import Epoch

MODEL = Output("to", "the model", kind="folder")

app = new_group()


def _epoch(text: str) -> Epoch:
    """Parse `best`, `last` or the number of an epoch."""
    if text in ("best", "last"):
        return cast("Epoch", text)
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text} is none of best, last and the number of an epoch")


@command(app, "export", writes=[MODEL])
def export(
    run: Annotated[
        str,
        argument(
            "RUN", "A method, a setting's label, a run's id or its beginning, or FOLDER:that."
        ),
    ],
    to: Annotated[str, option("FOLDER", "Where the model goes: a new folder.")],
    folder: Annotated[str, option("FOLDER", "The sweep's folder.", "--in")] = "runs/quickstart",
    epoch: Annotated[
        Any,
        option(
            "EPOCH",
            "best (of those that keep enough utility the one that forgot most), last, or a number.",
            parser=_epoch,
        ),
    ] = "best",
    adapter: Annotated[
        bool, flag("--adapter", "Of a LoRA run, write the adapter and not the merged model.")
    ] = False,
    push: Annotated[
        str | None, option("REPO", "Also upload it to this model repository of the hub.")
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print what would be written, and write nothing.")
    ] = False,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Write the unlearned model of a run: weights, tokenizer and a card with its numbers.

    Records hold no weights, so the run is trained again, from the settings in its record. The files
    are then loaded and evaluated, and compared with the record. Of a method, the best setting is
    taken, with its first seed. --push reads the token from HF_TOKEN, and makes a private
    repository where there is none.

    Examples:
      unlearnbench export npo+nll --to ./unlearned
      unlearnbench export 5f0c --in runs/mine --epoch last --to ./unlearned
      unlearnbench export runs/mine:ce-u --to ./unlearned --push me/tofu-ce-u --dry-run
    """
    register_plugins(plugins)
    (place, name), target = named_in(run, folder), Path(to)
    from unlearnbench.reporting.exported_model import check_place, check_pushable, choose
    from unlearnbench.runs.remade_model import spec_of
    from unlearnbench.tracking import sweep_config

    console = Console()
    check_place(target)
    choice = choose(place, name, epoch)
    spec_of(choice.record)
    config = sweep_config(place)
    if push:
        check_pushable(choice, adapter=adapter)
    console.note(f"{choice.record.id}  {choice.title}")
    row = choice.row
    found: dict[str, Any] = {
        "record": choice.record.id,
        "method": row.method,
        "model": row.model,
        "epoch": row.epoch,
        "seed": row.seed,
        "folder": str(target),
        "recorded": {name: row.metrics.get(name) for name in row.headline.columns},
        "hub": push,
    }
    if dry_run:
        if as_json:
            console.print_json(found | {"dry_run": True})
            return
        for key, value in found.items():
            console.print(f"{key:10} {value}")
        console.print("nothing is written (--dry-run)")
        return
    from unlearnbench.files import hub
    from unlearnbench.reporting.exported_model import export_model
    from unlearnbench.reporting.model_card import comparison

    try:
        user = hub.check_push(push) if push else ""
    except hub.HubError as error:
        raise ModelError(f"--push {push}: {error}; nothing is done") from None
    remade = export_model(choice, config, target, adapter=adapter, show=console.note)
    if push:
        console.note(f"upload to {push} as {user}")
        try:
            about = f"unlearnbench export of record {choice.record.id}"
            found["hub"] = hub.push(target, push, about)
        except hub.HubError as error:
            raise ModelError(
                f"--push {push}: {error}; the model is in {target}: `hf upload {push} {target}` "
                "uploads it"
            ) from None
    if as_json:
        differences = [asdict(other) for other in remade.differences]
        fields = ("device", "compared", "first_other_step", "same_start")
        more = {name: getattr(remade, name) for name in fields}
        metrics = dict(remade.metrics)
        console.print_json(found | more | {"differences": differences, "metrics": metrics})
        return
    for line in comparison(remade):
        console.print(line)
    console.print(f"model  {target}")
    if push:
        console.print(f"hub    {found['hub']}")
