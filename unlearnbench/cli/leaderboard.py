"""`unlearnbench leaderboard …`: boards with the records of several research groups.

A board is a file with a line of JSON for each record. Each line has a hash of its own, so that a
damaged line is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.base.console import Console
from unlearnbench.base.errors import RecordError
from unlearnbench.base.outputs import check_file, write_file
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Plugins, register_plugins, sweep_folder
from unlearnbench.cli.sweep import SOME_FAILED

if TYPE_CHECKING:
    from unlearnbench.report.leaderboard import Board

Files = Annotated[list[str], argument("FILE", "Lines of export or merge.")]
Out = Annotated[str | None, option("FILE", "Where the lines go.", default="standard output")]

app = new_group("Put results of several groups together.")


@command(app, "export")
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
    from unlearnbench.report.leaderboard import exported, merge

    register_plugins(plugins)
    board = merge(
        (folder, line)
        for folder in folders
        for line in exported(sweep_folder(folder)).text.splitlines()
    )
    return _write(board, out)


@command(app, "merge")
def merge(files: Files, out: Out = None, plugins: Plugins = None) -> int:
    """Merge boards into one, and refuse lines that are damaged or do not fit.

    The exit code is 1 if lines were refused, and 2 if no line is left. The order of the files does
    not matter.

    Examples:
      unlearnbench leaderboard merge ours.jsonl theirs.jsonl --out board.jsonl
    """
    register_plugins(plugins)
    return _write(_read(files), out)


@command(app, "show")
def show(
    files: Files,
    page: Annotated[str | None, option("FILE", "Also draw it, as a sweep's page.")] = None,
    plugins: Plugins = None,
) -> int:
    """Print the best setting of each method on a board, with intervals over seeds.

    Damaged lines, and lines that do not fit the others, are refused, as in `merge`.

    Examples:
      unlearnbench leaderboard show board.jsonl
      unlearnbench leaderboard show ours.jsonl theirs.jsonl --page board.html
    """
    from unlearnbench.report.best_table import best_table
    from unlearnbench.report.leaderboard import boards
    from unlearnbench.results.outcomes import WITHOUT_RESULT, outcome
    from unlearnbench.results.rules import mixed_code

    register_plugins(plugins)
    if page:
        check_file(page, "the page", (".html",))
    console = Console()
    board = _read(files)
    if page:
        from unlearnbench.analysis.results import Results
        from unlearnbench.report.report import write_views

        report = Results.of(
            board.records,
            name="leaderboard",
            description="Records that several sweeps have put together.",
        )
        console.note(f"page  {write_views(report, Path(), Path(page))}")
    without_result = [
        outcome(record) for record in board.records if record.status in WITHOUT_RESULT
    ]
    results_by_profile = boards(board.records)
    # A profile by which only start and retain models were evaluated has no methods to show.
    with_runs = {
        profile: results
        for profile, results in results_by_profile.items()
        if any(row.kind == "run" for row in results.rows)
    }
    for profile, results in (with_runs or results_by_profile).items():
        table = best_table(results, without_result=without_result)
        console.print(f"best of each method, by {profile}\n\n{table}")
        warning = mixed_code(results.records)
        if warning:
            console.warn(warning)
    return SOME_FAILED if board.refused else 0


def _read(files: list[str]) -> Board:
    """Read boards, merge them, and name the lines that are refused.

    Raises:
        RecordError: If no line is left.
    """
    from unlearnbench.report.leaderboard import merge, read_lines

    board = merge(line for file in files for line in read_lines(Path(file)))
    for line in board.refused:
        Console().note(line)
    if not board.records:
        raise RecordError("no line of a board is left; `leaderboard export FOLDER` makes some")
    return board


def _write(board: Board, out: str | None) -> int:
    """Write a board to a file, or print it if there is none, and return the exit code."""
    console = Console()
    if out:
        # The suffix protects records, which are .json, from being written over.
        check_file(out, "the leaderboard", (".jsonl",))
        write_file(Path(out), board.text, "the leaderboard")
    else:
        console.out.write(board.text)
    console.note(f"{out or 'board'}: {len(board.records)} lines, {len(board.refused)} left out")
    return SOME_FAILED if board.refused else 0
