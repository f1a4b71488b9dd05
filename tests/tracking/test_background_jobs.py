"""Queue of background jobs: order, failure, and limited waiting."""

from __future__ import annotations

import threading
import time

import pytest

from unlearnbench.tracking.background_jobs import BackgroundJobs


def wait(event: threading.Event) -> None:
    event.wait(5)


def test_waiting_ends_with_the_jobs_or_after_the_time() -> None:
    done: list[int] = []
    release = threading.Event()
    jobs = BackgroundJobs("jobs", (OSError,), print)
    jobs.put(lambda: done.append(1))
    assert jobs.wait(5)
    assert done == [1]
    jobs.put(lambda: wait(release))
    begin = time.monotonic()
    assert not jobs.wait(0.1)
    assert time.monotonic() - begin < 2
    release.set()
    jobs.close(5)


def test_a_failure_ends_the_queue() -> None:
    def fail() -> None:
        raise OSError("the disk is gone\nand more")

    done: list[int] = []
    messages: list[str] = []
    jobs = BackgroundJobs("jobs", (OSError,), messages.append)
    jobs.put(fail)
    jobs.put(lambda: done.append(1))
    assert jobs.wait(5)
    jobs.close(5)
    assert (done, messages, jobs.trouble) == ([], ["the disk is gone"], "the disk is gone")


def defect() -> None:
    raise ZeroDivisionError


def test_a_defect_is_raised_at_the_end() -> None:
    jobs = BackgroundJobs("jobs", (OSError,), print)
    jobs.put(defect)
    with pytest.raises(ZeroDivisionError):
        jobs.close(5)
