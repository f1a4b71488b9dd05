"""Jobs one after another in a thread, for work that must neither hold up nor break the rest.

The first job that fails with an expected error ends them all: what it stands on (a server, a disk)
is gone for those after it, too. An unexpected error is a defect, and is raised where jobs end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class Background:
    """A queue of jobs and the thread that does them.

    expected   errors that end the jobs and cost no more than a warning
    give_up    told of such an error, once, in the thread
    """

    def __init__(
        self,
        name: str,
        expected: tuple[type[Exception], ...],
        give_up: Callable[[str], None],
    ) -> None:
        self.trouble: str | None = None
        """First line of the error that ended the jobs."""
        self._expected, self._give_up = expected, give_up
        self._defect: Exception | None = None
        self._jobs: queue.SimpleQueue[Job | threading.Event | None] = queue.SimpleQueue()
        # A daemon, so that a server that never answers cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Do `job` when those before it are done; returns at once."""
        self._jobs.put(job)

    def wait(self, seconds: float) -> bool:
        """Wait, `seconds` at most, until what was given is done or given up; whether it is."""
        reached = threading.Event()
        self._jobs.put(reached)
        return reached.wait(seconds)

    def close(self, seconds: float) -> None:
        """Wait for the jobs, `seconds` at most; raises a defect that one of them has."""
        self._jobs.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stop(f"not done {seconds:g} s after the last job was given")
        if self._defect is not None:
            raise self._defect

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if isinstance(job, threading.Event):
                job.set()
                continue
            if self.trouble is not None or self._defect is not None:
                continue
            try:
                job()
            except self._expected as error:
                self._stop(str(error).strip().partition("\n")[0] or type(error).__name__)
            except Exception as error:  # raised again by `close`, in the thread that can report it
                self._defect = error

    def _stop(self, reason: str) -> None:
        if self.trouble is None:
            self.trouble = reason
            self._give_up(reason)
