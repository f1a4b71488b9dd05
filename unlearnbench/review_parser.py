"""What can be said of `report` and `leaderboard` on the command line."""

from __future__ import annotations

import argparse
from dataclasses import replace

from unlearnbench import boards, reviewing
from unlearnbench.arguments import Subparsers, add_json, command, positive
from unlearnbench.outputs import Output

EVERY_SECONDS = 5.0
PAGE = Output("out", "the page", suffixes=(".html",), beside=(".csv",))
LINES = Output("out", "the leaderboard")


def add_report(subparsers: Subparsers) -> None:
    """`report`."""
    report = command(
        subparsers,
        "report",
        reviewing.report,
        "write a sweep's page and table again, or keep them new while it runs",
        "examples:\n"
        "  unlearnbench report runs/quickstart --out page.html\n"
        "  unlearnbench report runs/quickstart --watch          while the sweep runs elsewhere\n"
        "  unlearnbench report runs/quickstart --watch --port 8080 --open\n\n"
        "A watched page is served on 127.0.0.1 alone, comes anew by itself, and keeps your place.\n"
        "On another machine: ssh -L 8080:127.0.0.1:8080 MACHINE, then open it here.",
        writes=[PAGE],
    )
    report.add_argument(
        "folder", metavar="FOLDER", help="a sweep's folder, such as runs/quickstart"
    )
    report.add_argument("--out", metavar="FILE", help="page (default: FOLDER/report.html)")
    report.add_argument("--open", action="store_true", help="open it in a browser")
    report.add_argument(
        "--watch", action="store_true", help="serve the page, and draw it anew with new records"
    )
    report.add_argument(
        "--port", type=_port, metavar="N", help="of a watched page (default: one that is free)"
    )
    report.add_argument(
        "--every",
        type=positive,
        default=EVERY_SECONDS,
        metavar="SECONDS",
        help="between two looks for new records (default: %(default)g)",
    )


def add_leaderboard(subparsers: Subparsers) -> None:
    """`leaderboard export`, `merge` and `show`."""
    board = subparsers.add_parser(
        "leaderboard", help="put results of several groups together", allow_abbrev=False
    )
    verbs = board.add_subparsers(dest="verb", metavar="export|merge|show", required=True)
    export = command(
        verbs,
        "export",
        boards.export,
        "a line of JSON per record of sweeps, with the evidence for its numbers",
        "example:\n  unlearnbench leaderboard export runs/one runs/other --out board.jsonl\n\n"
        "No question and no answer is in it. Exit code 1 where records were left out: each is\n"
        "named with the reason.",
        writes=[LINES],
    )
    export.add_argument("folders", metavar="FOLDER", nargs="+", help="a sweep's folder")
    merge = command(
        verbs,
        "merge",
        boards.merge,
        "one board of many; refuses each line whose hashes or numbers do not fit",
        "example:\n  unlearnbench leaderboard merge ours.jsonl theirs.jsonl --out board.jsonl\n\n"
        "Every hash is taken and every metric computed again. Exit code 1 where lines were\n"
        "refused, 2 where no line is left. The order of files changes nothing.",
        writes=[LINES],
    )
    show = command(
        verbs,
        "show",
        boards.show,
        "the best setting of each method on a board, with intervals over seeds",
        "examples:\n  unlearnbench leaderboard show board.jsonl\n"
        "  unlearnbench leaderboard show ours.jsonl theirs.jsonl --page board.html",
        writes=[replace(PAGE, option="page")],
    )
    for parser in (merge, show):
        parser.add_argument("files", metavar="FILE", nargs="+", help="of export or merge")
    for parser in (export, merge):
        parser.add_argument("--out", metavar="FILE", help="default: standard output")
    show.add_argument("--page", metavar="FILE", help="also draw it, as a sweep's page")
    for parser in (export, merge, show):
        add_json(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text} is no port: give 1 to 65535")
    return int(text)
