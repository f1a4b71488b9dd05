"""`unlearnbench cache`: what sweeps keep to save time, listed and removed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

from unlearnbench.cli.command import command, new_group, option
from unlearnbench.console import Console, format_bytes
from unlearnbench.errors import UnlearnbenchError

app = new_group("List or remove what sweeps have prepared: models, reference values, answers.")

CacheFolder = Annotated[
    str, option("DIR", "The cache: `output`/cache of a config, or its `cache`.")
]


@command(app, "list")
def list_cache(cache: CacheFolder = "runs/cache") -> None:
    """List what a cache holds, with size and age; records are never in it."""
    rows = [
        (str(path.relative_to(cache)), format_bytes(_size(path)), round(_age(path) / 86_400, 1))
        for path in sorted(Path(cache).glob("*/[!.]*"))
    ]
    Console().table(("name", "size", "days old"), rows)


@command(app, "clear")
def clear_cache(
    older_than: Annotated[float, option("DAYS", "Age of what is removed; 0: all of it.", min=0)],
    cache: CacheFolder = "runs/cache",
) -> None:
    """Remove a cache's entries, which are made again when a sweep needs them; records stay.

    Examples:
      unlearnbench cache clear --older-than 30
    """
    from unlearnbench.results.sweep_folder import lock_owner

    for sweep in Path(cache).absolute().parent.glob("*/"):
        if owner := lock_owner(sweep):
            raise UnlearnbenchError(f"{cache}: {sweep.name} ({owner}) may read it; nothing is gone")
    kinds = ("models", "reference", "alternatives")  # and nothing else, whatever --cache names
    entries = [path for kind in kinds for path in (Path(cache) / kind).glob("[!.]*")]
    old = [path for path in entries if _age(path) >= 86_400 * older_than]
    freed = sum(map(_size, old))
    for path in old:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    Console().print(f"removed {len(old)} entries, {format_bytes(freed)}")


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in (path, *path.rglob("*")) if file.is_file())


def _age(path: Path) -> float:
    return time.time() - path.lstat().st_mtime
