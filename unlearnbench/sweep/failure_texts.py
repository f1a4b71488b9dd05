"""Why a process of a sweep failed, in one line, from what Ray says about it.

Ray describes a failure in a text: the traceback of an exception, or how a process ended that raised
none. An exception is reported by its type and message, in whatever phase of the process it was
raised. Of a process that ended without an exception only what Ray has seen is reported, because its
cause (the kernel, a signal, a crash of a library) is not known here.
"""

import re

LONGEST = 500
"""Characters of a reason: the whole text stands in the record."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MODULES = re.compile(r"^(?:\w+\.)+(?:RayActorError: |(?=\w+(?::|$)))")
"""Names of modules in front of an error's name, and the error by which a worker reports that it was
pre-empted."""
_EXIT = re.compile(
    r"Worker exit detail: (.*?)\.?(?: Some common causes| There are some potential|$)"
)
_CODE = re.compile(r"Worker exits with an exit code -?\d+")
_DEATHS = ("The actor died unexpectedly", "The actor is dead", "The worker died unexpectedly")


def plain_text(text: str) -> str:
    """The text without the colours of terminals."""
    return _COLOURS.sub("", text).strip()


def reason_in(text: str) -> str:
    """The reason of a failure in one line: `ValueError: no such layer`."""
    lines = [line.rstrip() for line in plain_text(text).splitlines() if line.strip()]
    frames = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    if not frames:
        return _ending(lines) if lines else "no message"
    # Below the last frame is the exception: its name, and a message of one or more lines.
    after = frames[-1] + 1
    while after < len(lines) - 1 and lines[after].startswith(" "):
        after += 1
    return _shortened(" ".join(line.strip() for line in lines[after:]))


def _ending(lines: list[str]) -> str:
    """The reason of a failure without a traceback."""
    last = lines[-1].strip()
    if not any(line.startswith(_DEATHS) for line in lines):
        return _shortened(last)
    details = [found[1] for line in lines if (found := _EXIT.search(line))]
    code = next((found[0] for detail in details if (found := _CODE.search(detail))), None)
    if code is not None:
        return f"its process ended without an exception ({code})"
    seen = f" ({_shortened(details[0])})" if details else ""
    return (
        f"its process died without an exception{seen}; the kernel's log (dmesg) names processes "
        "that were ended because memory was full"
    )


def _shortened(reason: str) -> str:
    reason = _MODULES.sub("", reason)
    return reason if len(reason) <= LONGEST else reason[: LONGEST - 1] + "…"
