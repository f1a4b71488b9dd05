"""`unlearnbench figures …`: draw one figure, and write it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Folder, above_zero, record_in, split_key, sweep_folder
from unlearnbench.console import Console
from unlearnbench.files.outputs import Output

FIGURE = Output("out", "the figure")

Out = Annotated[str, option("FILE", "Its name ends in .svg, .png, .pdf or .html.")]

app = new_group("Write a figure: SVG, PNG, PDF or HTML.")


Methods = Annotated[
    list[str] | None, option("METHOD...", "Methods to draw.", default="all of the sweep")
]
Rate = Annotated[
    float | None, option("RATE", "Learning rate to draw.", parser=above_zero, default="all")
]
Split = Annotated[
    Any,  # typer takes no union
    option("SPLIT", "Fraction to forget, or a split's name.", parser=split_key, default="all"),
]
Width = Annotated[
    str | None,
    option(
        "WIDTH", "column (3.25 in), text (6.75 in), or inches in print.", default="for a screen"
    ),
]
FontSize = Annotated[
    float | None,
    option("POINTS", "Font size.", parser=above_zero, default="9, in a column 8"),
]
NoLegend = Annotated[bool, flag("--no-legend", "Draw no legend.")]
Title = Annotated[
    str | None, option("TEXT", "Title.", default="the numbers drawn; at a width in print none")
]


@command(app, "pareto", writes=[FIGURE])
def draw_pareto(
    folder: Folder,
    out: Out,
    methods: Methods = None,
    forget: Split = None,
    rate: Rate = None,
    width: Width = None,
    font_size: FontSize = None,
    no_legend: NoLegend = False,
    title: Title = None,
) -> None:
    r"""Draw what is kept against what is forgotten, a panel per model and split.

    Examples:
      unlearnbench figures pareto runs/quickstart --out panels.svg
      unlearnbench figures pareto runs/quickstart --methods ce-u npo+nll --width column \
          --font-size 8 --no-legend --out figure1.pdf
    """
    from unlearnbench.figures import pareto

    figure = pareto(
        sweep_folder(folder),
        **{"methods": methods, "fraction": forget, "rate": rate, "title": title},
        **_print_options(width, font_size, no_legend),
    )
    _save(figure, out)


@command(app, "trajectories", writes=[FIGURE])
def draw_trajectories(
    folder: Folder,
    out: Out,
    metrics: Annotated[
        list[str] | None, option("COLUMN...", "Columns of results.csv, one a panel.")
    ] = None,
    methods: Methods = None,
    forget: Split = None,
    rate: Rate = None,
    width: Width = None,
    font_size: FontSize = None,
    no_legend: NoLegend = False,
    title: Title = None,
) -> None:
    r"""Draw metrics by epoch, a row of panels per model and split.

    Examples:
      unlearnbench figures trajectories runs/quickstart \
          --metrics model_utility rouge_forget --out curves.png
    """
    from unlearnbench.figures import trajectories

    figure = trajectories(
        sweep_folder(folder),
        metrics,
        **{"methods": methods, "fraction": forget, "rate": rate, "title": title},
        **_print_options(width, font_size, no_legend),
    )
    _save(figure, out)


@command(app, "truth-ratios", writes=[FIGURE])
def draw_truth_ratios(
    folder: Folder,
    run_id: Annotated[str, argument("RUN", "Start of the run's id, as in results.csv.")],
    out: Out,
    epoch: Annotated[int | None, option("N", "Epoch.", default="the run's last")] = None,
    width: Width = None,
    font_size: FontSize = None,
    no_legend: NoLegend = False,
    title: Title = None,
) -> None:
    """Draw the two distributions that Forget Quality compares, with D marked.

    Examples:
      unlearnbench figures truth-ratios runs/quickstart 5f0c --out ratios.svg
    """
    from unlearnbench.figures import truth_ratios
    from unlearnbench.results.records import read_records

    place = sweep_folder(folder)
    runs = [r for r in read_records(place) if r.kind == "run"]
    record = record_in(runs, run_id, place)
    how = _print_options(width, font_size, no_legend)
    _save(truth_ratios(record, epoch=epoch, title=title, **how), out)


def _print_options(width: str | None, font_size: float | None, no_legend: bool) -> dict[str, Any]:
    inches: Any = width
    if width is not None:
        with suppress(ValueError):
            inches = float(width)
    return {"width": inches, "font_size": font_size, "legend": not no_legend}


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
