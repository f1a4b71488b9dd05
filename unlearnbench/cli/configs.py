"""`unlearnbench configs …`: shipped configs, one to start from, and the schema for editors."""

import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.base.errors import DataError, OutputError
from unlearnbench.base.outputs import check_file, write_file
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, Wide, register_plugins
from unlearnbench.cli.own_data import NewRowOptions

if TYPE_CHECKING:
    from unlearnbench.config.config_sources import ConfigSource

SCHEMA = "schema.json"
"""File next to a new config. The config's first line names it, so that editors find it."""

app = new_group("List the configs that are installed, show one, or begin one of your own.")

HEADINGS = {
    "here": "Run here: data and a tiny model are made; no network and no GPU",
    "cpu": "Run on a CPU: data or a small model are downloaded",
    "gpu": "Need a GPU",
}
"""Headings of the groups of `list`, by what a config needs. What anyone can run comes first."""


@command(app, "list")
def list_configs(wide: Wide = False, as_json: Json = False) -> None:
    """List the configs that are installed, by what they need.

    Examples:
      unlearnbench configs list
      unlearnbench configs list --wide
    """
    from unlearnbench.cli.catalogue import Entry, print_catalogue
    from unlearnbench.config.config_sources import shipped_configs

    console = Console()
    configs = shipped_configs()
    rows = [
        {"name": name, "purpose": source.purpose, "source": source.package}
        for name, source in configs.items()
    ]
    if as_json:
        console.print_json(rows)
    elif wide:
        lines = [tuple(row.values()) for row in rows]
        console.table(("config", "purpose", "from"), lines, is_wide=True)
    else:
        entries = [
            Entry(name, source.purpose, _needed_for(source)) for name, source in configs.items()
        ]
        hint = (
            "unlearnbench plan NAME says what a config runs and how long that takes; "
            "unlearnbench configs new NAME begins one of your own."
        )
        print_catalogue(entries, HEADINGS, hint, console)


def _needed_for(source: "ConfigSource") -> str:
    """Return the group of a configuration, one of `HEADINGS`."""
    from unlearnbench.api import registry
    from unlearnbench.config.loader import read_config

    values = read_config(source).values
    models: list[dict[str, Any]] = values.get("models", [])
    # Resources are set for all runs, or for the runs of a model.
    for section in (values, *models):
        if (section.get("resources") or {}).get("gpu"):
            return "gpu"
    makes_models = all(model.get("base") == "tiny" for model in models)
    benchmark = registry.load("benchmarks", values["data"].get("source", "synthetic"))
    makes_rows = not {"path", "hub_id"} & benchmark.model_fields.keys()
    return "here" if makes_models and makes_rows else "cpu"


@command(app, "show")
def show_config(
    name: Annotated[str, argument("NAME")],
    as_json: Annotated[
        bool, flag("--json", "Print every setting, defaults included, as JSON.")
    ] = False,
) -> None:
    """Show a config's YAML as it is written, a file to start from.

    Examples:
      unlearnbench configs show quickstart > my.yaml
    """
    from unlearnbench.base.hashing import json_ready
    from unlearnbench.config.config_sources import find_config
    from unlearnbench.config.loader import load_config

    console = Console()
    if as_json:
        console.print_json(json_ready(load_config(name).model_dump(mode="json")))
    else:
        console.print(find_config(name).text.removesuffix("\n"))


@command(app, "schema")
def print_schema(
    out: Annotated[str | None, option("FILE", "File to write.", default="standard output")] = None,
    plugins: Plugins = None,
) -> None:
    """Print the JSON schema of the YAML, with which editors complete, explain and check it.

    The schema contains the methods, metrics, benchmarks and attacks that are installed, and those
    of --plugin. A config names its schema in the first line: # yaml-language-server: $schema=FILE

    Examples:
      unlearnbench configs schema --out schema.json
      unlearnbench configs schema --plugin my_method.py --out schema.json
    """
    register_plugins(plugins)
    from unlearnbench.config.json_schema import schema_text

    if out is None:
        Console().print(schema_text().removesuffix("\n"))
        return
    write_file(Path(out), schema_text(), "the schema")
    Console().print(f"schema  {out}")


@command(app, "new")
def new_config(
    own: NewRowOptions,
    name: Annotated[
        str, argument("NAME", "Name of the sweep; the file is NAME.yaml.")
    ] = "my_sweep",
    model: Annotated[
        str | None,
        option("MODEL", "With rows of yours: model that has learned them; folder or hub id."),
    ] = None,
    base: Annotated[
        str | None,
        option("MODEL", "With rows of yours: model that has not learned them, to be trained."),
    ] = None,
) -> None:
    r"""Write a config to start from: three methods, every line explained.

    If you give rows of your own, the command reads the tables and writes their columns, numbers of
    rows, and starting values for a model of the given size into the config. Give rows with
    --forget-rows and --retain-rows, or with --rows and --forget-if. Without --model and --base, the
    config trains a tiny model on your rows. Without rows, it uses made-up rows and a tiny model, so
    it runs without a network and a GPU. The command also writes the schema for editors to the same
    folder.

    Examples:
      unlearnbench configs new mine && unlearnbench plan mine.yaml
      unlearnbench configs new mine --forget-rows forget.jsonl \
          --retain-rows retain.jsonl --model ./my-model
      unlearnbench configs new mine --rows all.csv --forget-if 'author=J. Doe'
      unlearnbench configs new mine --forget-rows org/notes[forget] \
          --retain-rows org/notes[rest] --column question=prompt \
          --base HuggingFaceTB/SmolLM2-135M-Instruct
    """
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if file.exists():
        raise OutputError(f"{file} exists, and is not written over; choose another name")
    check_file(file, "the config")
    # The name of a sweep is a folder's name, too.
    sweep = re.sub(r"[^A-Za-z0-9.-]+", "_", file.stem).strip("._-") or "my_sweep"
    console = Console()
    if own.is_given:
        from unlearnbench.base.deferred_warnings import drain
        from unlearnbench.cli.own_config import own_config

        config = own_config(own, base, model, name=sweep, file=file)
        for line in drain():
            console.note(f"warning: {line}")
        text = config.text
        console.print("\n".join(config.read))
    elif model is not None or base is not None:
        given = "--model" if model is not None else "--base"
        raise DataError(
            f"{given}: it is for rows of your own; name them with --forget-rows and --retain-rows "
            "or with --rows and --forget-if, or write the model into the line `base` of a config "
            "without rows"
        )
    else:
        template = (files("unlearnbench.cli") / "packages" / "config.yaml.txt").read_text("utf-8")
        text = Template(template).substitute(name=sweep, file=file)
    from unlearnbench.config.json_schema import schema_text

    write_file(file, text, "the config")
    write_file(file.with_name(SCHEMA), schema_text(), "the schema")
    console.print(f"config  {file}\nnext    unlearnbench plan {file}")
