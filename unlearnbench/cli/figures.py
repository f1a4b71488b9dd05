"""`unlearnbench figures …`: draw one figure, and write it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Folder, split_key, sweep_folder

Out = Annotated[str, option("FILE", "Figure to write: .svg, .png, .pdf or .html.")]

app = new_group("Write a figure: SVG, PNG, PDF or HTML.")


def _width(text: str | float) -> str | float:
    """Parse a width: a number of inches, or a name such as `column`, which the figure checks."""
    try:
        return float(text)
    except ValueError:
        return text


Split = Annotated[
    Any,  # `SplitKey`; Typer takes no union
    option("SPLIT", "Fraction or split.", "--forget", parser=split_key, default="all"),
]


@dataclass(frozen=True)
class Chosen:
    """Parts of a sweep that are drawn. None draws all."""

    methods: Annotated[
        list[str] | None, option("METHOD", "Method to draw (repeatable).", default="all")
    ] = None
    fraction: Split = None
    rate: Annotated[float | None, option("RATE", "Learning rate.", min=0, default="all")] = None


Width = Annotated[
    Any,  # `str | float`; Typer takes no union
    option("WIDTH", "column (3.25 in), text (6.75 in), or inches in print.", parser=_width),
]


@command(app, "pareto")
def draw_pareto(folder: Folder, out: Out, chosen: Chosen, width: Width = None) -> None:
    r"""Draw what is kept against what is forgotten, a panel per model and split.

    Examples:
      unlearnbench figures pareto runs/quickstart --out panels.svg
      unlearnbench figures pareto runs/quickstart --width column \
          --methods ce-u --methods npo+nll --out figure1.pdf
    """
    from unlearnbench.report.figures import pareto

    _save(pareto(sweep_folder(folder), **vars(chosen), width=width), out)


@command(app, "trajectories")
def draw_trajectories(
    folder: Folder,
    out: Out,
    chosen: Chosen,
    metrics: Annotated[
        list[str] | None, option("COLUMN", "Column of results.csv (repeatable).")
    ] = None,
    width: Width = None,
) -> None:
    r"""Draw metrics by epoch or step, a row of panels per model and split.

    Examples:
      unlearnbench figures trajectories runs/quickstart \
          --metrics model_utility --metrics rouge_forget --out curves.png
    """
    from unlearnbench.report.figures import trajectories

    figure = trajectories(sweep_folder(folder), metrics, **vars(chosen), width=width)
    _save(figure, out)


@command(app, "truth-ratios")
def draw_truth_ratios(
    folder: Folder,
    run_id: Annotated[str, argument("RUN", "Start of the run's id, as in results.csv.")],
    out: Out,
    epoch: Annotated[int | None, option("N", "Epoch.", default="the run's last")] = None,
    width: Width = None,
) -> None:
    """Draw the two distributions that Forget Quality compares, with D marked.

    Examples:
      unlearnbench figures truth-ratios runs/quickstart 5f0c --out ratios.svg
    """
    from unlearnbench.report.figures import truth_ratios

    _save(truth_ratios(sweep_folder(folder), run_id, epoch, width=width), out)


@command(app, "lasting")
def draw_lasting(
    folder: Folder,
    out: Out,
    methods: Annotated[
        list[str] | None, option("METHOD", "Method to draw (repeatable).", default="all")
    ] = None,
    fraction: Split = None,
    width: Width = None,
) -> None:
    """Draw what attacks bring back of each method's best setting.

    Examples:
      unlearnbench figures lasting runs/quickstart --width column --out f.pdf
    """
    from unlearnbench.report.figures import lasting

    figure = lasting(sweep_folder(folder), methods=methods, fraction=fraction, width=width)
    _save(figure, out)


@command(app, "pairs")
def draw_pairs(folder: Folder, out: Out, fraction: Split = None, width: Width = None) -> None:
    """Draw which of every two methods is better, beside their intervals.

    Examples:
      unlearnbench figures pairs runs/quickstart --width text --out pairs.pdf
    """
    from unlearnbench.report.figures import pairs

    _save(pairs(sweep_folder(folder), fraction=fraction, width=width), out)


@command(app, "paper")
def draw_paper(out: Out) -> None:
    """Draw the CE-U paper's figure of six panels, from its published points.

    Examples:
      unlearnbench figures paper --out ceu.svg
    """
    from unlearnbench.report.figures import paper

    _save(paper(), out)


def _save(figure: Any, out: str) -> None:
    """Write a figure in the format that the file's name ends with."""
    from unlearnbench.report.figures import save

    save(figure, Path(out))
    Console().print(f"figure  {out}")
