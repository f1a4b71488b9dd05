"""Plug-in files as modules, and calls of their code: what they raise becomes a PluginError."""

import inspect
import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlearnbench.base.errors import PluginError, UnlearnbenchError, did_you_mean
from unlearnbench.base.signals import Stopped

LONGEST = 300
"""Most characters of a plug-in's own text in a message."""
_DEVICE = re.compile(r"out of memory|can't allocate|\b(CUDA|CUBLAS|CUDNN|NCCL|HIP)\b|Gloo", re.I)
"""Errors of a device or of another process, which the called code has not caused."""
_NOT_OWN = re.compile(
    rf"^{re.escape(str(Path(__file__).parents[1]))}/|/site-packages/|^<frozen|/lib/python3"
)


@contextmanager
def plugin_code(
    subject: str, file: str = "", passing: type[Exception] = UnlearnbenchError
) -> Generator[None, None, None]:
    """Turn exceptions of the code inside into a PluginError: `subject` raised …, with its place.

    subject  such as "the loss of NPO";  file  the plug-in's file, whose frames are named
    passing  exceptions that the caller handles itself

    Errors of this package pass unchanged, and so do those of a device, which have other remedies.
    """
    try:
        yield
    except (UnlearnbenchError, Stopped, GeneratorExit, passing):
        raise
    except (Exception, SystemExit) as error:  # plug-in code may raise anything
        of_device = isinstance(error, RuntimeError) and _DEVICE.search(str(error))
        if of_device or isinstance(error, MemoryError):
            raise
        raise PluginError(f"{subject} raised {describe(error, file)}") from error


def source_file(kind: type[Any]) -> str:
    """The file that defines a class; empty for one made in a notebook."""
    try:
        return inspect.getfile(kind)
    except (TypeError, OSError):
        return ""


def describe(error: BaseException, file: str = "") -> str:
    """`TypeError: message (file.py:12)` in one line that is safe to print."""
    # A SyntaxError's text ends with its place.
    text = plain_line(str(error.msg if isinstance(error, SyntaxError) else error))
    if isinstance(error, AttributeError) and error.name:
        text += did_you_mean(error.name, dir(error.obj))
    name = "" if isinstance(error, UnlearnbenchError) else type(error).__name__
    where = place(error, file)
    return ": ".join(filter(None, [name, text])) + (f" ({where})" if where else "")


def place(error: BaseException, file: str = "") -> str:
    """`file.py:12`: the last frame in `file`, or else in a file outside all libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{plain_line(error.filename.rpartition('/')[2])}:{error.lineno}"
    part = [frame for frame in frames if frame.filename == file]
    # Without a file: frames outside this package and all libraries.
    part = part or [f for f in frames if not _NOT_OWN.search(f.filename)]
    last = (part or [*frames])[-1:]
    return "".join(f"{plain_line(f.filename.rpartition('/')[2])}:{f.lineno}" for f in last)


def plain_line(text: str) -> str:
    """`text` as one line of at most `LONGEST` characters."""
    plain = " ".join(text.split())
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"
