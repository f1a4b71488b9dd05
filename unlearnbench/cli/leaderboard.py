"""`unlearnbench leaderboard export`, `merge` and `show`: put results of several groups together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.dry_run import DryRun, print_dry_run
from unlearnbench.cli.options import Json, Plugins, register_plugins, sweep_folder
from unlearnbench.cli.report import PAGE
from unlearnbench.cli.sweep import SOME_FAILED
from unlearnbench.console import Console
from unlearnbench.errors import RecordError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.analysis.best_settings import Best
    from unlearnbench.reporting.leaderboard.merge import Board, Refusal
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
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Print a line of JSON per record of sweeps, with the evidence for its numbers.

    Questions and answers are left out. Exit code 1 where records were left out: each is named with
    the reason.

    Examples:
      unlearnbench leaderboard export runs/one runs/other --out board.jsonl
    """
    from unlearnbench.reporting.leaderboard.export import export as exported
    from unlearnbench.reporting.leaderboard.merge import merge

    register_plugins(plugins)
    left: list[Refusal] = []
    board = merge(line for folder in folders for line in exported(sweep_folder(folder), left))
    refused = (*left, *board.refused)
    return _write(board, refused, out, dry_run=dry_run, as_json=as_json)


@command(app, "merge", writes=[LINES])
def merge(
    files: Files,
    out: Out = None,
    plugins: Plugins = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Merge boards into one; refuses each line whose hashes or numbers do not fit.

    Every hash and every metric is computed again, those of a benchmark that is installed here or
    given with --plugin. Exit code 1 where lines were refused, 2 where no
    line is left. The order of files changes nothing.

    Examples:
      unlearnbench leaderboard merge ours.jsonl theirs.jsonl --out board.jsonl
    """
    register_plugins(plugins)
    board = _read(files)
    return _write(board, board.refused, out, dry_run=dry_run, as_json=as_json)


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
    from unlearnbench.reporting.leaderboard.export import records_of, tables

    register_plugins(plugins)
    board, console = _read(files), Console()
    _print_refused(board.refused, console)
    rows = tables(board.entries)
    best = {profile: best_per_method(found) for profile, found in rows.items()}
    if page:
        from unlearnbench.reporting.report import make_report, publish

        report = make_report(
            records_of(board.entries),
            name="leaderboard",
            description="Records that several sweeps have put together.",
        )
        console.note(f"page  {publish(report, Path(), Path(page))}")
    if as_json:
        found = {profile: [_best_json(one) for one in many] for profile, many in best.items()}
        refused = [asdict(one) for one in board.refused]
        console.print_json({"best": found, "lines": len(board.lines), "refused": refused})
    else:
        for profile, many in best.items():
            _print_best(profile, many, rows[profile], console)
    return SOME_FAILED if board.refused else 0


def _read(files: list[str]) -> Board:
    from unlearnbench.reporting.leaderboard.export import read_lines
    from unlearnbench.reporting.leaderboard.merge import merge

    board = merge(line for file in files for line in read_lines(Path(file)))
    if not board.lines:
        _print_refused(board.refused, Console())
        raise RecordError(f"{', '.join(files)}: no line can be used, so nothing is written")
    return board


def _write(
    board: Board,
    refused: tuple[Refusal, ...],
    out: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    from unlearnbench.reporting.leaderboard.export import write_lines

    console = Console()
    if as_json and not out:
        raise RecordError("--json prints what was done, so give --out FILE for the lines")
    _print_refused(refused, console)
    if not board.lines:
        raise RecordError("no line is left, so nothing is written")
    size = sum(len(line.encode()) + 1 for line in board.lines)
    sizes = f"{len(board.lines)} lines, {size} bytes ({size // len(board.lines)} a line)"
    counts = f"{board.equal} equal ones merged, {len(refused)} left out"
    if dry_run:
        print_dry_run(console, *([Path(out)] if out else []))
        console.print(f"{sizes}; {counts}")
        return SOME_FAILED if refused else 0
    if out:
        write_lines(board.lines, Path(out))
    if as_json:
        refusals = [asdict(one) for one in refused]
        done = {"lines": len(board.lines), "bytes": size, "equal": board.equal}
        console.print_json({"out": out, **done, "refused": refusals})
    elif out:
        console.print(f"{out}: {sizes}; {counts}")
    else:
        for line in board.lines:
            console.out.write(f"{line}\n")  # unchanged: its hashes are of these bytes
        console.note(f"{sizes}; {counts}")
    return SOME_FAILED if refused else 0


def _print_refused(refused: tuple[Refusal, ...], console: Console) -> None:
    for one in refused:
        console.note(f"{one.place}: record {one.id}: left out: {one.reason}")


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
