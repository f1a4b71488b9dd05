"""Warnings that a process collects for its driver to print.

Nobody sees the output of a worker. Its warnings wait here until they are sent to the driver with
the result of a trial's step, of a preparation, or of `unlearnbench run`.
"""

_pending: list[str] = []
"""Warnings that have not been sent."""
_given: set[str] = set()
"""All warnings of `warn_once` in this process."""


def warn_later(text: str) -> None:
    """Add one line for the user."""
    _pending.append(text)


def warn_once(text: str) -> None:
    """Add one line for the user, unless this process has added it before."""
    if text not in _given:
        _given.add(text)
        warn_later(text)


def drain() -> list[str]:
    """Return all pending warnings and forget them."""
    lines = list(_pending)
    _pending.clear()
    return lines
