"""The bytes of a download, which the hub's library reports to a class of progress bars."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from huggingface_hub.utils.tqdm import tqdm

Show = Callable[[int, int], None]
"""Takes the bytes that are here, and the bytes of all files that are known so far."""


class ByteCount:
    """The bytes of a download. Several bars count them, such as those received and written."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._done = 0
        self._total = 0

    def report(self, done: int, total: int) -> None:
        """Take the numbers of one bar, and show those of the bar that is farthest."""
        with self._lock:
            self._total = max(self._total, total)
            self._done = max(self._done, done)
            # Some bytes may come before the size of their file is known.
            self._show(min(self._done, self._total), self._total)


class CountingBar(tqdm):
    """A bar that shows nothing itself and passes on the numbers of bytes.

    The library makes bars of other units from the same class, such as a bar of files. Their numbers
    are ignored.
    """

    def __init__(self, *args: Any, count: ByteCount, **options: Any) -> None:
        self._count = count
        self._counts_bytes = options.get("unit") == "B"
        self._done = int(options.get("initial") or 0)
        parent: Any = super()  # The library's class has no types.
        parent.__init__(*args, **{**options, "disable": True})

    def update(self, n: float | None = 1) -> bool | None:
        """Add `n` bytes."""
        self._done += int(n or 0)
        total = int(self.total or 0)
        if self._counts_bytes and total:
            self._count.report(self._done, total)
        return None


def counting_bar(show: Show) -> Any:
    """Return what the library takes for a class of progress bars."""
    return partial(CountingBar, count=ByteCount(show))
