"""What can go wrong through no fault of the program, one line each, without a traceback.

UnlearnbenchError         base: the command line prints it and exits with code 2
├── ConfigError           one or more problems in a configuration, all reported at once
├── DataError             a benchmark file or row that is missing or malformed
├── ModelError            a model or tokenizer that cannot be loaded or does not fit
├── PluginError           a method, config or dashboard that is unknown, doubled or broken
├── TrainingError         a run that cannot go on, such as a loss that is not finite
├── EvaluationError       numbers that cannot be computed or must not be compared
├── RecordError           results on disk that are damaged, or belong to something else
│   └── DamagedError      a record that is not what was written: its run can be done again
├── OutputError           a place to write to that cannot be written, or must not be
├── StorageError          a storage (`storage: s3://…`) that does not answer
└── StartOverError        memory ran out in one of several processes; a smaller size is noted

A message names the place, the value, the rule and the fix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


class UnlearnbenchError(Exception):
    """Base of every error that a user can mend."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a configuration: where (`file:line`), under which key, and what."""

    place: str
    key: str
    message: str


class ConfigError(UnlearnbenchError):
    """All the problems of a configuration, a line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        place = max((len(p.place) for p in problems), default=0)
        key = max((len(p.key) for p in problems), default=0)
        lines = [f"{p.place:<{place}}  {p.key:<{key}}  {p.message}" for p in problems]
        count = f"{len(problems)} error{'s' if len(problems) != 1 else ''}; nothing was run."
        super().__init__("\n".join([*lines, count]))


class DataError(UnlearnbenchError):
    """A benchmark file or row that is missing or malformed."""


class ModelError(UnlearnbenchError):
    """A model or tokenizer that cannot be loaded or does not fit."""


class PluginError(UnlearnbenchError):
    """A method, config or dashboard that is unknown, doubled or broken."""


class TrainingError(UnlearnbenchError):
    """A run that cannot go on."""


class EvaluationError(UnlearnbenchError):
    """Numbers that cannot be computed or must not be compared."""


class RecordError(UnlearnbenchError):
    """Results on disk that are damaged, or belong to something else."""


class DamagedError(RecordError):
    """A record that is not what was written."""


class OutputError(UnlearnbenchError):
    """A place to write to that cannot be written, or must not be."""


class StorageError(UnlearnbenchError):
    """A storage that does not answer."""


class StartOverError(UnlearnbenchError):
    """Memory ran out in one of a run's processes; the run starts over with the size noted."""

    def __init__(self, message: str, size: int = 0) -> None:
        """`size` is what fits, as it seems: rows of a micro-batch."""
        super().__init__(message)
        self.size = size


_SAME_AGAIN = (
    *(ConfigError, DataError, PluginError, TrainingError, EvaluationError),
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError),
    *(NotImplementedError, SyntaxError, TypeError, ValueError),
)

TRANSIENT = (OSError, RuntimeError, MemoryError, EOFError, ModelError, RecordError, StorageError)
"""What another try may not meet again: a disk, a network, a device, a process that died."""


def is_deterministic(error: BaseException) -> bool:
    """True if the same work would raise the same error: no disk, network or device is involved."""
    return isinstance(error, _SAME_AGAIN)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """`; did you mean 'x'?` for the nearest known name, or nothing where none is near.

    cutoff  least similarity, 0 to 1, as difflib measures it
    """
    near = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
