"""`unlearnbench metrics …`: installed metrics with formulas and columns; check one, write one."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.api import registry
from unlearnbench.cli.check_method import chosen_plugins, print_results
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.methods import first_line, parameter
from unlearnbench.cli.new_method import print_package
from unlearnbench.cli.options import Json, Plugins, complete_metric, register_plugins
from unlearnbench.console import Console
from unlearnbench.errors import PluginError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.api.metric import Metric, MetricColumn, Summary
    from unlearnbench.testing import Result

app = new_group("List, show, check and write metrics.")


@command(app, "list")
def list_metrics(as_json: Json = False, plugins: Plugins = None) -> None:
    """List the metrics that are installed; broken ones with their fault."""
    register_plugins(plugins)
    rows: list[dict[str, Any]] = []
    for name in registry.names("metrics"):
        try:
            rows.append(_row(name, registry.load("metrics", name)))
        except PluginError as error:
            empty: dict[str, Any] = {key: [] for key in ("reads", "sets", "better")}
            rows.append({"name": name, "source": "", "summary": str(error)} | empty)
    console = Console()
    if as_json:
        console.print_json(rows)
        return
    keys = ("reads", "sets", "better")
    cells = [(r["name"], *(", ".join(r[k]) for k in keys), r["summary"], r["source"]) for r in rows]
    console.table(("metric", "reads", "sets", "better", "what it is", "from"), cells)


@command(app, "show")
def show_metric(
    name: Annotated[str, argument("NAME", autocompletion=complete_metric)],
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """Show a metric's formula, what it reads, its columns and settings."""
    from unlearnbench.files.canonical_json import json_ready

    register_plugins(plugins)
    metric, offer = registry.load("metrics", name), registry.find("metrics", name)
    settings = [parameter(key, info) for key, info in metric.model_fields.items()]
    text = inspect.cleandoc(metric.__doc__ or "")
    row, columns = _row(name, metric), _columns(name, metric)
    console = Console()
    if as_json:
        listed = [
            {"name": c.name, "label": c.label, "better": c.better, "bounds": c.bounds}
            for c in columns
        ]
        shown = row | {"target": offer.target, "version": metric.version, "description": text}
        console.print_json(json_ready(shown | {"columns": listed, "settings": settings}))
        return
    console.print(f"{name}  ({offer.source}, {offer.target}, version {metric.version})\n\n{text}\n")
    console.print(f"reads: {', '.join(row['reads'])}\nsets:  {', '.join(row['sets'])}\n")
    bounds = [f"{c.bounds[0]:g} to {c.bounds[1]:g}" for c in columns]
    cells = [(c.name, c.label, c.better, b) for c, b in zip(columns, bounds, strict=True)]
    console.table(("column", "label", "better", "bounds"), cells)
    if settings:
        console.print()
        keys = ("name", "type", "default", "bounds", "meaning")
        console.table(
            ("setting", "type", "default", "bounds", "meaning"),
            [tuple(one[key] for key in keys) for one in settings],
        )


@command(app, "check")
def check(
    names: Annotated[
        list[str] | None,
        argument("NAME", "Metrics to check, or files.", autocompletion=complete_metric),
    ] = None,
    check_all: Annotated[bool, flag("--all", "Check every metric that is installed.")] = False,
    only: Annotated[list[str] | None, option("CHECK", "Run this check only (repeatable).")] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "A setting in place of its default; the value is YAML (repeatable).",
            "--set",
        ),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """Check a metric for mistakes that are easily made, on made-up observations; takes seconds.

    Exit code 1 where there is a fault.

    Examples:
      unlearnbench metrics check extraction-strength
      unlearnbench metrics check my_metric.py
      unlearnbench metrics check mia-min-k --set share=0.2 --only nan
      unlearnbench metrics check --all --json
    """
    chosen, values = chosen_plugins("metrics", names, plugins, settings, check_all=check_all)
    from unlearnbench.testing import check_metric

    found: dict[str, Sequence[Result]] = {
        name: check_metric(name, values, only or ()) for name in chosen
    }
    files = [*(plugins or ()), *(name for name in names or () if name.endswith(".py"))]
    return print_results(Console(), found, files, settings, as_json=as_json)


@command(app, "new", writes=[Output("out", "the package", kind="folder")])
def new(
    name: Annotated[str, argument("NAME", "Such as my-metric.")],
    out: Annotated[str, option("DIR", "The package becomes a folder in it.")] = ".",
) -> None:
    """Write a package with a metric of your own: metric, test, pyproject, README.

    Examples:
      unlearnbench metrics new my-metric
      cd my-metric && pip install -e . && pytest
    """
    print_package(name, Path(out), "metrics")


def _row(name: str, metric: type[Metric | Summary]) -> dict[str, Any]:
    from unlearnbench.api.metric import Metric

    read: list[str]
    if issubclass(metric, Metric):
        read = [*sorted(metric.reads)] or ["losses"]
    else:
        read = [f"{one} model" for one in sorted(metric.relative_to)]
        read += [f"columns of {one}" for one in sorted(metric.after)]
        read = read or ["sets, columns"]
    return {
        "name": name,
        "source": registry.find("metrics", name).source,
        "reads": read,
        "sets": [*map(str, sorted(metric.roles))] or ["named by a benchmark"],
        "better": [*dict.fromkeys(c.better or "neither" for c in _columns(name, metric))],
        "summary": first_line(metric),
    }


def _columns(name: str, metric: type[Metric | Summary]) -> tuple[MetricColumn, ...]:
    """The columns that it has on sets called like their roles."""
    from unlearnbench.api.metric import Measure, Metric, Role

    if issubclass(metric, Metric):
        roles: list[Role] = [*sorted(metric.roles)] or ["forget"]
        measure = Measure(name.replace("-", "_"), metric(), ())
        return tuple(measure.column(role, role) for role in roles)
    from unlearnbench.testing.check import made

    return made(metric, {}, name, "settings").columns()
