"""Freed memory stays with a process of our own, unless the environment says what to do with it."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from unlearnbench.base.heap import keep_freed_memory

PROGRAM = """
import resource, sys
import numpy as np
from unlearnbench.base.heap import keep_freed_memory

def batch():
    return [np.ones(3 << 17) for _ in range(8)]  # of 3 MiB each

if sys.argv[1] == "keep":
    keep_freed_memory()
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
UNSET = ("GLIBC_TUNABLES", "MALLOC_")
PAGES = 8 * 3 * 2**20 // resource.getpagesize()
"""Pages of a batch, at least."""

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc"
    or (HUGE_PAGES.exists() and "[always]" in HUGE_PAGES.read_text(encoding="utf-8")),
    reason="other C libraries have no such settings, and huge pages are not counted",
)


def new_pages(choice: str, **variables: str) -> int:
    """Return how many new pages ten batches need in a Python of its own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(UNSET)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, choice],
        capture_output=True,
        text=True,
        check=True,
        env=environment | variables,
    )
    return int(done.stdout)


@needs_glibc
def test_a_batch_uses_the_pages_of_the_batch_before_it() -> None:
    assert new_pages("keep") < PAGES
    assert new_pages("default") > 5 * PAGES


@needs_glibc
def test_settings_of_the_environment_are_kept() -> None:
    assert new_pages("keep", MALLOC_TRIM_THRESHOLD_="131072") > 5 * PAGES


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(UNSET)]:
        monkeypatch.delenv(name)
    asked_for: list[str] = []

    def without_glibc(name: str) -> None:
        asked_for.append(name)
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", without_glibc)
    keep_freed_memory()
    assert asked_for == ["libc.so.6"]
