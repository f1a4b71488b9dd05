"""`unlearnbench report`, `track` and `ui`: a sweep's page and table, and its pages in MLflow."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unlearnbench.api.registry import load
from unlearnbench.base.console import Console
from unlearnbench.base.errors import RecordError
from unlearnbench.base.outputs import check_file, write_file
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import (
    Folder,
    Json,
    Plugins,
    register_plugins,
    sweep_folder,
)

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results

app = new_group()


@command(app, "report")
def report(
    folder: Folder,
    out: Annotated[
        str | None, option("FILE", "Page to write.", default="FOLDER/report.html")
    ] = None,
    latex: Annotated[
        str | None, option("FILE", "Write the scorecard as LaTeX; no page without --out.")
    ] = None,
    show: Annotated[bool, flag("--open", "Open the page in a browser.")] = False,
    best: Annotated[
        Literal["latex", "markdown", "csv"] | None,
        typer.Option("--table", help="Print the best setting of each method, and write no page."),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a sweep's page and tables again, also while it runs.

    Examples:
      unlearnbench report runs/quickstart --out page.html
      unlearnbench report runs/quickstart --latex scorecard.tex
      unlearnbench report runs/quickstart --table latex > table.tex
    """
    target, console = Path(out) if out else None, Console()
    if target:
        check_file(target, "the page", (".html",))  # not results.csv, nor a record
    register_plugins(plugins)
    from unlearnbench.analysis.results import Results
    from unlearnbench.report.report import publish

    if best:
        if out or show or latex:
            raise RecordError("--table prints a table and writes no page: give it alone")
        from unlearnbench.report.best_table import best_table
        from unlearnbench.results.outcomes import outcome

        report = Results.read(sweep_folder(folder))
        console.out.write(best_table(report.rows, best, map(outcome, report.without_result)))
        return
    source = sweep_folder(folder)
    made = Results.read(source)
    if latex is not None:
        _write_latex(made, Path(latex), console)
        if not (out or show):
            return
    page = publish(made, source, target)
    console.print(f"page  {page}")
    for line in made.warnings:
        console.warn(line)
    if show:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            console.note("no browser could be started here: open the page in one")


def _write_latex(made: Results, path: Path, console: Console) -> None:
    """Write the scorecard of a report as LaTeX."""
    text: str = load("dashboards", "scorecard-latex")(made)
    if not text:
        raise RecordError(
            f"{path}: not written: there is no scorecard, which needs runs of a benchmark with "
            "scores; the table of best settings is copied as LaTeX from the page"
        )
    write_file(path, text, "the scorecard")
    console.print(f"LaTeX {path}")


@command(app, "track")
def track(
    folder: Folder,
    uri: Annotated[str | None, option("URI", "Tracking server.", default="as in the sweep")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Log a sweep's records to MLflow again, or to another server.

    Records that are there already stay as they are; those that are there in part are logged again.

    Examples:
      unlearnbench track runs/quickstart
      unlearnbench track runs/quickstart --uri http://localhost:5000 --json
    """
    register_plugins(plugins)
    source = sweep_folder(folder)
    from unlearnbench.report.sweep_tracker import replay
    from unlearnbench.results.sweep_folder import lock_folder

    # A sweep at work logs its records by itself: two at a time would log one twice.
    with lock_folder(source):
        done = replay(source, uri)
    console = Console()
    if as_json:
        console.print_json(asdict(done))
        return
    before = done.records - done.logged
    already = f", {before} were there already" if before else ""
    console.print(f"{done.logged} of {done.records} records logged to {done.store}{already}")
    if done.address:
        console.print(f"page  {done.address}")


@command(app, "ui")
def ui(
    folder: Folder = "runs/quickstart",
    port: Annotated[int, option("N", "Port.", min=1, max=65535)] = 5000,
) -> None:
    """Print the address of a sweep's runs in MLflow, and serve a local store on this machine.

    Ctrl-C ends it. A sweep that a server tracks is there already.

    Examples:
      unlearnbench ui runs/quickstart
      unlearnbench ui runs/quickstart --port 8080
    """
    from unlearnbench.report.links import show_in_mlflow

    show_in_mlflow(sweep_folder(folder), port, Console().print)
