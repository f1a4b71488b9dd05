"""`unlearnbench doctor`: versions, GPUs, folders and tokens, and which of them will not work."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, NamedTuple

from unlearnbench.cli.command import command, new_group, option
from unlearnbench.cli.options import Json
from unlearnbench.console import Console

_SHOWN = ("torch", "transformers", "ray", "mlflow", "accelerate", "plotly")
"""Packages whose versions are printed; of the others those that are missing or too old."""
_LEAST_DISK = 5e9
"""Free bytes below which a disk is mentioned."""
# In a process of its own: a broken torch may crash it.
_TORCH = """
import torch
usable = torch.cuda.is_available()
for index in range(torch.cuda.device_count() if usable else 0):
    device = torch.cuda.get_device_properties(index)
    torch.zeros(1, device=f"cuda:{index}").add_(1).item()
    print(f"{device.name}, {device.total_memory / 1e9:.0f} GB")
"""

app = new_group()


class Finding(NamedTuple):
    """One thing that was looked at."""

    topic: str
    text: str
    state: str = "ok"
    """wrong: something that is needed does not work; note: something that may be missed."""
    fix: str = ""


@command(app, "doctor")
def doctor(
    output: Annotated[str, option("DIR", "Folder of all sweeps.")] = "runs", as_json: Json = False
) -> int:
    """Check versions, GPUs, disks and tokens; name what will not work, and why.

    Exit code 1 if something that is needed does not work; a missing GPU or token is none of that.

    Examples:
      unlearnbench doctor
      unlearnbench doctor --json > doctor.json      for a report of a fault
    """
    findings = [*_packages(), *_gpus(), *_folders(Path(output))]
    wrong = [finding.topic for finding in findings if finding.state == "wrong"]
    console = Console()
    if as_json:
        console.print_json({"works": not wrong, "findings": [one._asdict() for one in findings]})
        return bool(wrong)
    for topic, text, state, fix in findings:
        mark = "WRONG" if state == "wrong" else f"{state:5}"
        console.print(f"{mark}  {topic:16}  {text}{f' → {fix}' if fix else ''}")
    last = f"will not work: {', '.join(wrong)}" if wrong else "everything needed works"
    console.print(f"\n{last}")
    return bool(wrong)


def _packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    yield Finding("system", f"{platform.platform()}, {os.cpu_count()} cores")
    yield Finding("Python", f"{platform.python_version()}, {sys.prefix}")
    yield Finding("unlearnbench", version("unlearnbench"))
    for need in map(Requirement, requires("unlearnbench") or ()):
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(need.name)
        except PackageNotFoundError:
            installed = "not installed"
        if installed == "not installed" or not need.specifier.contains(installed, prereleases=True):
            fix = f"pip install '{need.name}{need.specifier}'"
            yield Finding(need.name, f"{installed}, and {need.specifier} is needed", "wrong", fix)
        elif need.name in _SHOWN:
            yield Finding(need.name, installed)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _gpus() -> Iterator[Finding]:
    """Yield the driver's GPUs, and those that torch computes on."""
    driver = ""
    with suppress(OSError):
        smi = _run("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
        driver = "; ".join(smi.stdout.splitlines()) if smi.returncode == 0 else ""
    yield Finding("NVIDIA driver", driver or "none")
    probe = _run(sys.executable, "-c", _TORCH)
    printed = (probe.stderr.strip().splitlines() or [f"ended with code {probe.returncode}"])[-1]
    if probe.returncode:
        fix = "install a torch for this machine and driver (pytorch.org)"
        yield Finding("torch in use", printed, "wrong", fix)
    elif probe.stdout:
        yield from (Finding("GPU", line) for line in probe.stdout.splitlines())
    elif driver and "CUDA_VISIBLE_DEVICES" not in os.environ:
        fix = "update NVIDIA's driver, or install a torch for an older CUDA"
        yield Finding("GPU", f"torch cannot use it: {printed}", "wrong", fix)
    else:
        yield Finding("GPU", "none that torch can use: runs use the CPU", "note")


def _folders(output: Path) -> Iterator[Finding]:
    """Yield whether results and models can be written, and whether the hub knows the user."""
    from huggingface_hub import constants, get_token

    for topic, folder, fix in (
        ("results", output, "start in a folder of yours, or --set output=DIR"),
        ("hub's cache", Path(constants.HF_HUB_CACHE), "set HF_HOME to a folder of yours"),
    ):
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=nearest):
                free = shutil.disk_usage(nearest).free
        except OSError as error:
            yield Finding(topic, f"{folder}: cannot be written: {error.strerror}", "wrong", fix)
            continue
        text = f"{folder}: writable, {free / 1e9:.0f} GB free"
        short = free < _LEAST_DISK
        yield Finding(topic, text, "note" if short else "ok", "unlearnbench cache clear" * short)
    token = "found" if get_token() else "none: private models and gated data are out of reach"
    yield Finding("hub's token", token, "ok" if token == "found" else "note")
