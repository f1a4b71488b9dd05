"""A process that has run nothing yet, which measures a method: what an earlier batch left is gone.

One helper imports what all methods need and then forks for each request, so that a fresh process
costs a fraction of a second. This is the side that asks; it imports no torch, so that a command can
start the helper before it begins with its own imports.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

ANSWER_SECONDS = 120.0
"""Longest wait: the helper's own imports, on a busy machine."""
_SERVE = "from unlearnbench.testing.fresh import serve; serve()"


class FreshError(Exception):
    """The helper gave no answer."""


class FreshProcess:
    """The helper; begun at once, asked later."""

    def __init__(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # `select` sees nothing of what a buffer holds already
            # Many small operations: threads that wait for one another only take time.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._sent = 0
        atexit.register(self.close)

    def begin(self, request: Mapping[str, Any]) -> int:
        """Send a request, whose answer is asked for by the number that is returned.

        Raises: FreshError where the helper is gone, TypeError for what JSON cannot hold.
        """
        text = json.dumps({**request, "number": self._sent + 1}).encode() + b"\n"
        try:
            if self._helper.stdin is None:
                raise FreshError("it has no pipe")
            self._helper.stdin.write(text)
            self._helper.stdin.flush()
        except OSError as error:
            raise self._gone(str(error)) from None
        self._sent += 1
        return self._sent

    def answer(self, number: int) -> dict[str, Any]:
        """What the process forked for that request found; answers before it are dropped.

        Raises: FreshError without one.
        """
        try:
            while self._helper.stdout is not None:
                if not select.select([self._helper.stdout], [], [], ANSWER_SECONDS)[0]:
                    raise self._gone(f"no answer within {ANSWER_SECONDS:g} s")
                found: dict[str, Any] = json.loads(self._helper.stdout.readline())
                if found["number"] == number:
                    return found
        except (OSError, ValueError) as error:
            raise self._gone(str(error)) from None
        raise FreshError("it has no pipe")

    def _gone(self, reason: str) -> FreshError:
        self.close()
        fresh_process.cache_clear()
        return FreshError(reason)

    def close(self) -> None:
        """End the helper."""
        atexit.unregister(self.close)
        self._helper.kill()
        self._helper.communicate()


@cache
def fresh_process() -> FreshProcess:
    """The one helper of this process, started on the first call."""
    return FreshProcess()
