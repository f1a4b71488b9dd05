"""Queue of jobs for a background thread, which neither delays nor breaks the main work.

The first job that fails with an expected error ends the queue, because the later ones need the
same server or disk. An unexpected error is a defect, and is raised by `close`. Own code, because a
`concurrent.futures` executor keeps the process alive until its last job has ended.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Job = Callable[[], None]


class BackgroundJobs:
    """Jobs that run one after another in a thread of their own.

    expected   errors that end the queue with a warning
    give_up    called once with the text of such an error, in the thread
    """

    def __init__(
        self,
        name: str,
        expected: tuple[type[Exception], ...],
        give_up: Callable[[str], None],
    ) -> None:
        self.trouble: str | None = None
        """First line of the error that ended the queue."""
        self._expected, self._give_up = expected, give_up
        self._defect: Exception | None = None
        self._jobs: queue.SimpleQueue[Job | threading.Event | None] = queue.SimpleQueue()
        # A daemon thread: a server that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Append a job; returns at once."""
        self._jobs.put(job)

    def wait(self, seconds: float) -> bool:
        """Wait until all jobs so far are done or given up; False after `seconds`."""
        reached = threading.Event()
        self._jobs.put(reached)
        return reached.wait(seconds)

    def close(self, seconds: float) -> None:
        """Wait at most `seconds` for the jobs; raises the unexpected error of one, if any."""
        self._jobs.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stop(f"not finished {seconds:g} s after the end of the sweep")
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
            except Exception as error:  # raised again by `close`, in the main thread
                self._defect = error

    def _stop(self, reason: str) -> None:
        if self.trouble is None:
            self.trouble = reason
            self._give_up(reason)
