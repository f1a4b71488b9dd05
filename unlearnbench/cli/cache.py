"""`unlearnbench cache`: what sweeps keep to save time, listed and removed."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from unlearnbench.base.console import Console, format_bytes
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.cli.command import command, new_group, option

app = new_group("List or remove what sweeps have prepared: models, reference values, answers.")

CacheFolder = Annotated[str, option("DIR", "`output`/cache of a config, or its `cache`.")]


@command(app, "list")
def list_cache(cache: CacheFolder = "runs/cache") -> None:
    """List what a cache holds, with size and age; records are never in it."""
    rows = [(str(p), format_bytes(size), round(days, 1)) for p, size, days in _entries(cache)]
    Console().table(("entry", "size", "days old"), rows)


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
    old = [entry for entry in _entries(cache) if entry[2] >= older_than]
    for path, *_ in old:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    freed = format_bytes(sum(size for _, size, _ in old))
    Console().print(f"removed {len(old)} entries, {freed}")


def _entries(cache: str) -> Iterator[tuple[Path, int, float]]:
    """Files and folders of a cache, with their bytes and age in days."""
    for kind in ("models", "reference", "alternatives"):  # and nothing else in any folder
        for path in sorted((Path(cache) / kind).glob("[!.]*")):
            size = sum(f.lstat().st_size for f in (path, *path.rglob("*")) if f.is_file())
            yield path, size, (time.time() - path.lstat().st_mtime) / 86_400
