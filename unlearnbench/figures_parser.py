"""What can be said after `unlearnbench figures`."""

from __future__ import annotations

import argparse

from unlearnbench import figuring
from unlearnbench.arguments import Subparsers, command
from unlearnbench.outputs import Output

FIGURE = Output("out", "the figure")


def add_figures(subparsers: Subparsers) -> None:
    """`figures pareto`, `trajectories`, `truth-ratios` and `paper`."""
    figures = subparsers.add_parser(
        "figures", help="write a figure: SVG, PNG, PDF or HTML", allow_abbrev=False
    )
    verbs = figures.add_subparsers(dest="verb", metavar="WHICH", required=True)
    pareto = command(
        verbs,
        "pareto",
        figuring.draw_pareto,
        "Model Utility against log10 Forget Quality, a panel per model and forget fraction",
        "example:\n  unlearnbench figures pareto runs/quickstart --out panels.svg",
        writes=[FIGURE],
    )
    _add_folder(pareto)
    curves = command(
        verbs,
        "trajectories",
        figuring.draw_trajectories,
        "metrics by epoch, a row of panels per model and forget fraction",
        "example:\n  unlearnbench figures trajectories runs/quickstart \\\n"
        "      --metrics model_utility rouge_forget --out curves.png",
        writes=[FIGURE],
    )
    _add_folder(curves)
    curves.add_argument(
        "--metrics", nargs="+", metavar="COLUMN", help="columns of results.csv, one a panel"
    )
    ratios = command(
        verbs,
        "truth-ratios",
        figuring.draw_truth_ratios,
        "the two distributions that Forget Quality compares, with D marked",
        "example:\n  unlearnbench figures truth-ratios runs/quickstart 5f0c --out ratios.svg",
        writes=[FIGURE],
    )
    _add_folder(ratios)
    ratios.add_argument("run_id", metavar="RUN", help="start of the run's id, as in results.csv")
    ratios.add_argument("--epoch", type=int, metavar="N", help="default: the run's last")
    paper = command(
        verbs,
        "paper",
        figuring.draw_paper,
        "the CE-U paper's figure of six panels, from its published points",
        "example:\n  unlearnbench figures paper --out ceu.svg",
        writes=[FIGURE],
    )
    for parser in (pareto, curves, ratios, paper):
        parser.add_argument(
            "--out",
            required=True,
            metavar="FILE",
            help="its name ends in .svg, .png, .pdf or .html",
        )


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a sweep's folder")
