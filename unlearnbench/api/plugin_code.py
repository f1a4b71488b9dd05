"""Calls of plug-ins' code. What the code raises becomes a PluginError with its place."""

import inspect
import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearnbench.base.errors import PluginError, UnlearnbenchError, did_you_mean
from unlearnbench.base.signals import Stopped

LONGEST = 300
"""Largest number of characters of a plug-in's own text in a message."""
_DEVICE = re.compile(r"out of memory|can't allocate|\b(CUDA|CUBLAS|CUDNN|NCCL|HIP)\b|Gloo", re.I)
"""Texts of errors of a device or of another process, which the called code has not caused."""
_NOT_OWN = re.compile(
    rf"^{re.escape(str(Path(__file__).parents[1]))}/|/site-packages/|^<frozen|/lib/python3"
)
"""Paths of files that belong to this package, to another library, or to Python."""


@contextmanager
def plugin_code(
    subject: str, file: str = "", passing: type[Exception] = UnlearnbenchError
) -> Generator[None, None, None]:
    """Turn exceptions of the code inside the `with` into a PluginError.

    Errors of this package pass unchanged. So do errors of a device, because their remedies have
    nothing to do with the plug-in.

    Args:
        subject: The code, for the message: `the loss of NPO`.
        file: The plug-in's file, see `place`.
        passing: Exceptions that pass unchanged because the caller handles them.

    Raises:
        PluginError: The code has raised something else. The message has its place.
    """
    try:
        yield
    except (UnlearnbenchError, Stopped, GeneratorExit, passing):
        raise
    except (Exception, SystemExit) as error:  # plug-in code may raise anything
        is_of_device = isinstance(error, RuntimeError) and _DEVICE.search(str(error)) is not None
        if is_of_device or isinstance(error, MemoryError):
            raise
        raise PluginError(f"{subject} raised {describe(error, file)}") from error


# It is asked for before each call of a metric, and to find the file takes as long as many calls.
@lru_cache(maxsize=1024)
def source_file(kind: type[Any]) -> str:
    """Return the file that defines a class. Empty for a class from a notebook."""
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):
        return ""


def describe(error: BaseException, file: str = "") -> str:
    """Describe an exception, as in `TypeError: message (file.py:12)`.

    Args:
        error: The exception. An error of this package is described without the name of its type.
        file: See `place`.

    Returns:
        One line that is safe to print.
    """
    # The text of a SyntaxError ends with its place, which its `msg` does not have.
    text = plain_line(str(error.msg if isinstance(error, SyntaxError) else error))
    if isinstance(error, AttributeError) and error.name:
        text += did_you_mean(error.name, dir(error.obj))
    parts = [text] if text else []
    if not isinstance(error, UnlearnbenchError):
        parts.insert(0, type(error).__name__)
    where = place(error, file)
    if not where:
        return ": ".join(parts)
    return f"{': '.join(parts)} ({where})"


def place(error: BaseException, file: str = "") -> str:
    """Return where an exception was raised, as in `file.py:12`.

    Args:
        error: The exception.
        file: The file whose last frame is meant. If it has no frame, or is empty, the last frame
            outside all libraries is meant, or else the last frame.

    Returns:
        The place. Empty if the exception has no frame.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _place_text(error.filename, error.lineno)
    frames = [*traceback.extract_tb(error.__traceback__)]
    in_file = [frame for frame in frames if frame.filename == file]
    outside_libraries = [frame for frame in frames if not _NOT_OWN.search(frame.filename)]
    candidates = in_file or outside_libraries or frames
    if not candidates:
        return ""
    last = candidates[-1]
    return _place_text(last.filename, last.lineno)


def _place_text(path: str, line: int | None) -> str:
    _, _, name = path.rpartition("/")
    return f"{plain_line(name)}:{line}"


def plain_line(text: str) -> str:
    """Return a text as one line of at most `LONGEST` characters."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
