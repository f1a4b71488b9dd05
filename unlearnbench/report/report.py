"""Views of a sweep's results as files: `results.csv`, `selection.json`, `report.html` and others.

The page is drawn by an entry point of the group `unlearnbench.dashboards`.
"""

from dataclasses import dataclass
from os.path import relpath as relative
from pathlib import Path

from unlearnbench.analysis.conclusion import CONCLUSION_FILE, conclusions_json
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.selection import SELECTION_FILE, selection_json
from unlearnbench.analysis.tuning import to_csv as tuning_csv
from unlearnbench.analysis.tuning import tuned
from unlearnbench.api.registry import load, names
from unlearnbench.base.errors import RecordError
from unlearnbench.base.outputs import write_file
from unlearnbench.results.stored_table import write_table
from unlearnbench.results.table import ATTACKS, to_csv

TABLE = "results.csv"
TUNING = "tuning.csv"
PICTURE = "tradeoff.svg"
"""The picture of utility against forgetting, for places that show no scripts."""
INTERACTIVE = "tradeoff.html"
"""The same figure with hover texts, which needs no network."""
FIGURES = {PICTURE: "tradeoff-picture", INTERACTIVE: "tradeoff-page"}
"""Figures of a sweep's folder, and the plug-ins that draw them."""
REPEAT = "no record is lost: `unlearnbench report FOLDER` writes page and table again"
"""Advice if a page or a table cannot be written."""


@dataclass(frozen=True)
class Report:
    """The files of a sweep's end, and what they show."""

    page: Path
    results: Results


def finish(folder: Path, out: Path | None = None, results: Results | None = None) -> Report:
    """Write every file that shows the results of a sweep, all from one `Results`.

    A sweep does this at its end, and the command `report` at any time, so that both give the same
    files. The folder gets `table.json`, `results.csv`, `attacks.csv` after attacks,
    `selection.json` and `tuning.csv` after a choice, `conclusion.json`, `report.html`, and the
    figure of utility against forgetting as `tradeoff.svg` and `tradeoff.html`.

    Args:
        folder: The sweep's folder.
        out: Page to write instead. The tables are then written beside it, and nothing else:
            `page.csv`, `page.attacks.csv`, `page.tuning.csv`.
        results: Of the folder, if they are already read.

    Raises:
        RecordError: If the folder has no record, or if its records do not compare.
        OutputError: If a file cannot be written.
    """
    if results is None:
        results = Results.read(folder)
    return Report(write_views(results, folder, out), results)


def write_across(folder: Path, out: Path | None = None) -> Path:
    """Write the page of several benchmarks, whose sweeps are folders in `folder`.

    Returns:
        Path of the page.

    Raises:
        RecordError: If there is no sweep in the folder.
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


def write_views(results: Results, folder: Path, out: Path | None = None) -> Path:
    """Write results as `finish` does, and return the path of the page."""
    tables = _tables(results)
    if out is not None:
        for name, text in tables.items():
            suffix = ".csv" if name == TABLE else f".{name}"
            if text:
                write_file(out.with_suffix(suffix), text, "the table", REPEAT)
        write_file(out, load("dashboards", "page")(results), "the page", REPEAT)
        return out

    write_table(results.table, folder)
    for name, text in tables.items():
        _replace(folder / name, text, "the table")
    if results.selection is not None:
        _replace(folder / SELECTION_FILE, selection_json(results.selection), "the choices")
    elif not results.needs_stored_selection:
        _replace(folder / SELECTION_FILE, "", "the choices")
    page = folder / "report.html"
    write_file(page, load("dashboards", "page")(results), "the page", REPEAT)
    for name, plugin in FIGURES.items():
        # A checkout that was updated offers a new plug-in only after the next `pip install`.
        if plugin in names("dashboards"):
            write_file(folder / name, load("dashboards", plugin)(results), "the figure", REPEAT)
    conclusions = conclusions_json(results.conclusions)
    write_file(folder / CONCLUSION_FILE, conclusions, "the conclusions", REPEAT)
    return page


def _tables(results: Results) -> dict[str, str]:
    """Return the CSV files by name. The text of a file that the sweep does not have is empty."""
    attacks = to_csv(results.attacked) if results.attacked else ""
    tuning = ""
    choices = tuned(results.selection)
    if choices:
        columns = results.headline.kept.column, results.headline.forgotten.column
        tuning = tuning_csv(choices, columns, results.unit)
    return {TABLE: to_csv(results.rows), ATTACKS: attacks, TUNING: tuning}


def _replace(file: Path, text: str, subject: str) -> None:
    """Write a file. Without a text, remove the file of an earlier plan."""
    if text:
        write_file(file, text, subject, REPEAT)
    else:
        file.unlink(missing_ok=True)
