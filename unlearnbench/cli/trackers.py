"""`unlearnbench trackers …`: where the runs of a sweep can be logged for review."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.errors import PluginError
from unlearnbench.cli.command import argument, command, new_group
from unlearnbench.cli.options import Json, Wide

app = new_group("List and show trackers, to which the runs of a sweep are logged.")


@command(app, "list")
def list_trackers(wide: Wide = False, as_json: Json = False) -> None:
    """List the trackers that are installed, each with a summary.

    Examples:
      unlearnbench trackers list
    """
    from unlearnbench.cli.catalogue import Entry, print_catalogue

    console = Console()
    rows = [_row(offer) for offer in registry.offers("trackers")]
    if as_json:
        console.print_json(rows)
    elif wide:
        columns = ("name", "summary", "source")
        console.table(columns, [[row[key] for key in columns] for row in rows], is_wide=True)
    else:
        entries = [Entry(row["name"], row["summary"]) for row in rows]
        hint = "unlearnbench trackers show NAME explains one of them, with its settings."
        print_catalogue(entries, {}, hint, console)


@command(app, "show")
def show(name: Annotated[str, argument("NAME")], as_json: Json = False) -> None:
    """Show what a tracker is, and the settings of the section `tracking`.

    Examples:
      unlearnbench trackers show mlflow
    """
    from unlearnbench.config.resources import TrackingSettings

    console = Console()
    row = _row(registry.find("trackers", name))
    settings = {
        key: {"default": info.get_default(), "meaning": info.description}
        for key, info in TrackingSettings.model_fields.items()
    }
    if as_json:
        console.print_json(row | {"settings": settings})
        return
    console.paragraph(f"{name}: {row['summary']}")
    console.print(f"{row['source']}, {row['target']}\n")
    if row["description"]:
        for paragraph in row["description"].split("\n\n"):
            console.paragraph(" ".join(paragraph.split()))
            console.print()
    console.print(f"in a config:\n  tracking:\n    tracker: {name}\n\nsettings:")
    for key, setting in settings.items():
        console.paragraph(f"  {key}  {setting['meaning']}", indent=" " * 6)


def _row(offer: registry.Offer) -> dict[str, Any]:
    """Return what is known about a tracker. The summary of a broken one is its fault."""
    row = {"name": offer.name, "source": offer.source, "target": offer.target}
    try:
        tracker = registry.load("trackers", offer.name)
    except PluginError as error:
        return row | {"summary": str(error), "description": ""}
    module = inspect.getmodule(tracker)
    docstring_of_module = module.__doc__ if module else None
    docstring = inspect.cleandoc(docstring_of_module or tracker.__doc__ or "")
    summary, _, rest = docstring.partition("\n")
    return row | {"summary": summary, "description": rest.strip()}
