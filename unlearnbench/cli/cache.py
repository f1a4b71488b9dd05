"""`unlearnbench cache …`: what sweeps keep to save time: listed, and removed."""

from __future__ import annotations

import math
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.dry_run import DryRun
from unlearnbench.cli.options import Json
from unlearnbench.console import Console
from unlearnbench.errors import UnlearnbenchError, did_you_mean

if TYPE_CHECKING:
    from unlearnbench.runs.cache_contents import CacheEntry

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}

app = new_group("List or remove what sweeps have prepared: models, reference values, answers.")

CacheFolder = Annotated[
    str, option("DIR", "The cache: `output`/cache of a config, or its `cache`.", "--cache")
]


def duration(text: str | float) -> float:
    """Seconds of `30d`, `12h`, `90m` or `2w`."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", str(text))
    if found is None:
        raise typer.BadParameter(f"{text} is not a time such as 30d, 12h, 90m or 2w")
    return int(found[1]) * _UNITS[found[2]]


def format_bytes(size: float) -> str:
    """`3.1 GB`, `12 kB`: in powers of 1000, as disks are sold."""
    power = min(int(math.log(max(size, 1), 1000)), 4)
    digits = 0 if power < 1 or size >= 10 * 1000**power else 1
    return f"{size / 1000**power:.{digits}f} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def format_age(seconds: float) -> str:
    """`5 min`, `3 h`, `12 days`."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


@command(app, "list")
def list_cache(cache: CacheFolder = "runs/cache", as_json: Json = False) -> None:
    """List what a cache holds, with size and age; records are never in it.

    All of it is made again when a sweep needs it.

    Examples:
      unlearnbench cache list
      unlearnbench cache list --cache /scratch/cache --json
    """
    entries, console = _entries(cache), Console()
    if as_json:
        rows = [
            {"name": e.name, "what": e.about, "bytes": e.size, "age_seconds": round(e.age)}
            for e in entries
        ]
        console.print_json({"folder": cache, "entries": rows})
        return
    if not entries:
        console.print(f"{cache}: nothing is cached")
        return
    lines = [(e.name, format_bytes(e.size), format_age(e.age), e.about) for e in entries]
    total = format_bytes(sum(e.size for e in entries))
    console.table(("name", "size", "age", "what it is"), lines, f"{cache}: {total}")


@command(app, "clear")
def clear_cache(
    names: Annotated[
        list[str] | None, argument("NAME", "As `cache list` has it, or its beginning.")
    ] = None,
    older_than: Annotated[
        float | None, option("TIME", "Only what is older: 30d, 12h, 90m, 2w.", parser=duration)
    ] = None,
    everything: Annotated[bool, flag("--all", "All of it.")] = False,
    yes: Annotated[bool, flag("--yes", "Do not ask.")] = False,
    cache: CacheFolder = "runs/cache",
    dry_run: DryRun = False,
) -> None:
    """Remove entries of a cache; asks before, on a terminal.

    Records stay, and so does what a process prepares now. Nothing is removed while a sweep beside
    the cache is at work.

    Examples:
      unlearnbench cache clear --older-than 30d --dry-run
      unlearnbench cache clear models/full-3f0c
      unlearnbench cache clear --all --yes
    """
    if not names and older_than is None and not everything:
        raise UnlearnbenchError(
            "name what to remove: NAMEs of `unlearnbench cache list`, --older-than 30d, or --all"
        )
    chosen, console = _chosen(_entries(cache), names or (), older_than, cache), Console()
    size = format_bytes(sum(entry.size for entry in chosen))
    if not chosen:
        console.print("nothing to remove")
        return
    for entry in chosen if dry_run or sys.stdin.isatty() else ():
        console.print(f"{'would remove' if dry_run else 'remove'} {entry.path}  {entry.about}")
    if dry_run:
        console.print(f"{len(chosen)} entries, {size}")
        return
    from unlearnbench.runs.cache_contents import busy_sweeps, remove_entry

    if busy := busy_sweeps(Path(cache)):
        raise UnlearnbenchError(
            f"{cache}: nothing was removed: {', '.join(busy)} may read it; wait for it or stop it"
        )
    question = f"remove {len(chosen)} entries, {size}?"
    if sys.stdin.isatty() and not yes and not typer.confirm(question, err=True):
        console.print("nothing was removed")
        return
    removed = [entry for entry in chosen if remove_entry(entry)]
    console.print(f"removed {len(removed)} entries, {format_bytes(sum(e.size for e in removed))}")
    for entry in chosen:
        if entry not in removed:
            console.note(f"{entry.name}: kept, since a process prepares it")


def _entries(cache: str) -> list[CacheEntry]:
    from unlearnbench.runs.cache_contents import FOLDERS, cache_entries

    place = Path(cache)
    if place.exists() and not place.is_dir():
        raise UnlearnbenchError(f"{cache}: not a folder")
    if place.is_dir() and any(place.iterdir()) and not any((place / f).is_dir() for f in FOLDERS):
        raise UnlearnbenchError(
            f"{cache}: not a cache: it has none of {', '.join(FOLDERS)}; give --cache DIR, the "
            "folder `cache` in a config's `output`"
        )
    return list(cache_entries(place))


def _chosen(
    entries: list[CacheEntry], names: list[str] | tuple[str, ...], age: float | None, cache: str
) -> list[CacheEntry]:
    """The entries that begin with one of `names`, if any are given, and are older than `age`."""
    for name in names:
        if not any(entry.name.startswith(name) for entry in entries):
            near = did_you_mean(name, [entry.name for entry in entries]) or "; see `cache list`"
            raise UnlearnbenchError(f"{cache}: no entry begins with {name!r}{near}")
    before = time.time() - (age or 0)
    return [
        entry
        for entry in entries
        if (not names or any(entry.name.startswith(name) for name in names))
        and (age is None or entry.modified < before)
    ]
