"""The function that long work reports its progress to."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]
"""Called with the units of work that are done, and with the units in total."""
