"""Errors that a user can correct; each is printed as one line without a traceback.

A message names the place, the value, the rule and the fix.
"""

import errno
import os
import re
import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlevel = 3


def shortened(value: object) -> str:
    """`repr(value)`, its middle left out beyond 80 characters: what messages quote."""
    return _SHORT.repr(value)


class UnlearnbenchError(Exception):
    """Base of all errors that a user can correct; the command line exits with code 2."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: its place (`file:line`), key and message."""

    place: str
    key: str
    message: str


class ConfigError(UnlearnbenchError):
    """All problems of a configuration, one per line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        location = max((len(p.place) for p in problems), default=0)
        key = max((len(p.key) for p in problems), default=0)
        lines = [
            f"{p.place:<{location}}  {f'{p.key:<{key}}  ' if key else ''}{p.message}"
            for p in problems
        ]
        count = f"{len(problems)} error{'s' if len(problems) != 1 else ''}; no run was started."
        super().__init__("\n".join([*lines, count]))


class DataError(UnlearnbenchError):
    """A benchmark file or row that is missing or malformed."""


class ModelError(UnlearnbenchError):
    """A model or tokenizer that cannot be loaded or does not fit."""


class PluginError(UnlearnbenchError):
    """A method, config or dashboard that is unknown, duplicate or broken."""


class UnavailableError(PluginError):
    """A download or setting without which a plug-in works nowhere; the plug-in is not at fault."""


class TrainingError(UnlearnbenchError):
    """A run that cannot continue, such as with a loss that is not finite."""


class EvaluationError(UnlearnbenchError):
    """Numbers that cannot be computed or must not be compared."""


class RecordError(UnlearnbenchError):
    """Results on disk that are damaged, or belong to something else."""


class DamagedError(RecordError):
    """A record whose content is damaged: its run can be repeated."""


class OutputError(UnlearnbenchError):
    """An output path that cannot be written, or must not be."""


class StorageError(UnlearnbenchError):
    """A storage that does not respond."""


class StartOverError(UnlearnbenchError):
    """Out of memory in one of a run's processes; the run restarts with a smaller size."""

    def __init__(self, message: str, size: int = 0) -> None:
        """`size` is the estimated number of rows of a micro-batch that fits."""
        super().__init__(message)
        self.size = size


_DETERMINISTIC = (
    *(ConfigError, DataError, PluginError, TrainingError, EvaluationError),
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, SyntaxError, TypeError, ValueError),
)

TRANSIENT = (OSError, RuntimeError, MemoryError, EOFError, ModelError, RecordError, StorageError)
"""Errors of disks, networks, devices and dead processes, which a retry may not meet again."""


def is_deterministic(error: BaseException) -> bool:
    """True if the same work would raise the same error: no disk, network or device is involved."""
    return isinstance(error, _DETERMINISTIC)


def no_room(text: str, location: object = None) -> OutputError | None:
    """The error that ends a command, where the text of an error says that a disk is full.

    location  default: what the text names
    """
    before, reason, _ = text.partition(os.strerror(errno.ENOSPC))
    before = f"{location}: " if location else before
    fix = "make room and run the same command again"
    return OutputError(f"{before}{reason}; {fix}") if reason else None


NEAR = 0.65
"""Least similarity, as difflib measures it, at which a name is taken for a misspelling."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = NEAR) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or empty text if none is near.

    Misspellings (`ceu` for ce-u) and abbreviations are near: initials (`GA` for gradient-ascent),
    first letters of each part (`grad_diff` for gradient-difference) or of the whole (`quick`), and
    a word without its middle letters (`wt` for weight).

    Args:
        name: What was written.
        known: What could have been meant.
        cutoff: Least similarity of a misspelling, from 0 to 1.
    """
    names = {item.lower(): item for item in known}
    word = name.lower()
    near = [item for item in names if "".join(part[:1] for part in _parts(item)) == word]
    near = near or get_close_matches(word, names, n=1, cutoff=cutoff)
    near = near or [item for item in names if _abbreviates(word, item)]
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _parts(name: str) -> list[str]:
    return re.split("[-_]", name)


def _abbreviates(word: str, name: str) -> bool:
    if len(word) < 2:
        return False
    parts, parts_of_name = _parts(word), _parts(name)
    if len(parts) <= len(parts_of_name) and all(map(str.startswith, parts_of_name, parts)):
        return True
    letters = iter(name)
    is_subsequence = all(letter in letters for letter in word)
    return is_subsequence and word[0] == name[0] and word[-1] == name[-1]
