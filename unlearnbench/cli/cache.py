"""`unlearnbench cache …`: what sweeps keep to save time: listed, and removed."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json
from unlearnbench.console import Console, format_bytes
from unlearnbench.errors import UnlearnbenchError, did_you_mean

_UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_KINDS = {
    "models": "a prepared model",
    "reference": "values of a reference model, for the rows of a split",
    "alternatives": "answers that a start model gave to forget rows",
}
"""Folders of a cache, and what their entries are."""
_UNFINISHED = ".training"

app = new_group("List or remove what sweeps have prepared: models, reference values, answers.")

CacheFolder = Annotated[
    str, option("DIR", "The cache: `output`/cache of a config, or its `cache`.", "--cache")
]


class Entry(NamedTuple):
    """A file or folder of a cache."""

    name: str
    """`models/full-3f0c…`."""
    path: Path
    about: str
    size: int
    """Bytes."""
    age: float
    """Seconds."""


def duration(text: str | float) -> float:
    """Seconds of `30d`, `12h`, `90m` or `2w`."""
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", str(text))
    if match is None:
        raise typer.BadParameter(f"{text} is not a time such as 30d, 12h, 90m or 2w")
    return int(match[1]) * _UNITS[match[2]]


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
    lines = [(e.name, format_bytes(e.size), f"{e.age / 86_400:.1f}", e.about) for e in entries]
    total = format_bytes(sum(e.size for e in entries))
    console.table(("name", "size", "days old", "what it is"), lines, f"{cache}: {total}")


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
) -> None:
    """Remove entries of a cache; asks before, on a terminal.

    Records stay, and so does what a process prepares now. Nothing is removed while a sweep beside
    the cache is at work.

    Examples:
      unlearnbench cache clear --older-than 30d
      unlearnbench cache clear models/full-3f0c
      unlearnbench cache clear --all --yes
    """
    if not names and older_than is None and not everything:
        raise UnlearnbenchError(
            "name what to remove: NAMEs of `unlearnbench cache list`, --older-than 30d, or --all"
        )
    from unlearnbench.results.sweep_folder import lock_owner

    entries, console, wanted = _entries(cache), Console(), tuple(names or ("",))
    for name in wanted:
        if name and not any(entry.name.startswith(name) for entry in entries):
            near = did_you_mean(name, [entry.name for entry in entries]) or "; see `cache list`"
            raise UnlearnbenchError(f"{cache}: no entry begins with {name!r}{near}")
    chosen = [e for e in entries if e.name.startswith(wanted) and e.age >= (older_than or 0)]
    if not chosen:
        console.print("nothing to remove")
        return
    for sweep in Path(cache).absolute().parent.iterdir():
        if sweep.is_dir() and (owner := lock_owner(sweep)):
            raise UnlearnbenchError(
                f"{cache}: nothing was removed: {sweep.name} ({owner}) may read it; wait for it "
                "or stop it"
            )
    if sys.stdin.isatty() and not yes:
        for entry in chosen:
            console.note(f"remove {entry.path}  {entry.about}")
        if not typer.confirm(f"remove {len(chosen)} entries?", err=True):
            console.print("nothing was removed")
            return
    removed = [entry for entry in chosen if _remove(entry.path)]
    console.print(f"removed {len(removed)} entries, {format_bytes(sum(e.size for e in removed))}")
    for entry in chosen:
        if entry not in removed:
            console.note(f"{entry.name}: kept, since a process prepares it")


def _entries(cache: str) -> list[Entry]:
    folder = Path(cache)
    with suppress(FileNotFoundError):
        if any(folder.iterdir()) and not any((folder / kind).is_dir() for kind in _KINDS):
            raise UnlearnbenchError(
                f"{cache}: not a cache: it has none of {', '.join(_KINDS)}; give --cache DIR, the "
                "folder `cache` in a config's `output`"
            )
    return [
        Entry(
            f"{kind}/{path.name}",
            path,
            _about_model(path) if kind == "models" else _KINDS[kind],
            sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file()),
            max(0.0, time.time() - path.lstat().st_mtime),
        )
        for kind in _KINDS
        for path in sorted((folder / kind).glob("*"))
        if path.suffix not in (".lock", ".copy") and not path.is_symlink()
    ]


def _about_model(folder: Path) -> str:
    """The rows that a prepared model was trained on, and how long that took."""
    if folder.suffix == _UNFINISHED:
        return "checkpoints of a preparation that has not ended"
    target = folder.name.rpartition("-")[0]
    about = {"base": "tiny base model", "full": "start model"}.get(target, f"model of {target}")
    try:
        seconds = json.loads((folder / "prepared.json").read_bytes())["seconds"]
    except (OSError, ValueError, KeyError):
        return f"{about}, damaged: it is prepared again when it is needed"
    return f"{about}, trained in {seconds:.0f} s"


def _remove(path: Path) -> bool:
    """Remove an entry; False where a process prepares it now."""
    from unlearnbench.files.locks import try_lock

    lock = path.with_name(f".{path.name.removeprefix('.').removesuffix(_UNFINISHED)}.lock")
    with try_lock(lock) as locked:
        if locked and path.is_dir():
            # First what makes a model whole: it is never taken for one while it is removed.
            (path / "prepared.json").unlink(missing_ok=True)
            shutil.rmtree(path)
        elif locked:
            path.unlink(missing_ok=True)
    return locked
