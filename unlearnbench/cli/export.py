"""`unlearnbench export`: the unlearned model of a run as a folder, and on the hub."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, register_plugins, sweep_folder
from unlearnbench.cli.report import RESULTS
from unlearnbench.console import Console
from unlearnbench.errors import ModelError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.reporting.exported_model import Choice, Epoch

MODEL = Output("to", "the model", kind="folder")

app = new_group()


def _epoch(text: str) -> Epoch:
    """Parse `best`, `last` or the number of an epoch."""
    if text in ("best", "last"):
        return cast("Epoch", text)
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text} is none of best, last and the number of an epoch")


@command(app, "export", writes=[MODEL], panel=RESULTS)
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
    own, colon, name = run.partition(":")
    # A setting's label may hold a colon, too.
    elsewhere = bool(colon) and ("/" in own or Path(own).is_dir())
    place, target = sweep_folder(own if elsewhere else folder), Path(to)
    from unlearnbench.reporting.exported_model import check_place, check_pushable, choose
    from unlearnbench.runs.remade_model import spec_of
    from unlearnbench.tracking.replay import sweep_config

    console = Console()
    check_place(target)
    choice = choose(place, name if elsewhere else run, epoch)
    spec_of(choice.record)
    config = sweep_config(place)
    if push:
        check_pushable(choice, adapter=adapter)
    console.note(f"{choice.record.id}  {choice.title}")
    user = _checked_token(push) if push and not dry_run else ""
    if dry_run:
        _print_dry_run(choice, target, push, console, as_json=as_json)
        return
    from unlearnbench.reporting.exported_model import export_model
    from unlearnbench.reporting.model_card import comparison

    remade = export_model(choice, config, target, adapter=adapter, show=console.note)
    address = _pushed(target, push, choice, user, console) if push else None
    if as_json:
        console.print_json(
            {
                **_json(choice, target),
                "device": remade.device,
                "compared": remade.compared,
                "differences": [asdict(one) for one in remade.differences],
                "first_other_step": remade.first_other_step,
                "same_start": remade.same_start,
                "metrics": dict(remade.metrics),
                "hub": address,
            }
        )
        return
    for line in comparison(remade):
        console.print(line)
    console.print(f"model  {target}")
    if address:
        console.print(f"hub    {address}")


def _checked_token(repository: str) -> str:
    """The user whose token this is. Raises: ModelError before any work."""
    from unlearnbench.files import hub

    try:
        return hub.check_push(repository)
    except hub.HubError as error:
        raise ModelError(f"--push {repository}: {error}; nothing is done") from None


def _pushed(target: Path, repository: str, choice: Choice, user: str, console: Console) -> str:
    from unlearnbench.files import hub

    console.note(f"upload to {repository} as {user}")
    try:
        return hub.push(target, repository, f"unlearnbench export of record {choice.record.id}")
    except hub.HubError as error:
        raise ModelError(
            f"--push {repository}: {error}; the model is in {target}: `hf upload {repository} "
            f"{target}` uploads it"
        ) from None


def _json(choice: Choice, target: Path) -> dict[str, Any]:
    row = choice.row
    return {
        "record": choice.record.id,
        "method": row.method,
        "model": row.model,
        "epoch": row.epoch,
        "seed": row.seed,
        "folder": str(target),
        "recorded": {name: row.metrics.get(name) for name in row.headline.columns},
    }


def _print_dry_run(
    choice: Choice, target: Path, push: str | None, console: Console, *, as_json: bool
) -> None:
    found: dict[str, Any] = {**_json(choice, target), "hub": push, "dry_run": True}
    if as_json:
        console.print_json(found)
        return
    steps = sum(step.epoch <= choice.row.epoch for step in choice.record.steps)
    numbers = ", ".join(
        f"{choice.row.schema.column(name).label} {value:.4g}"
        for name, value in found["recorded"].items()
        if value is not None
    )
    console.print(f"recorded   {numbers}")
    console.print(f"training   {steps} optimiser steps, up to epoch {choice.row.epoch}")
    console.print(f"model      {target}")
    if push:
        console.print(f"hub        {push}")
    console.print("nothing is written (--dry-run)")
