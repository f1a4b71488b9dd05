"""Signature of the function that long work reports to."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]
"""Called with the units of work done and the units in all."""
