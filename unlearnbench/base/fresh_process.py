"""Measure a plug-in in a process that has run nothing yet, so that no earlier batch has an effect.

One helper imports all that plug-ins need and then forks for each request, so that a fresh process
costs a fraction of a second. This is the client. It imports no torch, so that a command can start
the helper before its own imports.
"""

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
_OTHER_SEED = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
_SERVE = "from unlearnbench.testing.fresh import serve; serve()"


class FreshError(Exception):
    """The helper gave no answer."""


class FreshProcess:
    """The helper process, started at once."""

    def __init__(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # `select` sees nothing of what a buffer holds already
            # Many small operations: threads that wait for one another only take time.
            # Other hash seeds, so that the order of a set is another one.
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": _OTHER_SEED},
        )
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._requests, self._answers = self._helper.stdin, self._helper.stdout
        self._sent = 0
        atexit.register(self.close)

    def begin(self, request: Mapping[str, Any]) -> int:
        """Send a request; returns its number, for `answer`.

        Raises: FreshError where the helper is gone, TypeError for what JSON cannot hold.
        """
        text = json.dumps({**request, "number": self._sent + 1}).encode() + b"\n"
        try:
            self._requests.write(text)
        except OSError as error:
            raise self._failure(str(error)) from None
        self._sent += 1
        return self._sent

    def answer(self, number: int) -> dict[str, Any]:
        """Return the result of the request `number`; results before it are dropped.

        Raises: FreshError without one.
        """
        try:
            while True:
                if not select.select([self._answers], [], [], ANSWER_SECONDS)[0]:
                    raise self._failure(f"no answer within {ANSWER_SECONDS:g} s")
                result: dict[str, Any] = json.loads(self._answers.readline())
                if result["number"] == number:
                    return result
        except (OSError, ValueError) as error:
            raise self._failure(str(error)) from None

    def _failure(self, reason: str) -> FreshError:
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
