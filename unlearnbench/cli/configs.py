"""`unlearnbench configs …`: shipped configs, one to start from, and the schema for editors."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

from unlearnbench.api import registry
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, complete_config, register_plugins
from unlearnbench.console import Console
from unlearnbench.errors import OutputError
from unlearnbench.files.outputs import Output, check_file, write_file

SCHEMA = "schema.json"
"""Beside a new config, whose first line names it: by it editors find the schema."""

SWEEP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
FRACTIONS = (0.1, 0.05, 0.125, 0.25, 0.5)
"""Shares of the rows to forget: the first that a benchmark has is in a new config."""

app = new_group("List the configs that are installed, show one, or begin one of your own.")


@command(app, "list")
def list_configs(as_json: Json = False) -> None:
    """List the configs that are installed, with their purpose."""
    from unlearnbench.config.loader import shipped_configs

    rows = [
        {"name": name, "purpose": source.purpose, "source": source.package}
        for name, source in shipped_configs().items()
    ]
    console = Console()
    if as_json:
        console.print_json(rows)
    else:
        console.table(("config", "purpose", "from"), [tuple(row.values()) for row in rows])


@command(app, "show")
def show_config(
    name: Annotated[str, argument("NAME", autocompletion=complete_config)],
    as_json: Annotated[
        bool, flag("--json", "Print every setting, defaults included, as JSON.")
    ] = False,
) -> None:
    """Show a config's YAML as it is written, a file to start from.

    Examples:
      unlearnbench configs show quickstart > my.yaml
    """
    from unlearnbench.config.loader import find_config, load_config
    from unlearnbench.files.canonical_json import json_ready

    console = Console()
    if as_json:
        console.print_json(json_ready(load_config(name).model_dump(mode="json")))
    else:
        console.print(find_config(name).text.removesuffix("\n"))


@command(app, "schema", writes=[Output("out", "the schema", suffixes=(".json",))])
def print_schema(
    out: Annotated[str | None, option("FILE", "File to write.", default="standard output")] = None,
    plugins: Plugins = None,
) -> None:
    """Print the JSON schema of the YAML, with which editors complete, explain and check it.

    It has the methods, metrics, benchmarks and attacks that are installed, and those of --plugin.
    A config names it in its first line: # yaml-language-server: $schema=FILE

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
    name: Annotated[str, argument("NAME", "Of the sweep; it becomes NAME.yaml.")] = "my_sweep",
    model: Annotated[
        str, option("MODEL", "`tiny` (trained here), a folder, or a hub's id.")
    ] = "tiny",
    data: Annotated[
        str, option("DATA", "A benchmark's name, or a folder of files in TOFU's format.")
    ] = "synthetic",
) -> None:
    """Write a config to start from: three methods on a laptop, every line explained.

    As it is, it runs without a network and a GPU. The schema for editors is written beside it.

    Examples:
      unlearnbench configs new mine && unlearnbench plan mine.yaml
      unlearnbench configs new mine --model ./my-model --data ./my-data
    """
    file = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    check_file(file, "the config")
    if not re.fullmatch(SWEEP_NAME, file.stem):
        raise OutputError(
            f"{file}: a sweep's name begins with a letter or digit, and has letters, digits, dots, "
            "hyphens and underscores; choose another name"
        )
    if file.exists():
        raise OutputError(f"{file}: there is such a file, which is kept; choose another name")
    text = _starter(file, model, data)
    from unlearnbench.config.json_schema import schema_text

    write_file(file, text, "the config")
    write_file(file.with_name(SCHEMA), schema_text(), "the schema")
    Console().print(f"config  {file}\nnext    unlearnbench plan {file}")


def _starter(file: Path, model: str, data: str) -> str:
    """The text of a new config."""
    from unlearnbench.config.entries import benchmark_named

    tiny, installed = model == "tiny", data in registry.names("benchmarks")
    section = f"{{source: {data}}}" if installed else f"{{source: tofu, path: {_scalar(data)}}}"
    benchmark = benchmark_named(data if installed else "tofu")
    named = benchmark.splits
    fraction = next((one for one in FRACTIONS if not benchmark.problem_with(one)), FRACTIONS[0])
    preparation = "" if tiny else "    preparation: {epochs: 5, learning_rate: 1.0e-5}\n"
    values = {
        "name": file.stem,
        "file": file,
        "data": section,
        "model_name": _scalar(Path(model).name),
        "base": _scalar(model),
        "preparation": preparation,
        "splits": f"splits: [{', '.join(named)}]" if named else f"forget_fractions: [{fraction}]",
        "rates": "[3.0e-4, 1.0e-3]" if tiny else "[1.0e-5, 3.0e-5]",
        "max_length": 64 if tiny else 256,
    }
    template = (files("unlearnbench.cli") / "packages" / "config.yaml.txt").read_text("utf-8")
    return Template(template).substitute(values)


def _scalar(text: str) -> str:
    """A text as YAML: quoted where it would be something else."""
    return text if re.fullmatch(r"[A-Za-z./~][\w./~-]*", text) else json.dumps(text)
