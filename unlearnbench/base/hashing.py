"""SHA-256 of files and tensors, by which damage is found."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from unlearnbench.base.atomic import write_text

if TYPE_CHECKING:
    from torch import Tensor


def file_hash(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


BIG = 1 << 20
"""Bytes from which the hash of a file is kept: 14 GB take ten seconds and more."""


def content_of_files(paths: Iterable[Path]) -> str:
    """16 hex digits of the SHA-256 of the files' names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + bytes.fromhex(kept_hash(path)))
    return digest.hexdigest()[:16]


def kept_hash(path: Path) -> str:
    """As `file_hash`; that of a big file is kept in the user's cache until the file changes."""
    now = path.stat()
    if now.st_size < BIG:
        return file_hash(path)
    state = f"{now.st_size} {now.st_mtime_ns} {now.st_ctime_ns} {now.st_ino}"
    return _hash_of_state(path.resolve(), state)


@lru_cache(maxsize=1024)  # there may be no cache that can be written
def _hash_of_state(path: Path, state: str) -> str:
    cache = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME') or gettempdir()}/.cache"
    name = hashlib.sha256(os.fsencode(path)).hexdigest()
    kept = Path(cache, "unlearnbench", "hashes", name)
    with suppress(OSError, ValueError):
        digest, _, then = kept.read_text(encoding="utf-8").partition(" ")
        if then == state:
            return digest
    digest = file_hash(path)
    with suppress(OSError):
        write_text(kept, f"{digest} {state}")
    return digest


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, hexadecimal."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
