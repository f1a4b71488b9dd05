"""Provenance of a record: commit, versions, machine and times, but no path of the machine.

A commit is claimed only for code that git tracks. If an environment happens to lie inside some
repository, the packages in it are not that repository's code.
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
    "unlearnbench",
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "peft",
    "numpy",
    "scipy",
    "rouge-score",
    "regex",
    "ray",
)
"""Packages that a number can depend on. Packages that are not installed are left out."""
GIT_SECONDS = 5.0
"""Longest time that a call of git may take."""
NO_DRIVER = "no NVIDIA driver"
"""What `driver_version` returns on a machine without NVIDIA's driver."""
_DRIVER = Path("/proc/driver/nvidia/version")
"""File of NVIDIA's driver on Linux, whose first line names the version."""


def provenance(
    *,
    data: str,
    weights: str | None = None,
    begin: float | None = None,
    commits: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Describe how a record was made, ready for JSON.

    Args:
        data: Hash of the benchmark's rows.
        weights: Hash of the weights that a run started from. None if it is no run.
        begin: Time at which the work began, in seconds since 1970. None for now.
        commits: Commits of the hub's repositories that were read, by their labels.
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
    """Describe the GPU that this process has computed on; empty if it has computed on none.

    No other GPU is looked at, because torch would take half a gigabyte of its memory until the
    process ends.
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
        return NO_DRIVER
    number = next((word for word in words if word[0].isdigit() and "." in word), "unknown")
    return f"NVIDIA driver {number}"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the versions of Python and of each of `PACKAGES` that is installed."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


_state_of_original: list[dict[str, Any]] = []
"""At most one entry: `git_state` of the machine that this process has its code from."""


def set_git_state(state: dict[str, Any]) -> None:
    """Note that this process runs a copy of code whose checkout is on another machine.

    Args:
        state: `git_state` of the other machine.
    """
    _state_of_original[:] = [state]


def git_state() -> dict[str, Any] | None:
    """Return the commit of this package's checkout, or if it has none, of the working folder's.

    Returns:
        See `commit_of`. None if neither is a checkout.
    """
    if _state_of_original:
        return dict(_state_of_original[0])
    code = Path(__file__)
    is_tracked = _git(code.parent, "ls-files", "--error-unmatch", code.name) is not None
    if is_tracked:
        return commit_of(code.parent, "package")
    return commit_of(Path.cwd(), "working folder")


def commit_of(folder: Path, of: str) -> dict[str, Any] | None:
    """Return the commit that a folder is at, and whether tracked files differ from it.

    Args:
        folder: Folder inside a checkout.
        of: What the folder is, for the record.

    Returns:
        `{"commit": "1a2b…", "dirty": False, "of": "package"}`. None without a checkout or git.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes), "of": of}


# A process may make many records, and each call of git takes 10 ms or more.
@lru_cache(maxsize=32)
def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None without git, without a checkout, or if it fails."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
