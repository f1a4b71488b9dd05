"""SHA-256 of files and tensors, by which damage is found, and JSON in one form."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

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


def user_cache(kind: str) -> Path:
    """The folder of the user's cache for a kind of files; it need not exist."""
    cache = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME') or gettempdir()}/.cache"
    return Path(cache, "unlearnbench", kind)


def kept_hash(path: Path) -> str:
    """As `file_hash`; that of a big file is kept in the user's cache until the file changes."""
    now = path.stat()
    if now.st_size < BIG:
        return file_hash(path)
    state = f"{now.st_size} {now.st_mtime_ns} {now.st_ctime_ns} {now.st_ino}"
    return _hash_of_state(path.resolve(), state)


@lru_cache(maxsize=1024)  # there may be no cache that can be written
def _hash_of_state(path: Path, state: str) -> str:
    kept = user_cache("hashes") / hashlib.sha256(os.fsencode(path)).hexdigest()
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


def json_ready(value: Any, encode: Callable[[float], Any] = str) -> Any:
    """Return `value` with lists for tuples and text for keys.

    encode  makes a value of each float that is not finite; default: its text, `"nan"`
    """
    if isinstance(value, str):  # most values are, so it comes first
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else encode(value)
    if isinstance(value, Mapping):
        return {str(key): json_ready(item, encode) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item, encode) for item in value]
    return value


def content_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of `value` as canonical JSON."""
    return plain_hash(json_ready(value))


def plain_hash(value: Any) -> str:
    """Return `content_hash(value)` of a value whose keys are texts and whose numbers are finite.

    Nothing is converted before, which takes most of the time of a large value.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sealed_json(document: Mapping[str, Any]) -> str:
    """A JSON object with its own hash in `sha256`, to be read with `decode_floats`.

    A float that is not finite is written as `{"$float": "nan"}`.
    """
    ready = json_ready(document, lambda number: {"$float": repr(number)})
    ready["sha256"] = document_hash(ready)
    return json.dumps(ready, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object without its field `sha256`, whatever its order and spaces."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def decode_floats(result: dict[str, Any]) -> Any:
    """Read the floats that `sealed_json` wrote; an `object_hook`."""
    return _NOT_FINITE[result["$float"]] if result.keys() == {"$float"} else result


_NOT_FINITE = {repr(value): value for value in (math.nan, math.inf, -math.inf)}
