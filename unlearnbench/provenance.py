"""Where a record comes from: commit, versions, machine, times. No path of the machine is in it.

A commit is claimed only for code that git tracks: a package installed into an environment that
happens to lie inside some repository is not that repository's code.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("unlearnbench", "torch", "transformers", "tokenizers", "accelerate", "peft", "datasets"),
    *("numpy", "scipy", "rouge-score", "ray"),
)
"""What a number can depend on; one that is not installed is left out."""
GIT_SECONDS = 5.0


def provenance(
    *,
    data: str,
    weights: str | None = None,
    begin: float | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """What a record stores of its making, ready for JSON.

    data       hash of the benchmark's rows
    weights    hash of the weights that the run started from, if it is a run
    begin      when it began, in seconds since 1970; now, unless it is given
    device     default: what torch would use here
    """
    now = time.time()
    return {
        "git": git_state(),
        "versions": versions(),
        "platform": platform.platform(),
        "host": platform.node(),
        "process": os.getpid(),
        "device": device or _device(),
        "started": _utc(now if begin is None else begin),
        "finished": _utc(now),
        "data": data,
        "weights": weights,
    }


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _device() -> str:
    # A process that has not imported torch has computed nothing on any device.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()}"
    return "cpu"


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for package in PACKAGES:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def versions() -> dict[str, str]:
    """Python's version, and that of each of `PACKAGES` that is installed."""
    return dict(_versions())


_travelled: list[dict[str, Any]] = []


def code_travelled(state: dict[str, Any]) -> None:
    """This process runs a copy of code whose checkout is on another machine: `git_state` there."""
    _travelled[:] = [state]


def git_state() -> dict[str, Any] | None:
    """Commit and dirtiness of this package's checkout, else of the working folder's, else None."""
    if _travelled:
        return dict(_travelled[0])
    code = Path(__file__)
    if _git(code.parent, "ls-files", "--error-unmatch", code.name) is not None:
        return commit_of(code.parent, "package")
    return commit_of(Path.cwd(), "working folder")


def commit_of(folder: Path, of: str) -> dict[str, Any] | None:
    """The commit that `folder` is at, and whether tracked files differ from it."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes), "of": of}


@lru_cache(maxsize=32)  # a process asks once, not once a run: git takes 10 ms and more
def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None without git, without a repository, or where it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
