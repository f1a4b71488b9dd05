"""Warnings that a process collects for its driver to print.

The output of a worker goes nowhere, so its warnings wait here until they are sent back together
with a result: of a trial's step, of a preparation, or of `unlearnbench run`.
"""

_pending: list[str] = []
_given: set[str] = set()
"""Lines of `warn_once`."""


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
