"""Where plug-in code is called: whatever it raises becomes one PluginError with name and place.

`sys.exit()` and a KeyboardInterrupt that the code raises itself are errors like any other: without
this they would end a command as if it had succeeded, or had been interrupted by its user.
"""

from __future__ import annotations

import dis
import re
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from unlearnbench.errors import PluginError, UnlearnbenchError, did_you_mean
from unlearnbench.stopping import Stopped

LONGEST = 300
"""Characters of a plug-in's own words in a message."""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
_DEVICE = re.compile(r"out of memory|can't allocate|\b(CUDA|CUBLAS|CUDNN|NCCL|HIP)\b|Gloo", re.I)
"""Errors of a device or of another process, which the code at hand is not the cause of."""
_NOT_OWN = re.compile(
    rf"^{re.escape(str(Path(__file__).parent))}/|/site-packages/|^<frozen|/lib/python3"
)


@contextmanager
def plugin_code(
    what: str, file: str = "", passing: type[Exception] = UnlearnbenchError
) -> Generator[None, None, None]:
    """Turn whatever the code inside raises into a PluginError: `what` raised …, with its place.

    what     such as "the loss of NPO";  file  the plug-in's own, whose frames are the cause
    passing  what the caller expects and handles itself

    Errors of this package pass as they are, and so do those of a device, which have other remedies.
    """
    try:
        yield
    except (UnlearnbenchError, Stopped, GeneratorExit, passing):
        raise
    except KeyboardInterrupt as error:
        if not _is_raised_by_code(error):
            raise
        raise PluginError(f"{what} raised {describe(error, file)}") from error
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or _DEVICE.search(str(error)):
            raise
        raise PluginError(f"{what} raised {describe(error, file)}") from error
    except SystemExit as error:
        text = f"{what} called sys.exit({error.code!r}), which ends no run and no command"
        raise PluginError(f"{text} ({place(error, file)})") from error
    except Exception as error:
        raise PluginError(f"{what} raised {describe(error, file)}") from error


def describe(error: BaseException, file: str = "") -> str:
    """`TypeError: message (file.py:12)` in one line that is safe to print."""
    text = near = ""
    with suppress(Exception):  # `__str__` and `__dir__` are a stranger's as well
        text = plain_line(str(error))
        if isinstance(error, AttributeError) and error.name is not None:
            known = [name for name in dir(error.obj) if not name.startswith("_")]
            near = did_you_mean(error.name, known)
    name = type(error).__name__
    where = place(error, file)
    return f"{name}{': ' * bool(text)}{text}{near}" + (f" ({where})" if where else "")


def place(error: BaseException, file: str = "") -> str:
    """`file.py:12`, the last frame in `file`, or else in any file that is no library's."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{plain_line(error.filename.rpartition('/')[2])}:{error.lineno}"
    own = [frame for frame in frames if frame.filename == file]
    # Where no file is known, what is neither ours nor a library's.
    own = own or [f for f in frames if not _NOT_OWN.search(f.filename)]
    last = (own or [*frames])[-1:]
    return "".join(f"{plain_line(f.filename.rpartition('/')[2])}:{f.lineno}" for f in last)


def plain_line(text: str) -> str:
    """`text` in one line of at most `LONGEST` characters, without anything that moves a cursor."""
    plain = "".join(c if c.isprintable() else " " for c in _ESCAPE.sub("", text))
    plain = " ".join(plain.split())
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"


def _is_raised_by_code(error: KeyboardInterrupt) -> bool:
    """True if a `raise` statement raised it; a signal interrupts any other instruction."""
    last: TracebackType | None = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or last.tb_lasti < 0:
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
