"""`unlearnbench report`, `track` and `ui`: a sweep's page and table, and its pages in MLflow."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unlearnbench.api.registry import load
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.dry_run import DryRun, print_dry_run
from unlearnbench.cli.options import (
    Folder,
    Json,
    Layout,
    Plugins,
    above_zero,
    complete_record,
    record_in,
    register_plugins,
    sweep_folder,
)
from unlearnbench.console import Console
from unlearnbench.errors import RecordError
from unlearnbench.files.outputs import Output, write_file
from unlearnbench.runtime.signals import handle_sigterm

if TYPE_CHECKING:
    from unlearnbench.reporting.report import Report

RESULTS = "Results"
"""Heading of the commands that read a sweep."""
PAGE = Output("out", "the page", suffixes=(".html",), beside=(".csv", ".attacks.csv"))
LATEX = Output("latex", "the scorecard", suffixes=(".tex",))

app, mlflow = new_group(), new_group()


@command(app, "report", writes=[PAGE, LATEX], panel=RESULTS)
def report(
    folder: Folder,
    out: Annotated[
        str | None, option("FILE", "Page to write.", default="FOLDER/report.html")
    ] = None,
    latex: Annotated[
        str | None, option("FILE", "Write the scorecard as a LaTeX table, too; ends in .tex.")
    ] = None,
    show: Annotated[bool, flag("--open", "Open the page in a browser.")] = False,
    watched: Annotated[
        bool, flag("--watch", "Serve the page, and draw it again as records arrive.")
    ] = False,
    port: Annotated[
        int | None,
        option("N", "Port of a watched page.", min=1, max=65535, default="one that is free"),
    ] = None,
    every: Annotated[
        float, option("SECONDS", "Time between two looks for new records.", parser=above_zero)
    ] = 5.0,
    dry_run: DryRun = False,
    best: Annotated[
        Literal["latex", "markdown", "csv"] | None,
        typer.Option("--table", help="Print the best setting of each method, and write no page."),
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Write a sweep's page and tables again, or keep them up to date while it runs.

    A watched page is served on 127.0.0.1 only; it reloads by itself and keeps your place. On
    another machine: ssh -L 8080:127.0.0.1:8080 MACHINE, then open it here.

    Examples:
      unlearnbench report runs/quickstart --out page.html
      unlearnbench report runs/quickstart --latex scorecard.tex
      unlearnbench report runs/quickstart --watch          while the sweep runs elsewhere
      unlearnbench report runs/quickstart --watch --port 8080 --open
      unlearnbench report runs/quickstart --table latex > table.tex
    """
    place = Path(out) if out else None
    console = Console()
    if dry_run:
        page = place or sweep_folder(folder) / "report.html"
        table = page.with_suffix(".csv") if place else page.with_name("results.csv")
        print_dry_run(console, page, table, *([Path(latex)] if latex else []))
        return
    register_plugins(plugins)
    from unlearnbench.reporting.report import build_report, publish

    if best:
        if out or watched or show or latex:
            raise RecordError("--table prints a table and writes no page: give it alone")
        from unlearnbench.reporting.best_table import best_table

        console.out.write(best_table(build_report(sweep_folder(folder)).rows, best))
        return
    if watched:
        from unlearnbench.reporting.watch import watch

        found = watch(Path(folder), place, console, port=port, every=every, show=show)
        console.print(f"page  {found}" if found else "no page: nothing was recorded")
        if found and latex is not None:
            _write_latex(build_report(folder), Path(latex), console)
        return

    source = sweep_folder(folder)
    made = build_report(source)
    page = publish(made, source, place)
    console.print(f"page  {page}")
    if latex is not None:
        _write_latex(made, Path(latex), console)
    for line in made.warnings:
        console.warn(line)
    if show:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            console.note("no browser could be started here: open the page in one")


def _write_latex(made: Report, path: Path, console: Console) -> None:
    """Write the scorecard of a report as LaTeX."""
    text: str = load("dashboards", "scorecard-latex")(made)
    if not text:
        raise RecordError(
            f"{path}: not written: there is no scorecard, which needs runs of a benchmark with "
            "scores; the table of best settings is copied as LaTeX from the page"
        )
    write_file(path, text, "the scorecard")
    console.print(f"LaTeX {path}")


@command(app, "export-log", writes=[Output("out", "the evaluation log")], panel=RESULTS)
def export_log(
    folder: Folder,
    record_id: Annotated[
        str,
        argument("RECORD", "Start of its run_id in results.csv.", autocompletion=complete_record),
    ],
    out: Annotated[str, option("FILE", "Log to write; gzipped if its name ends in .gz.")],
    epoch: Annotated[int | None, option("N", "Epoch.", default="the last one evaluated")] = None,
    layout: Layout = "tofu",
) -> None:
    r"""Write an evaluation in a sweep's records as a log of TOFU or open-unlearning.

    A record is a run, or the fine-tuned or retain model, which have epoch 0.

    Examples:
      unlearnbench export-log runs/quickstart 5f0c --out eval_log_aggregated.json
      unlearnbench export-log runs/mine 8a1e --epoch 5 --layout open-unlearning \
          --out TOFU_EVAL.json
    """
    from unlearnbench.evaluation.tofu_log import write_log
    from unlearnbench.results.epoch_metrics import references_of
    from unlearnbench.results.records import evaluated_epoch, read_records

    place = sweep_folder(folder)
    records = read_records(place)
    record = record_in(records, record_id, place)
    chosen = evaluated_epoch(record, epoch)
    compared = None
    if layout == "open-unlearning":  # which has metrics relative to the retain model
        retain = references_of(records).get(("retain", record.model, record.forget_fraction))
        compared = None if retain is None else retain.evaluations[evaluated_epoch(retain)]
    write_log(record.evaluations[chosen], Path(out), layout=layout, retain=compared)
    Console().print(f"log  {out}  {record.method}, epoch {chosen}")


@command(mlflow, "track", panel=RESULTS)
def track(
    folder: Folder,
    uri: Annotated[str | None, option("URI", "Tracking server.", default="as in the sweep")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Log a sweep's records to MLflow again, or to another server.

    Records that are there already stay as they are; those that are there in part are logged again.

    Examples:
      unlearnbench track runs/quickstart
      unlearnbench track runs/quickstart --uri http://localhost:5000 --json
    """
    place = sweep_folder(folder)
    if dry_run:
        from unlearnbench.runtime.redaction import redact
        from unlearnbench.tracking.mlflow.connection import store_uri
        from unlearnbench.tracking.replay import sweep_config

        there = redact(uri or store_uri(sweep_config(place).tracking, place))
        records = sum(1 for _ in (place / "records").glob("[!.]*/record.json"))
        Console().print(f"would log to {there} those of {records} records that it does not have")
        return
    from unlearnbench.results.sweep_folder import lock_folder
    from unlearnbench.tracking import replay

    # A sweep at work logs its records by itself: two at a time would log one twice.
    with lock_folder(place):
        done = replay(place, uri)
    console = Console()
    if as_json:
        console.print_json(asdict(done))
        return
    before = done.records - done.logged
    already = f", {before} were there already" if before else ""
    console.print(f"{done.logged} of {done.records} records logged to {done.uri}{already}")
    if done.address:
        console.print(f"page  {done.address}")


@command(mlflow, "ui", panel=RESULTS)
def ui(
    folder: Folder = "runs/quickstart",
    port: Annotated[
        int | None, option("N", "Port.", min=1, default="the first free one from 5000")
    ] = None,
    no_browser: Annotated[bool, flag("--no-browser", "Print the address only.")] = False,
) -> None:
    """Open MLflow's pages of a sweep, on this machine only.

    Prints the address; Ctrl-C ends it. A sweep that a server tracks is opened there.

    Examples:
      unlearnbench ui runs/quickstart
      unlearnbench ui runs/quickstart --port 8080 --no-browser
    """
    place = sweep_folder(folder)
    from unlearnbench.tracking import open_ui

    with handle_sigterm():
        open_ui(place, port=port, browser=not no_browser, show=Console().print)
