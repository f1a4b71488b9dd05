"""`unlearnbench figures …`: draw one figure, and write it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Folder, record_in, sweep_folder
from unlearnbench.console import Console
from unlearnbench.files.outputs import Output

FIGURE = Output("out", "the figure")

Out = Annotated[str, option("FILE", "Its name ends in .svg, .png, .pdf or .html.")]

app = new_group("Write a figure: SVG, PNG, PDF or HTML.")


@command(app, "pareto", writes=[FIGURE])
def draw_pareto(folder: Folder, out: Out) -> None:
    """Draw what is kept against what is forgotten, a panel per model and split.

    Examples:
      unlearnbench figures pareto runs/quickstart --out panels.svg
    """
    from unlearnbench.figures import pareto
    from unlearnbench.reporting.report import build_report

    _save(pareto(build_report(sweep_folder(folder)).rows), out)


@command(app, "trajectories", writes=[FIGURE])
def draw_trajectories(
    folder: Folder,
    out: Out,
    metrics: Annotated[
        list[str] | None, option("COLUMN...", "Columns of results.csv, one a panel.")
    ] = None,
) -> None:
    r"""Draw metrics by epoch, a row of panels per model and split.

    Examples:
      unlearnbench figures trajectories runs/quickstart \
          --metrics model_utility rouge_forget --out curves.png
    """
    from unlearnbench.figures import trajectories
    from unlearnbench.reporting.report import build_report

    _save(trajectories(build_report(sweep_folder(folder)).rows, metrics), out)


@command(app, "truth-ratios", writes=[FIGURE])
def draw_truth_ratios(
    folder: Folder,
    run_id: Annotated[str, argument("RUN", "Start of the run's id, as in results.csv.")],
    out: Out,
    epoch: Annotated[int | None, option("N", "Epoch.", default="the run's last")] = None,
) -> None:
    """Draw the two distributions that Forget Quality compares, with D marked.

    Examples:
      unlearnbench figures truth-ratios runs/quickstart 5f0c --out ratios.svg
    """
    from unlearnbench.figures import truth_ratios
    from unlearnbench.results.records import read_records

    place = sweep_folder(folder)
    runs = [r for r in read_records(place) if r.kind == "run"]
    _save(truth_ratios(record_in(runs, run_id, place), epoch=epoch), out)


@command(app, "paper", writes=[FIGURE])
def draw_paper(out: Out) -> None:
    """Draw the CE-U paper's figure of six panels, from its published points.

    Examples:
      unlearnbench figures paper --out ceu.svg
    """
    from unlearnbench.figures import paper

    _save(paper(), out)


def _save(figure: Any, out: str) -> None:
    from unlearnbench.figures import save

    save(figure, Path(out))
    Console().print(f"figure  {out}")
