"""SHA-256 of files and tensors, by which damage is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def file_hash(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_of_files(paths: Iterable[Path]) -> str:
    """16 hex digits of the SHA-256 of the files' names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + bytes.fromhex(kept_hash(path)))
    return digest.hexdigest()[:16]


def kept_hash(path: Path) -> str:
    """As `file_hash`; this process reads a file again only when it has changed."""
    now = path.stat()
    return _hash_of_state(path.resolve(), now.st_size, now.st_mtime_ns, now.st_ino)


@lru_cache(maxsize=1024)  # 14 GB take ten seconds and more
def _hash_of_state(path: Path, *_state: int) -> str:
    return file_hash(path)


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values, hexadecimal."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
