"""A sweep's figures as files, for whoever looks at its parent run and not into the page."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from unlearnbench.registry import load, names
from unlearnbench.report import Report

FIGURES = ("pareto", "trajectories")
"""Of the installed dashboards: those that draw a Plotly figure from a table alone."""


@contextmanager
def figures(report: Report) -> Generator[list[Path], None, None]:
    """Pages with a figure each, for the time of the `with`.

    Each has Plotly in it: MLflow shows it in a frame that may load nothing, and an image would
    need a browser here.
    """
    with TemporaryDirectory(prefix="unlearnbench-") as folder:
        yield list(_drawn(report, Path(folder)))


def _drawn(report: Report, folder: Path) -> Iterator[Path]:
    if not any(row.kind == "run" for row in report.rows):
        return
    for name in FIGURES:
        if name not in names("dashboards"):
            continue
        path = folder / f"{name}.html"
        figure = load("dashboards", name)(report.rows)
        figure.update_layout(width=None)  # as wide as the frame
        page = figure.to_html(include_plotlyjs=True, config={"responsive": True})
        path.write_text(page, encoding="utf-8")
        yield path
