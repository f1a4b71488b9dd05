"""`unlearnbench track` and `unlearnbench ui`: what MLflow has of a sweep, and a look at it."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from unlearnbench.commands import sweep_folder
from unlearnbench.console import Console
from unlearnbench.stopping import caught


def track(args: argparse.Namespace) -> int:
    """`unlearnbench track FOLDER`."""
    folder = sweep_folder(args.folder)
    from unlearnbench.folder import locked
    from unlearnbench.tracking import replay

    # A sweep at work logs its records by itself: two at a time would log one twice.
    with locked(folder):
        done = replay(folder, args.uri)
    console = Console()
    if args.json:
        console.print_json(asdict(done))
        return 0
    before = done.records - done.logged
    kept = f", {before} were there already" if before else ""
    console.print(f"{done.logged} of {done.records} records logged to {done.uri}{kept}")
    if done.address:
        console.print(f"page  {done.address}")
    return 0


def ui(args: argparse.Namespace) -> int:
    """`unlearnbench ui`: until Ctrl-C, which is how it is meant to end, so that the code is 0."""
    folder = sweep_folder(args.folder)
    from unlearnbench.tracking import open_ui

    with caught():
        open_ui(folder, port=args.port, browser=args.browser, tell=Console().print)
    return 0
