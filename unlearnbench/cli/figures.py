"""`unlearnbench figures …`: draw one figure, and write it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Folder, record_in, split_key, sweep_folder

Out = Annotated[str, option("FILE", "Its name ends in .svg, .png, .pdf or .html.")]

app = new_group("Write a figure: SVG, PNG, PDF or HTML.")


def _inches(text: str | float) -> str | float:
    with suppress(ValueError):
        return float(text)
    return text


@dataclass(frozen=True)
class Chosen:
    """Parts of a sweep that are drawn."""

    methods: Annotated[
        list[str] | None, option("METHOD", "Method to draw (repeatable).", default="all")
    ] = None
    fraction: Annotated[
        Any,  # typer takes no union
        option("SPLIT", "Fraction or split.", "--forget", parser=split_key, default="all"),
    ] = None
    rate: Annotated[float | None, option("RATE", "Learning rate.", min=0, default="all")] = None


@dataclass(frozen=True)
class Look:
    """How a figure is drawn."""

    width: Annotated[
        Any,
        option("WIDTH", "column (3.25 in), text (6.75 in), or inches in print.", parser=_inches),
    ] = None
    font_size: Annotated[float | None, option("POINTS", "Font size.", min=1)] = None
    no_legend: Annotated[bool, flag("--no-legend", "Draw no legend.")] = False
    title: Annotated[str | None, option("TEXT", "Title.")] = None

    def settings(self) -> dict[str, Any]:
        """Arguments of the functions of `unlearnbench.report.figures`."""
        return {
            **{"width": self.width, "font_size": self.font_size},
            **{"legend": not self.no_legend, "title": self.title},
        }


@command(app, "pareto")
def draw_pareto(folder: Folder, out: Out, chosen: Chosen, look: Look) -> None:
    r"""Draw what is kept against what is forgotten, a panel per model and split.

    Examples:
      unlearnbench figures pareto runs/quickstart --out panels.svg
      unlearnbench figures pareto runs/quickstart --methods ce-u --methods npo+nll \
          --width column --font-size 8 --no-legend --out figure1.pdf
    """
    from unlearnbench.report.figures import pareto

    _save(pareto(sweep_folder(folder), **vars(chosen), **look.settings()), out)


@command(app, "trajectories")
def draw_trajectories(
    folder: Folder,
    out: Out,
    chosen: Chosen,
    look: Look,
    metrics: Annotated[
        list[str] | None, option("COLUMN", "Column of results.csv (repeatable).")
    ] = None,
) -> None:
    r"""Draw metrics by epoch, a row of panels per model and split.

    Examples:
      unlearnbench figures trajectories runs/quickstart \
          --metrics model_utility --metrics rouge_forget --out curves.png
    """
    from unlearnbench.report.figures import trajectories

    figure = trajectories(sweep_folder(folder), metrics, **vars(chosen), **look.settings())
    _save(figure, out)


@command(app, "truth-ratios")
def draw_truth_ratios(
    folder: Folder,
    run_id: Annotated[str, argument("RUN", "Start of the run's id, as in results.csv.")],
    out: Out,
    look: Look,
    epoch: Annotated[int | None, option("N", "Epoch.", default="the run's last")] = None,
) -> None:
    """Draw the two distributions that Forget Quality compares, with D marked.

    Examples:
      unlearnbench figures truth-ratios runs/quickstart 5f0c --out ratios.svg
    """
    from unlearnbench.report.figures import truth_ratios
    from unlearnbench.results.records import read_records

    sweep = sweep_folder(folder)
    runs = [r for r in read_records(sweep) if r.kind == "run"]
    record = record_in(runs, run_id, sweep)
    _save(truth_ratios(record, epoch=epoch, **look.settings()), out)


@command(app, "paper")
def draw_paper(out: Out) -> None:
    """Draw the CE-U paper's figure of six panels, from its published points.

    Examples:
      unlearnbench figures paper --out ceu.svg
    """
    from unlearnbench.report.figures import paper

    _save(paper(), out)


def _save(figure: Any, out: str) -> None:
    from unlearnbench.report.figures import save

    save(figure, Path(out))
    Console().print(f"figure  {out}")
