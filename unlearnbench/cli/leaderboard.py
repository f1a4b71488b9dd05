"""`leaderboard`: put records of several groups side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Json, Plugins, register_plugins, sweep_folder
from unlearnbench.cli.report import PAGE
from unlearnbench.cli.sweep import SOME_FAILED
from unlearnbench.console import Console
from unlearnbench.errors import RecordError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.analysis.best_settings import Best
    from unlearnbench.reporting.leaderboard import Board
    from unlearnbench.results.table import TableRow

LINES = Output("out", "the leaderboard")

Files = Annotated[list[str], argument("FILE", "Lines of export or merge.")]
Out = Annotated[str | None, option("FILE", "Where the lines go.", default="standard output")]

app = new_group("Put results of several groups together.")


@command(app, "export", writes=[LINES])
def export(
    folders: Annotated[list[str], argument("FOLDER", "A sweep's folder.")],
    out: Out = None,
    plugins: Plugins = None,
) -> int:
    """Print a line of JSON per record of sweeps, with its own hash.

    Questions and answers are left out.

    Examples:
      unlearnbench leaderboard export runs/one runs/other --out board.jsonl
    """
    from unlearnbench.reporting.leaderboard import export_lines, merge

    register_plugins(plugins)
    board = merge(line for folder in folders for line in export_lines(sweep_folder(folder)))
    return _write(board, out)


@command(app, "merge", writes=[LINES])
def merge(files: Files, out: Out = None, plugins: Plugins = None) -> int:
    """Merge boards into one; refuses lines that are damaged or do not fit the others.

    Exit code 1 where lines were refused, 2 where no line is left. The order of files changes
    nothing.

    Examples:
      unlearnbench leaderboard merge ours.jsonl theirs.jsonl --out board.jsonl
    """
    register_plugins(plugins)
    return _write(_read(files), out)


@command(app, "show", writes=[replace(PAGE, option="page")])
def show(
    files: Files,
    page: Annotated[str | None, option("FILE", "Also draw it, as a sweep's page.")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """Print the best setting of each method on a board, with intervals over seeds.

    Lines are refused as in `merge`.

    Examples:
      unlearnbench leaderboard show board.jsonl
      unlearnbench leaderboard show ours.jsonl theirs.jsonl --page board.html
    """
    from unlearnbench.analysis.best_settings import best_per_method
    from unlearnbench.reporting.leaderboard import distinguished, tables

    register_plugins(plugins)
    board, console = _read(files), Console()
    _print_refused(board, console)
    rows = tables(board.records)
    best = {profile: best_per_method(found) for profile, found in rows.items()}
    if page:
        from unlearnbench.reporting.report import make_report, publish

        report = make_report(
            distinguished(board.records),
            name="leaderboard",
            description="Records that several sweeps have put together.",
        )
        console.note(f"page  {publish(report, Path(), Path(page))}")
    if as_json:
        found = {profile: [_best_json(one) for one in many] for profile, many in best.items()}
        refused = [asdict(one) for one in board.refused]
        console.print_json({"best": found, "lines": len(board.records), "refused": refused})
    else:
        for profile, many in best.items():
            _print_best(profile, many, rows[profile], console)
    return SOME_FAILED if board.refused else 0


def _read(files: list[str]) -> Board:
    from unlearnbench.reporting.leaderboard import merge, read_lines

    return merge(line for file in files for line in read_lines(Path(file)))


def _write(board: Board, out: str | None) -> int:
    from unlearnbench.reporting.leaderboard import write_lines

    console = Console()
    _print_refused(board, console)
    if not board.records:
        raise RecordError("no line is left, so nothing is written")
    if out:
        write_lines(board, Path(out))
    else:
        for line in board.lines:
            console.out.write(f"{line}\n")
    counts = f"{board.equal} equal ones merged, {len(board.refused)} left out"
    console.note(f"{out or 'board'}: {len(board.records)} lines; {counts}")
    return SOME_FAILED if board.refused else 0


def _print_refused(board: Board, console: Console) -> None:
    for line in board.refused:
        console.note(f"{line.place}: record {line.id}: left out: {line.reason}")


def _best_json(best: Best) -> dict[str, Any]:
    found: dict[str, Any] = {
        key: getattr(best, key) for key in ("model", "forget_fraction", "method", "family")
    }
    if (setting := best.setting) is None:
        return found | {"setting": None}
    intervals = {name: setting.interval(name) for name in setting.metrics}
    return found | {
        "setting": {
            "learning_rate": setting.learning_rate,
            "epoch": setting.epoch,
            "seeds": [row.seed for row in setting.rows],
            "ids": [row.run_id for row in setting.rows],
            "metrics": dict(setting.metrics),
            "intervals": {name: asdict(one) for name, one in intervals.items() if one is not None},
        }
    }


def _print_best(
    profile: str, best: Sequence[Best], rows: Sequence[TableRow], console: Console
) -> None:
    from unlearnbench.analysis.best_settings import headline_of_rows, start_utility
    from unlearnbench.stats.t_interval import ENOUGH_SEEDS

    headline = headline_of_rows(rows)
    kept, forgotten = headline.kept, headline.forgotten
    columns = (
        *("model", "forget", "method", "learning rate", "epoch"),
        *(forgotten.plain_short, "over seeds", kept.plain_label, "over seeds", "seeds"),
    )
    lines: list[tuple[Any, ...]] = []
    names: dict[int, str] = {}
    for one in best:
        place = (one.model, one.forget_fraction, one.method)
        if (setting := one.setting) is None:
            why = "no fine-tuned model on the board"
            if start_utility(rows, one.model, one.forget_fraction) is not None:
                why = "no setting keeps enough utility"
            lines.append((*place, *[None] * 6, why))
            continue
        numbers: list[Any] = []
        for metric in (forgotten.column, kept.column):
            numbers += [setting.metrics.get(metric), None]
            if interval := setting.interval(metric):
                numbers[-1] = f"{interval.low:.3g} to {interval.high:.3g}"
                names[interval.n] = interval.name
        lines.append((*place, setting.learning_rate, setting.epoch, *numbers, len(setting.rows)))
    lines.sort(key=lambda row: (row[0], row[1], row[5] is None, -forgotten.oriented(row[5] or 0.0)))
    console.table(columns, lines, f"best of each method, by {profile}")
    for _, name in sorted(names.items()):
        console.print(f"Over seeds: {name}.")
    if any(one.setting is not None and len(one.setting.rows) < ENOUGH_SEEDS for one in best):
        console.print(
            "Fewer than three seeds stand behind some of these lines: small differences may be "
            "chance."
        )
