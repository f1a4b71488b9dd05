"""The cache of a sweep's folder: prepared models, values of reference models, alternative answers.

Nothing here loads a model. An entry is removed only if no process prepares it; whether a sweep is
at work that reads the cache is for the caller to ask (`busy_sweeps`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.errors import OutputError
from unlearnbench.files.atomic import PART
from unlearnbench.files.bounded import CONFIG_BYTES, read_bytes
from unlearnbench.files.locks import try_lock
from unlearnbench.results.sweep_folder import lock_owner

FOLDERS = ("models", "reference", "alternatives")
"""Folders of a cache; the first has a folder for each entry, the others a file."""
_UNFINISHED = ".training"
_ABOUT = {
    "reference": "values of a reference model, for the rows of a split",
    "alternatives": "answers that a start model gave to forget rows",
}


@dataclass(frozen=True)
class CacheEntry:
    """One file or folder of a cache."""

    name: str
    """`models/full-3f0c…`."""
    path: Path
    about: str
    """What it is, and what made it."""
    size: int
    """Bytes."""
    modified: float
    """Seconds since 1970."""

    @property
    def age(self) -> float:
        """Seconds since it was made."""
        return max(0.0, time.time() - self.modified)


def cache_entries(cache: Path) -> Iterator[CacheEntry]:
    """Yield the entries of a cache, by name. Raises: OutputError where it cannot be read."""
    for kind in FOLDERS:
        folder = cache / kind
        try:
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
        except OSError as error:
            raise OutputError(f"{folder}: cannot be read: {error.strerror}") from error
        for path in paths:
            if path.is_symlink() or path.name.endswith((".lock", ".copy")):
                continue
            if path.is_dir() == (kind == "models") or path.name.startswith(PART):
                yield _entry(kind, path)


def _entry(kind: str, path: Path) -> CacheEntry:
    size, modified = tree_size(path), path.lstat().st_mtime
    about = _ABOUT.get(kind) or _about_model(path)
    if path.name.startswith(PART):
        about = "half-written, by a process that may have ended"
    return CacheEntry(f"{kind}/{path.name}", path, about, size, modified)


def _about_model(folder: Path) -> str:
    """The rows that a prepared model was trained on, its shape, and how long that took."""
    if folder.name.endswith(_UNFINISHED):
        return "checkpoints of a preparation that has not ended"
    made, shape = _read(folder / "prepared.json"), _read(folder / "config.json")
    if not made:
        return "damaged: it has no readable prepared.json, and is prepared again when it is needed"
    target = folder.name.rpartition("-")[0]
    what = {"base": "tiny base model", "full": "start model"}.get(target, f"model of {target}")
    parts = [what]
    if kind := shape.get("model_type"):
        layers, width = shape.get("num_hidden_layers"), shape.get("hidden_size")
        parts.append(f"{kind}, {layers} layers of {width}" if layers and width else str(kind))
    if isinstance(seconds := made.get("seconds"), int | float):
        parts.append(f"trained in {seconds:.0f} s")
    return ", ".join(parts)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(read_bytes(path, CONFIG_BYTES))
        return found if isinstance(found, dict) else {}
    return {}


def tree_size(path: Path, until: float = float("inf")) -> int:
    """Bytes of a file, or of all files below a folder; what cannot be read counts 0.

    until  time.monotonic() at which to stop counting
    """
    total, folders = 0, [path]
    while folders and time.monotonic() < until:
        place = folders.pop()
        try:
            if not place.is_dir():
                total += place.lstat().st_size
                continue
            with os.scandir(place) as found:
                for one in found:
                    if one.is_dir(follow_symlinks=False):
                        folders.append(Path(one.path))
                    else:
                        total += one.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def busy_sweeps(cache: Path) -> list[str]:
    """The sweeps that are at work beside the cache, each with its process."""
    found: list[str] = []
    with suppress(OSError):
        for folder in sorted(cache.absolute().parent.iterdir()):
            if folder.is_dir() and folder != cache.absolute() and (owner := lock_owner(folder)):
                found.append(f"{folder.name} ({owner})")
    return found


def remove_entry(entry: CacheEntry) -> bool:
    """Remove an entry; False where a process prepares it now.

    Raises: OutputError where it cannot be removed.
    """
    name = entry.path.name.removeprefix(".").removesuffix(_UNFINISHED)
    lock = entry.path.with_name(f".{name}.lock")
    try:
        with try_lock(lock) as locked:
            if not locked:
                return False
            if entry.path.is_dir():
                # First what makes a model whole: it is never taken for one while it is removed.
                (entry.path / "prepared.json").unlink(missing_ok=True)
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"{entry.path}: cannot be removed: {error.strerror}") from error
    return True
