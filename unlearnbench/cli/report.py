"""`unlearnbench report`, `track` and `ui`: a sweep's page and table, and its pages in MLflow."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

import typer

from unlearnbench.api.registry import load
from unlearnbench.base.console import Console
from unlearnbench.base.errors import RecordError
from unlearnbench.base.outputs import check_file, write_file
from unlearnbench.base.redaction import redact
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import (
    Folder,
    Plugins,
    register_plugins,
    sweep_folder,
)

TableName = Literal["best", "scorecard"]
TableFormat = Literal["latex", "markdown", "csv"]

app = new_group()


@command(app, "report")
def report(
    folder: Folder,
    out: Annotated[
        str | None, option("FILE", "Page to write.", default="FOLDER/report.html")
    ] = None,
    latex: Annotated[
        str | None,
        option("FILE", "As --table scorecard --format latex, into a file.", hidden=True),
    ] = None,
    show: Annotated[bool, flag("--open", "Open the page in a browser.")] = False,
    table: Annotated[
        Literal["best", "scorecard", "latex", "markdown", "csv"] | None,
        option(
            "best|scorecard",
            "Print each method's best setting, or its scores; no page without --out.",
            "--table",
        ),
    ] = None,
    kind: Annotated[
        Literal["latex", "markdown", "csv"] | None,
        option("latex|markdown|csv", "Format of the table.", "--format", default="markdown"),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a sweep's page and tables again, also while the sweep runs.

    The folder of a sweep of several benchmarks gets one page for all of them.

    Examples:
      unlearnbench report runs/quickstart --out page.html
      unlearnbench report runs/quickstart --table best
      unlearnbench report runs/quickstart --table scorecard --format latex
    """
    console = Console()
    target = Path(out) if out else None
    if target:
        # The suffix protects results.csv and records from being written over.
        check_file(target, "the page", (".html",))
    table_to_print = _table_to_print(table, kind)
    register_plugins(plugins)
    from unlearnbench.analysis.results import Results
    from unlearnbench.report.best_table import best_table
    from unlearnbench.report.report import finish, write_across
    from unlearnbench.results.outcomes import outcome

    has_several_sweeps = not Path(folder, "records").is_dir() and any(
        Path(folder).glob("*/records")
    )
    wants_table = table_to_print is not None or bool(latex)
    if has_several_sweeps and not wants_table:
        console.print(f"page  {write_across(Path(folder), target)}")
        return
    source = sweep_folder(folder)
    results = Results.read(source)
    if table_to_print is not None:
        name, format_of_table = table_to_print
        if name == "best":
            without_result = map(outcome, results.without_result)
            console.out.write(best_table(results, format_of_table, without_result))
        else:
            text = load("dashboards", "scorecard")(results, format_of_table)
            console.out.write(_checked_scorecard(text, source))
    if latex:
        text = load("dashboards", "scorecard-latex")(results)
        write_file(Path(latex), _checked_scorecard(text, source), "the scorecard")
        console.print(f"LaTeX {latex}")
    wants_page = not wants_table or bool(out) or show
    if not wants_page:
        return
    page = finish(source, target, results).page
    console.print(f"page  {page}")
    for warning in results.warnings:
        console.warn(warning)
    if show:
        webbrowser.open(page.resolve().as_uri())


def _table_to_print(
    table: TableName | TableFormat | None, kind: TableFormat | None
) -> tuple[TableName, TableFormat] | None:
    """Return name and format of the table to print; None if no table is.

    Earlier versions had only the table of best settings, and `--table` named its format.

    Args:
        table: Value of `--table`.
        kind: Value of `--format`.

    Raises:
        typer.BadParameter: If a format is given without a table, or twice.
    """
    if table is None:
        if kind is not None:
            raise typer.BadParameter(
                "it is the format of a table; name one: --table best, or --table scorecard",
                param_hint="'--format'",
            )
        return None
    if table == "best" or table == "scorecard":
        return table, kind or "markdown"
    if kind is not None:
        raise typer.BadParameter(
            f"{table!r} is a format; name the table: --table best, or --table scorecard",
            param_hint="'--table'",
        )
    return "best", table


def _checked_scorecard(text: str, source: Path) -> str:
    """Return the text of a scorecard.

    Raises:
        RecordError: If it is empty.
    """
    if not text:
        raise RecordError(
            f"{source}: no scorecard: the benchmark has no scores, or no run was evaluated with one"
        )
    return text


@command(app, "track")
def track(
    folder: Folder,
    uri: Annotated[str | None, option("URI", "Tracking server.", default="as in the sweep")] = None,
    plugins: Plugins = None,
) -> None:
    """Log a sweep's records to MLflow again, or to another server.

    Afterwards, the store contains the numbers of the current table. Runs that are incomplete in the
    store, or have other numbers there, are replaced. All other runs stay as they are.

    Examples:
      unlearnbench track runs/quickstart
      unlearnbench track runs/quickstart --uri http://localhost:5000
    """
    register_plugins(plugins)
    source = sweep_folder(folder)
    from unlearnbench.report.sweep_tracker import replay
    from unlearnbench.results.sweep_folder import lock_folder

    # A running sweep logs its records by itself. Two commands at a time would log a record twice.
    with lock_folder(source):
        log = replay(source, uri)
    console = Console()
    total = len(log.ids)
    already = f", {total - log.logged} were there already" if total > log.logged else ""
    store = redact(log.settings.uri or log.settings.tracker)
    console.print(f"{log.logged} of {total} records logged to {store}{already}")
    if log.address and log.address.startswith("http"):
        console.print(f"page  {log.address}")


@command(app, "ui")
def ui(
    folder: Folder = "runs/quickstart",
    port: Annotated[int, option("N", "Port of the local server.", min=1, max=65535)] = 5000,
) -> None:
    """Print the address of a sweep's runs in MLflow, and serve a local store on this machine.

    Press Ctrl-C to stop the local server. If a server tracks the sweep, the command only prints its
    address.

    Examples:
      unlearnbench ui runs/quickstart
      unlearnbench ui runs/quickstart --port 8080
    """
    from unlearnbench.report.mlflow import show_in_mlflow

    show_in_mlflow(sweep_folder(folder), port, Console().print)
