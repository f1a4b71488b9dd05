"""The reason why a process of a sweep failed, in one line, from Ray's text about it.

Ray describes a failure by a text. If the process raised an exception, the text is the traceback. It
is reported by the exception's type and message. If the process ended without an exception, the text
says how it ended. Then only what Ray has seen is reported, because the cause is not known here: it
may be the kernel, a signal, or a crash of a library.
"""

import re

LONGEST = 500
"""Largest number of characters of a reason. The record has the whole text."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MODULES = re.compile(r"^(?:\w+\.)+(?:RayActorError: |(?=\w+(?::|$)))")
"""Names of modules before an error's name, as in `torch.cuda.OutOfMemoryError`.

A worker that was pre-empted reports its error inside a RayActorError, whose name is matched, too.
"""
_EXIT_DETAIL = re.compile(
    r"Worker exit detail: (.*?)\.?(?: Some common causes| There are some potential|$)"
)
_EXIT_CODE = re.compile(r"Worker exits with an exit code -?\d+")
_DEATHS = ("The actor died unexpectedly", "The actor is dead", "The worker died unexpectedly")
"""Beginnings of the lines by which Ray reports a process that ended without an exception."""


def plain_text(text: str) -> str:
    """Return a text without the codes for colours in terminals."""
    return _COLOURS.sub("", text).strip()


def reason_in(text: str) -> str:
    """Return the reason of a failure in one line, such as `ValueError: no such layer`."""
    lines = [line.rstrip() for line in plain_text(text).splitlines() if line.strip()]
    if not lines:
        return "no message"
    frames = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    if not frames:
        return _reason_without_traceback(lines)
    # Below the last frame stand its indented source lines, and then the exception: its name, and
    # a message of one or more lines.
    exception = frames[-1] + 1
    while exception < len(lines) - 1 and lines[exception].startswith(" "):
        exception += 1
    return _shortened(" ".join(line.strip() for line in lines[exception:]))


def _reason_without_traceback(lines: list[str]) -> str:
    """Return the reason of a failure whose text has no traceback."""
    has_died = any(line.startswith(_DEATHS) for line in lines)
    if not has_died:
        return _shortened(lines[-1].strip())
    details = [match[1] for match in map(_EXIT_DETAIL.search, lines) if match]
    exit_codes = [match[0] for match in map(_EXIT_CODE.search, details) if match]
    if exit_codes:
        return f"its process ended without an exception ({exit_codes[0]})"
    detail = f" ({_shortened(details[0])})" if details else ""
    return (
        f"its process died without an exception{detail}; the kernel's log (dmesg) names processes "
        "that were ended because memory was full"
    )


def _shortened(reason: str) -> str:
    """Return a reason without names of modules, and with at most `LONGEST` characters."""
    reason = _MODULES.sub("", reason)
    return reason if len(reason) <= LONGEST else reason[: LONGEST - 1] + "…"
