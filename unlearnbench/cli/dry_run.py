"""The option `--dry-run` of commands that write something."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from unlearnbench.cli.command import flag
from unlearnbench.console import Console

DryRun = Annotated[
    bool, flag("--dry-run", "Print what would be written, and where; write nothing.")
]


def print_dry_run(console: Console, *files: Path) -> None:
    """Print the files that a command would write, and which of them are there already."""
    for file in files:
        there = ", in place of what is there" if file.exists() else ""
        console.print(f"would write {file}{there}")
