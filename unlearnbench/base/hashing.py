"""Hashes of files, tensors and JSON values.

Hashes of files find damage. Hashes of JSON values are ids, so the same value has to have the same
text everywhere: keys in order, no spaces, and text for floats that are not finite.
"""

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
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


BIG = 1 << 20
"""Bytes of a file from which on its hash is kept. To hash 14 GB takes ten seconds or more."""


def content_of_files(paths: Iterable[Path]) -> str:
    """Return 16 hex digits of the SHA-256 of files' names and contents, in any order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + bytes.fromhex(kept_hash(path)))
    return digest.hexdigest()[:16]


def user_cache(kind: str) -> Path:
    """Return the folder of the user's cache for a kind of files. It need not exist."""
    home = os.environ.get("HOME") or gettempdir()
    cache = os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    return Path(cache, "unlearnbench", kind)


def kept_hash(path: Path) -> str:
    """Return the hash of a file, as `file_hash` does.

    The hash of a big file is kept in the user's cache until the file changes.
    """
    status = path.stat()
    if status.st_size < BIG:
        return file_hash(path)
    state = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return _hash_of_state(path.resolve(), state)


# The process remembers hashes, too, because there may be no cache on disk that can be written.
@lru_cache(maxsize=1024)
def _hash_of_state(path: Path, state: str) -> str:
    """Return the hash of a file in a state.

    Args:
        path: The file, with symbolic links resolved.
        state: Its size, times and inode. If one of them has changed, it is hashed again.
    """
    kept = user_cache("hashes") / hashlib.sha256(os.fsencode(path)).hexdigest()
    with suppress(OSError, ValueError):
        digest, _, kept_state = kept.read_text(encoding="utf-8").partition(" ")
        if kept_state == state:
            return digest
    digest = file_hash(path)
    with suppress(OSError):
        write_text(kept, f"{digest} {state}")
    return digest


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors' names, types, shapes and values in hexadecimal digits."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def json_ready(value: Any, encode: Callable[[float], Any] = str) -> Any:
    """Return a value with lists for tuples and text for keys.

    Args:
        value: Tree of values.
        encode: Makes a value of each float that is not finite. By default, this is its text: `nan`.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else encode(value)
    # Ids are computed by the ten thousand. Most values are plain, so no call is made for them.
    if isinstance(value, Mapping):
        return {
            str(key): child if type(child) in _PLAIN else json_ready(child, encode)
            for key, child in value.items()
        }
    if isinstance(value, list | tuple):
        return [child if type(child) in _PLAIN else json_ready(child, encode) for child in value]
    return value


_PLAIN = frozenset({str, int, bool, type(None)})
"""Types of the values that JSON has as they are."""


def content_hash(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of a value as canonical JSON."""
    return plain_hash(json_ready(value))


def plain_hash(value: Any) -> str:
    """Return `content_hash(value)` if all keys are texts and all numbers are finite.

    The value is not converted before, because for a large value that takes most of the time.

    Raises:
        ValueError: A number is not finite.
    """
    return text_hash(canonical_json(value))


def canonical_json(value: Any) -> str:
    """Return the text of a value whose hash is its id: keys in order, and no spaces.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def text_hash(text: str) -> str:
    """Return the first 16 hex digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sealed_json(document: Mapping[str, Any]) -> str:
    """Return a JSON object as text, with its own hash under the key `sha256`.

    A float that is not finite is written as `{"$float": "nan"}`, see `decode_floats`.
    """
    ready = json_ready(document, lambda number: {"$float": repr(number)})
    ready["sha256"] = document_hash(ready)
    return json.dumps(ready, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_hash(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object without its key `sha256`, whatever its order."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def decode_floats(decoded: dict[str, Any]) -> Any:
    """Return the float that `sealed_json` wrote as an object, or any other object unchanged.

    Args:
        decoded: An object that `json` has decoded. This function is its `object_hook`.
    """
    is_float = decoded.keys() == {"$float"}
    return _NOT_FINITE[decoded["$float"]] if is_float else decoded


_NOT_FINITE = {repr(value): value for value in (math.nan, math.inf, -math.inf)}
"""Floats that JSON has no text for, by their names: `nan`, `inf` and `-inf`."""
