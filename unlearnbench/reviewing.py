"""What `report` does: a sweep's page, once or as long as somebody watches."""

from __future__ import annotations

import argparse
from pathlib import Path

from unlearnbench.commands import sweep_folder
from unlearnbench.console import Console


def report(args: argparse.Namespace) -> int:
    """`unlearnbench report FOLDER`."""
    out = Path(args.out) if args.out else None
    console = Console()
    if args.watch:
        from unlearnbench.live import watch

        found = watch(
            Path(args.folder), out, console, port=args.port, every=args.every, show=args.open
        )
        console.print(f"page  {found}" if found else "no page: nothing was recorded")
        return 0
    from unlearnbench.report import write_report

    page = write_report(sweep_folder(args.folder), out)
    console.print(f"page  {page}")
    if args.open:
        import webbrowser

        if not webbrowser.open(page.resolve().as_uri()):
            console.note("no browser could be started here: open the page in one")
    return 0
