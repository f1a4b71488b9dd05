"""Jobs in a thread: one after another, none after one that failed, and nobody waits for ever."""

from __future__ import annotations

import threading
import time

import pytest

from unlearnbench.background import Background


def wait(event: threading.Event) -> None:
    event.wait(5)


def test_what_was_given_is_waited_for_and_no_longer_than_said() -> None:
    done: list[int] = []
    release = threading.Event()
    jobs = Background("jobs", (OSError,), print)
    jobs.put(lambda: done.append(1))
    assert jobs.wait(5)
    assert done == [1]
    jobs.put(lambda: wait(release))
    begin = time.monotonic()
    assert not jobs.wait(0.1)
    assert time.monotonic() - begin < 2
    release.set()
    jobs.close(5)


def test_nothing_is_done_after_a_failure_and_nobody_waits_for_it() -> None:
    def fail() -> None:
        raise OSError("the disk is gone\nand more")

    done: list[int] = []
    said: list[str] = []
    jobs = Background("jobs", (OSError,), said.append)
    jobs.put(fail)
    jobs.put(lambda: done.append(1))
    assert jobs.wait(5)
    jobs.close(5)
    assert (done, said, jobs.trouble) == ([], ["the disk is gone"], "the disk is gone")


def defect() -> None:
    raise ZeroDivisionError


def test_a_defect_is_raised_where_jobs_end() -> None:
    jobs = Background("jobs", (OSError,), print)
    jobs.put(defect)
    with pytest.raises(ZeroDivisionError):
        jobs.close(5)
