"""Bounds on what is read: sizes, nesting, numbers and names that come from outside.

Every reader of YAML, JSON and JSON lines goes through this file, so that any input ends within
seconds in a value or in `BoundsError`, a ValueError that each reader turns into its own error.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import reprlib
import stat
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CONFIG_BYTES = 128 << 10
"""A configuration; PyYAML reads about this much in a second."""
TEXT_BYTES = 16 << 20
"""A text file, such as refusals."""
LINE_BYTES = 16 << 20
"""A line of JSON; one of a leaderboard is about 50 kB per epoch."""
FILE_BYTES = 256 << 20
"""A file of JSON, unpacked."""
DEPTH = 64
"""Lists and objects within each other; records have 8."""
MAX_INTEGER = 2**63
"""Whole numbers lie below it, as in NumPy and PyTorch."""
QUESTIONS = 10_000
"""Of an evaluation set; TOFU's largest has 4000. The exact KS test takes seconds for so many."""
SAMPLES = 1_000_000
"""Sampled answers to the questions of an evaluation set, whose texts are then about 200 MB."""
PART_BYTES, PATH_BYTES = 255, 4096
"""A path's part and a whole path, as Linux takes them."""

_MANY_DIGITS = re.compile(r"[0-9]{19}")
_LARGE_FLOAT = re.compile(r"[eE]\+?[0-9]{3}|[0-9]{300}")
_GZIP_MAGIC = b"\x1f\x8b"
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_WHITE = frozenset("\n\r\t")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


class BoundsError(ValueError):
    """An input beyond a bound of this file, or not a regular file."""


def shortened(value: object) -> str:
    """`repr(value)`, its middle left out beyond 80 characters: what messages quote."""
    return _SHORT.repr(value)


def read_bytes(path: Path, limit: int = FILE_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    Raises: BoundsError for a larger file, or a device, pipe or folder; OSError.
    """
    with _opened(path, limit) as file:
        return file.read(limit)


def _opened(path: Path, limit: int) -> io.BufferedReader:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe without a writer would block in `open`
        raise BoundsError("not a regular file but a folder, device or pipe; give a file")
    if found.st_size > limit:
        raise BoundsError(f"more than {_size(limit)}, the bound on such a file")
    return path.open("rb")


def decompress(content: bytes, limit: int = FILE_BYTES) -> bytes:
    """Decompress gzip; other content is returned as it is. Raises: BoundsError."""
    if not content.startswith(_GZIP_MAGIC):
        return content
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(limit + 1)
    if len(found) > limit:
        raise BoundsError(f"more than {_size(limit)} when unpacked, the bound on such a file")
    return found


def numbered_lines(
    path: Path, limit: int = FILE_BYTES, longest: int = LINE_BYTES
) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line without its end); a line beyond `longest` is cut to one byte more.

    Raises: BoundsError for a file beyond `limit` bytes, or not a regular one; OSError.
    """
    number = 0
    with _opened(path, limit) as file:
        # Only "\n" ends a line: JSON lets U+2028 and others stand inside a text.
        while part := file.readline(longest + 1):
            number += 1
            yield number, part.removesuffix(b"\n")
            while len(part) > longest and not part.endswith(b"\n"):  # the rest of its line
                part = file.readline(longest + 1)


def parse_json(
    content: str | bytes,
    object_hook: Callable[[dict[str, Any]], Any] | None = None,
    *,
    constants: bool = True,
) -> Any:
    """JSON as values: numbers within 64 bits, no key twice, at most DEPTH levels.

    constants  whether NaN, Infinity and -Infinity are read, which Python writes and JSON lacks

    Raises: ValueError (JSONDecodeError, UnicodeDecodeError, BoundsError).
    """

    def pairs(items: list[tuple[str, Any]]) -> Any:
        found = dict(items)
        if len(found) < len(items):
            counts = Counter(key for key, _ in items)
            twice = next(key for key, count in counts.items() if count > 1)
            raise BoundsError(f"the key {shortened(twice)} stands twice in one object")
        return found if object_hook is None else object_hook(found)

    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = json.loads(
            text,
            # Numbers are looked at one by one only where one of them can be too large.
            parse_int=_whole if _MANY_DIGITS.search(text) else None,
            parse_float=_float if _LARGE_FLOAT.search(text) else None,
            parse_constant=float if constants else _refuse_constant,
            object_pairs_hook=pairs,
        )
    except RecursionError:
        value = None
        too_deep = True
    else:
        too_deep = _deeper_than(value, DEPTH)
    if too_deep:
        raise BoundsError(f"lists and objects lie within each other more than {DEPTH} deep")
    return value


def _whole(digits: str) -> int:
    if len(digits) <= 20 and -MAX_INTEGER <= (value := int(digits)) < MAX_INTEGER:
        return value
    raise BoundsError(f"a whole number of {len(digits.lstrip('-'))} digits; the bound is 2^63")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BoundsError(f"the number {shortened(digits)[1:-1]} is beyond a float's 1.8e308")
    return value


def _refuse_constant(name: str) -> Any:
    raise BoundsError(f"{name} is not JSON")


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        # A level at a time, without recursion.
        level = [
            item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return any(isinstance(one, dict | list) for one in level)


def whole_number(text: str) -> int | None:
    """The value of up to nine ASCII digits; None of any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def text_problem(text: str) -> str:
    """Describe a character that files or terminals cannot have; "" without one."""
    for character in text:
        category = unicodedata.category(character)
        if category == "Cs":
            return f"holds half a character (the surrogate U+{ord(character):04X})"
        if (category == "Cc" and character not in _WHITE) or character in _BIDIRECTIONAL:
            return f"holds the control character U+{ord(character):04X}"
    return ""


def name_problem(text: str) -> str:
    """Return why a text cannot be a name or a path; "" if it can."""
    wrong = text_problem(text)
    if not wrong and not _WHITE.isdisjoint(text):
        wrong = "holds an end of line or a tab"
    if wrong:
        return wrong
    longest = max(len(part.encode()) for part in text.split("/"))
    if longest > PART_BYTES:
        return f"has a part of {longest} bytes; files and folders have names of {PART_BYTES}"
    size = len(text.encode())
    return f"has {size} bytes; a path has at most {PATH_BYTES}" if size > PATH_BYTES else ""


def expand_user(text: str) -> Path:
    """The path, with `~` as the home folder. Raises: BoundsError where there is none."""
    wrong = name_problem(text)
    if wrong:
        raise BoundsError(wrong)
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise BoundsError(f"no home folder for {text.partition('/')[0]!r}") from None


def _size(limit: int) -> str:
    return f"{limit >> 20} MiB" if limit >> 20 else f"{limit >> 10} KiB"
