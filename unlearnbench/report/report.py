"""Views of a sweep's results as files: `results.csv`, `selection.json`, `report.html` and others.

The page is drawn by an entry point of the group `unlearnbench.dashboards`.
"""

from os.path import relpath as relative
from pathlib import Path

from unlearnbench.analysis.conclusion import CONCLUSION_FILE, conclusions_json
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.selection import SELECTION_FILE, selection_json
from unlearnbench.analysis.tuning import to_csv as tuning_csv
from unlearnbench.analysis.tuning import tuned
from unlearnbench.api.registry import load
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.errors import RecordError
from unlearnbench.base.outputs import write_file
from unlearnbench.results.stored_table import write_table
from unlearnbench.results.table import ATTACKS, to_csv

TUNING = "tuning.csv"
REPEAT = "no record is lost: `unlearnbench report FOLDER` writes page and table again"
"""Advice if either cannot be written."""


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write page and tables of a sweep's folder; return the page's path.

    out  path of the page (default: `report.html` in `folder`, with `results.csv`); the table is
         written beside it as `.csv`, and that of attacks, if there were any, as `.attacks.csv`
         (default: `attacks.csv`)
    """
    results = Results.read(folder)
    for line in results.unobserved():
        warn_later(line)
    return publish(results, folder, out)


def write_across(folder: Path, out: Path | None = None) -> Path:
    """Write the page of several benchmarks, whose sweeps are folders in `folder`.

    Raises: RecordError where there is no sweep.
    """
    folders = [records.parent for records in sorted(folder.glob("*/records"))]
    sweeps = {sweep.name: Results.read(sweep) for sweep in folders}
    if not sweeps:
        raise RecordError(f"{folder}: no sweep in it to report; give a folder of sweeps")
    page = folder / "report.html" if out is None else out
    pages = {name: relative(folder / name / "report.html", page.parent) for name in sweeps}
    text = load("dashboards", "across")(folder.resolve().name, sweeps, pages)
    write_file(page, text, "the page", REPEAT)
    return page


def publish(results: Results, folder: Path, out: Path | None = None) -> Path:
    """Write results as `write_report` does."""
    page = folder / "report.html" if out is None else out
    table_file = folder / "results.csv" if out is None else out.with_suffix(".csv")
    write_file(table_file, to_csv(results.rows), "the table", REPEAT)
    choices, headline = tuned(results.selection), results.headline
    columns = headline.kept.column, headline.forgotten.column
    tables = {
        ATTACKS: to_csv(results.attacked) if results.attacked else "",
        TUNING: tuning_csv(choices, columns) if choices else "",
    }
    if out is None:
        selection = results.selection
        tables[SELECTION_FILE] = "" if selection is None else selection_json(selection)
    for name, text in tables.items():
        file = folder / name if out is None else out.with_suffix(f".{name}")
        if text:
            what = "the choices" if name == SELECTION_FILE else "the table"
            write_file(file, text, what, REPEAT)
        elif out is None and not (name == SELECTION_FILE and results.needs_stored_selection):
            file.unlink(missing_ok=True)  # of an earlier plan
    write_file(page, load("dashboards", "page")(results), "the page", REPEAT)
    if out is None:
        text = conclusions_json(results.conclusions)
        write_file(folder / CONCLUSION_FILE, text, "the conclusions", REPEAT)
        write_table(results.table, folder)
    return page
