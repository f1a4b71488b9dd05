"""What a process found damaged and mended, told where a person reads it.

A worker's own output goes nowhere, so each notice waits here until whoever drives the work (a
trial's step, a preparation, `unlearnbench run`) takes it along with its result.
"""

from __future__ import annotations

_waiting: list[str] = []


def notice(text: str) -> None:
    """Keep a line for the user."""
    _waiting.append(text)


def taken() -> list[str]:
    """The lines so far, which are now the caller's to tell."""
    lines = list(_waiting)
    _waiting.clear()
    return lines
