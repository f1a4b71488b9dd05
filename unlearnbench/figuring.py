"""What `unlearnbench figures …` does: draws one figure, and writes it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from unlearnbench.commands import sweep_folder
from unlearnbench.console import Console
from unlearnbench.errors import RecordError

_MOST = 25
"""Runs that a message lists."""


def draw_pareto(args: argparse.Namespace) -> int:
    """`unlearnbench figures pareto FOLDER`."""
    from unlearnbench.figures import pareto
    from unlearnbench.report import build_report

    return _save(pareto(build_report(sweep_folder(args.folder)).rows), args)


def draw_trajectories(args: argparse.Namespace) -> int:
    """`unlearnbench figures trajectories FOLDER`."""
    from unlearnbench.figures import trajectories
    from unlearnbench.report import build_report

    rows = build_report(sweep_folder(args.folder)).rows
    return _save(trajectories(rows, args.metrics), args)


def draw_truth_ratios(args: argparse.Namespace) -> int:
    """`unlearnbench figures truth-ratios FOLDER RUN`."""
    from unlearnbench.figures import truth_ratios
    from unlearnbench.records import read_records

    folder = sweep_folder(args.folder)
    runs = [r for r in read_records(folder) if r.kind == "run"]
    chosen = [r for r in runs if r.id.startswith(args.run_id)]
    if len(chosen) != 1:
        many = "more than one run" if chosen else "no run"
        told = [f"  {r.id}  {r.method}, rate {r.learning_rate}, seed {r.seed}" for r in runs]
        more = [f"  and {len(told) - _MOST} more, all in results.csv"] if len(told) > _MOST else []
        listed = "\n".join(told[:_MOST] + more)
        raise RecordError(f"{folder}: {args.run_id!r} begins {many}'s id; there are\n{listed}")
    return _save(truth_ratios(chosen[0], epoch=args.epoch), args)


def draw_paper(args: argparse.Namespace) -> int:
    """`unlearnbench figures paper`."""
    from unlearnbench.figures import paper

    return _save(paper(), args)


def _save(figure: Any, args: argparse.Namespace) -> int:
    from unlearnbench.figures import save

    save(figure, Path(args.out))
    Console().print(f"figure  {args.out}")
    return 0
