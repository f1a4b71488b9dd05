"""Provenance of a record: commit, versions, machine, times, and no path of the machine.

A commit is claimed only for code that git tracks: a package installed into an environment that
happens to lie inside some repository is not that repository's code.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("unlearnbench", "torch", "transformers", "tokenizers", "accelerate", "peft"),
    *("numpy", "scipy", "rouge-score", "regex", "ray"),
)
"""Packages that a number can depend on; those that are not installed are left out."""
GIT_SECONDS = 5.0
_DRIVER = Path("/proc/driver/nvidia/version")


def provenance(
    *,
    data: str,
    weights: str | None = None,
    begin: float | None = None,
    commits: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Describe how a record was made, ready for JSON.

    data       hash of the benchmark's rows
    weights    hash of the weights that the run started from, if it is a run
    commits    of the hub's repositories that it read, by their labels
    begin      when it began, in seconds since 1970; now, unless it is given
    """
    now = time.time()
    return {
        "git": git_state(),
        "versions": dict(versions()),
        "platform": platform.platform(),
        "host": platform.node(),
        "process": os.getpid(),
        "device": _device(),
        "gpu": _gpu(),
        "started": _utc(now if begin is None else begin),
        "finished": _utc(now),
        "data": data,
        "weights": weights,
        "hub": dict(commits or {}),
    }


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _device() -> str:
    name = _gpu().get("GPU")
    return "cpu" if name is None else f"cuda: {name}"


def _gpu() -> dict[str, str]:
    """The GPU that this process has computed on; empty where it has computed on none.

    To look at a GPU through torch takes half a gigabyte of it, for as long as the process lives.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    major, minor = torch.cuda.get_device_capability()
    return {
        "GPU": torch.cuda.get_device_name(),
        "compute capability": f"{major}.{minor}",
        "NVIDIA driver": driver_version().removeprefix("NVIDIA driver "),
        "CUDA of torch": torch.version.cuda or "none",
    }


def driver_version() -> str:
    """Describe the version of NVIDIA's driver."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").partition("\n")[0].split()
    except OSError:
        return "no NVIDIA driver"
    number = next((word for word in words if word[0].isdigit() and "." in word), "unknown")
    return f"NVIDIA driver {number}"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Python's version, and that of each of `PACKAGES` that is installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


_shipped: list[dict[str, Any]] = []


def set_git_state(state: dict[str, Any]) -> None:
    """This process runs a copy of code whose checkout is on another machine: `git_state` there."""
    _shipped[:] = [state]


def git_state() -> dict[str, Any] | None:
    """Commit and dirtiness of this package's checkout, else of the working folder's, else None."""
    if _shipped:
        return dict(_shipped[0])
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


@lru_cache(maxsize=32)  # once in a process, not once a run: git takes 10 ms and more
def _git(folder: Path, *arguments: str) -> str | None:
    """Run git; None without git, without a repository, or if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
