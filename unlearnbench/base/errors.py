"""Errors that a user can correct. Each is printed as one line without a traceback.

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
    """Return `repr(value)` as messages quote it: without its middle beyond 80 characters."""
    return _SHORT.repr(value)


class UnlearnbenchError(Exception):
    """Base of all errors that a user can correct. The command line exits with code 2."""


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: its place (`file:line`), key and message."""

    place: str
    key: str
    message: str


class ConfigError(UnlearnbenchError):
    """All problems of a configuration, one per line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Write the problems as a table with the columns place, key and message."""
        self.problems = tuple(problems)
        place_width = max((len(problem.place) for problem in problems), default=0)
        key_width = max((len(problem.key) for problem in problems), default=0)
        lines: list[str] = []
        for problem in problems:
            cells = [problem.place.ljust(place_width)]
            # There is no column of keys if no problem has one.
            if key_width:
                cells.append(problem.key.ljust(key_width))
            lines.append("  ".join([*cells, problem.message]))
        count = f"{len(problems)} error{'s' if len(problems) != 1 else ''}; no run was started."
        super().__init__("\n".join([*lines, count]))


class DataError(UnlearnbenchError):
    """A benchmark file or row that is missing or malformed."""


class ModelError(UnlearnbenchError):
    """A model or tokenizer that cannot be loaded or does not fit."""


class PluginError(UnlearnbenchError):
    """A method, config or dashboard that is unknown, duplicate or broken."""


class UnavailableError(PluginError):
    """A download or setting is missing that a plug-in needs. The plug-in is not at fault."""


class TrainingError(UnlearnbenchError):
    """A run that cannot continue, such as with a loss that is not finite."""


class EvaluationError(UnlearnbenchError):
    """Numbers that cannot be computed, or must not be compared."""


class RecordError(UnlearnbenchError):
    """Results on disk that are damaged, or belong to something else."""


class DamagedError(RecordError):
    """A record whose content is damaged, so that its run can be repeated."""


class OutputError(UnlearnbenchError):
    """An output path that cannot be written, or must not be."""


class StorageError(UnlearnbenchError):
    """A storage that does not respond."""


class StartOverError(UnlearnbenchError):
    """Out of memory in one of a run's processes. The run restarts with a smaller size."""

    def __init__(self, message: str, size: int = 0) -> None:
        """State the message and the size.

        Args:
            message: Text of the error.
            size: Estimated number of rows of a micro-batch that fits.
        """
        super().__init__(message)
        self.size = size


_DETERMINISTIC = (
    ConfigError,
    DataError,
    PluginError,
    TrainingError,
    EvaluationError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)

TRANSIENT = (OSError, RuntimeError, MemoryError, EOFError, ModelError, RecordError, StorageError)
"""Errors of disks, networks, devices and dead processes, which a retry may not meet again."""


def is_deterministic(error: BaseException) -> bool:
    """Whether the same work would raise the same error, because no disk or network is involved."""
    return isinstance(error, _DETERMINISTIC)


def no_room(text: str, location: object = None) -> OutputError | None:
    """Return the error that ends a command if a disk is full.

    Args:
        text: Text of an error, such as `[Errno 28] No space left on device: 'a.json'`.
        location: Place for the message. None for the beginning of `text`.

    Returns:
        None if the text does not say that a disk is full.
    """
    before, reason, _ = text.partition(os.strerror(errno.ENOSPC))
    if not reason:
        return None
    place = f"{location}: " if location else before
    return OutputError(f"{place}{reason}; make room and run the same command again")


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
        cutoff: Smallest similarity of a misspelling, from 0 to 1.
    """
    name_of_lower_case = {known_name.lower(): known_name for known_name in known}
    candidates = list(name_of_lower_case)
    word = name.lower()
    # Initials are few letters, so a misspelling of another name may look more similar.
    near = [candidate for candidate in candidates if _initials(candidate) == word]
    if not near:
        near = get_close_matches(word, candidates, n=1, cutoff=cutoff)
    if not near:
        near = [candidate for candidate in candidates if _abbreviates(word, candidate)]
    return f"; did you mean {name_of_lower_case[near[0]]!r}?" if near else ""


def _parts(name: str) -> list[str]:
    return re.split("[-_]", name)


def _initials(name: str) -> str:
    return "".join(part[:1] for part in _parts(name))


def _abbreviates(word: str, name: str) -> bool:
    """Whether a word has the first letters of a name's parts, or a name without middle letters."""
    if len(word) < 2:
        return False
    parts = _parts(word)
    parts_of_name = _parts(name)
    has_first_letters = all(map(str.startswith, parts_of_name, parts))
    if has_first_letters and len(parts) <= len(parts_of_name):
        return True
    # `in` takes letters from the iterator up to a match, so the next search begins after it.
    remaining = iter(name)
    is_subsequence = all(letter in remaining for letter in word)
    return is_subsequence and word[0] == name[0] and word[-1] == name[-1]
