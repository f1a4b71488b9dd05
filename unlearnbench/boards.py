"""What `leaderboard export`, `merge` and `show` do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench.commands import SOME_FAILED, sweep_folder
from unlearnbench.console import Console
from unlearnbench.errors import RecordError

if TYPE_CHECKING:
    from unlearnbench.leaderboard.merge import Board, Refusal
    from unlearnbench.ranking import Best
    from unlearnbench.table import Row


def export(args: argparse.Namespace) -> int:
    """`unlearnbench leaderboard export FOLDER…`."""
    from unlearnbench.leaderboard.board import export as exported
    from unlearnbench.leaderboard.merge import Refusal, merge

    left: list[Refusal] = []

    def lines() -> Iterator[tuple[str, str]]:
        for folder in args.folders:
            for one in exported(sweep_folder(folder)):
                if one.why_not:
                    left.append(Refusal(one.place, one.id, one.why_not))
                else:
                    yield one.place, one.line

    board = merge(lines())
    return _written(board, (*left, *board.refused), args)


def merge(args: argparse.Namespace) -> int:
    """`unlearnbench leaderboard merge FILE…`; 1 where lines were refused."""
    board = _read(args.files)
    return _written(board, board.refused, args)


def show(args: argparse.Namespace) -> int:
    """`unlearnbench leaderboard show FILE…`; refuses as `merge` does."""
    from unlearnbench.leaderboard.board import records_of, tables
    from unlearnbench.ranking import best_per_method

    board, console = _read(args.files), Console()
    _tell(board.refused, console)
    rows = tables(board.entries)
    best = {profile: best_per_method(found) for profile, found in rows.items()}
    if args.page:
        from unlearnbench.report import make_report, publish

        report = make_report(
            records_of(board.entries),
            name="leaderboard",
            description="Records that several sweeps have put together.",
        )
        console.note(f"page  {publish(report, Path(), Path(args.page))}")
    if args.json:
        found = {profile: [_best_json(one) for one in many] for profile, many in best.items()}
        refused = [asdict(one) for one in board.refused]
        console.print_json({"best": found, "lines": len(board.lines), "refused": refused})
    else:
        for profile, many in best.items():
            _print_best(profile, many, rows[profile], console)
    return SOME_FAILED if board.refused else 0


def _read(files: list[str]) -> Board:
    from unlearnbench.leaderboard.board import read_lines
    from unlearnbench.leaderboard.merge import merge

    board = merge(line for file in files for line in read_lines(Path(file)))
    if not board.lines:
        _tell(board.refused, Console())
        raise RecordError(f"{', '.join(files)}: no line can be used, so nothing is written")
    return board


def _written(board: Board, refused: tuple[Refusal, ...], args: argparse.Namespace) -> int:
    from unlearnbench.leaderboard.board import write_lines

    console = Console()
    if args.json and not args.out:
        raise RecordError("--json tells what was done, so --out must say where the lines go")
    _tell(refused, console)
    if not board.lines:
        raise RecordError("no line is left, so nothing is written")
    size = sum(len(line.encode()) + 1 for line in board.lines)
    told = f"{len(board.lines)} lines, {size} bytes ({size // len(board.lines)} a line)"
    counts = f"{board.equal} equal ones merged, {len(refused)} left out"
    if args.out:
        write_lines(board.lines, Path(args.out))
    if args.json:
        refusals = [asdict(one) for one in refused]
        done = {"lines": len(board.lines), "bytes": size, "equal": board.equal}
        console.print_json({"out": args.out, **done, "refused": refusals})
    elif args.out:
        console.print(f"{args.out}: {told}; {counts}")
    else:
        for line in board.lines:
            console.out.write(f"{line}\n")  # as it is: a line is data, which its hashes are about
        console.note(f"{told}; {counts}")
    return SOME_FAILED if refused else 0


def _tell(refused: tuple[Refusal, ...], console: Console) -> None:
    for one in refused:
        console.note(f"{one.place}: record {one.id}: left out: {one.reason}")


def _best_json(best: Best) -> dict[str, Any]:
    place = {key: getattr(best, key) for key in ("model", "forget_fraction", "method", "family")}
    setting = best.setting
    if setting is None:
        return place | {"setting": None}
    found: dict[str, Any] = {
        "learning_rate": setting.learning_rate,
        "epoch": setting.epoch,
        "seeds": [row.seed for row in setting.rows],
        "ids": [row.run_id for row in setting.rows],
        "metrics": dict(setting.metrics),
        "intervals": {
            name: asdict(interval)
            for name in setting.metrics
            if (interval := setting.interval(name)) is not None
        },
    }
    return place | {"setting": found}


def _print_best(profile: str, best: Sequence[Best], rows: Sequence[Row], console: Console) -> None:
    from unlearnbench.intervals import ENOUGH_SEEDS
    from unlearnbench.ranking import start_utility

    columns = (
        *("model", "forget", "method", "learning rate", "epoch"),
        *("log10 FQ", "over seeds", "Model Utility", "over seeds", "seeds"),
    )
    lines: list[tuple[Any, ...]] = []
    names: dict[int, str] = {}
    for one in best:
        place = (one.model, one.forget_fraction, one.method)
        setting = one.setting
        if setting is None:
            judged = start_utility(rows, one.model, one.forget_fraction) is not None
            why = (
                "no setting keeps enough utility" if judged else "no fine-tuned model on the board"
            )
            lines.append((*place, *[None] * 6, why))
            continue
        numbers: list[Any] = []
        for metric in ("log10_forget_quality", "model_utility"):
            interval = setting.interval(metric)
            told = None if interval is None else f"{interval.low:.3g} to {interval.high:.3g}"
            if interval is not None:
                names[interval.n] = interval.name
            numbers += [setting.metrics[metric], told]
        lines.append((*place, setting.learning_rate, setting.epoch, *numbers, len(setting.rows)))
    lines.sort(key=lambda row: (row[0], row[1], row[5] is None, -(row[5] or 0.0)))
    console.table(columns, lines, f"best of each method, by {profile}")
    for _, name in sorted(names.items()):
        console.print(f"Over seeds: {name}.")
    if any(one.setting is not None and len(one.setting.rows) < ENOUGH_SEEDS for one in best):
        console.print(
            "Fewer than three seeds stand behind some of these lines: small differences may be "
            "chance."
        )
