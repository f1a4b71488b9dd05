"""`unlearnbench doctor`: versions, GPUs, folders and tokens, and which of them will not work."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from unlearnbench.base.console import Console
from unlearnbench.cli.command import command, new_group
from unlearnbench.cli.options import Json

app = new_group()

_FAULT = 1
"""Exit code if something that is needed does not work."""
_FIRST_WITH_BFLOAT16 = 8
"""Compute capability of Ampere (A100, RTX 30). Volta (V100) has 7.0, Turing (T4) 7.5."""


class Finding(NamedTuple):
    """Something that was looked at."""

    topic: str
    text: str
    """What was found, and how to mend it."""
    works: bool


@command(app, "doctor")
def doctor(as_json: Json = False) -> int:
    """Check versions, GPUs, disks and tokens, and say what will not work and why.

    The exit code is 1 if something that is needed does not work. A missing GPU or token is not an
    error.

    Examples:
      unlearnbench doctor
      unlearnbench doctor --json > doctor.json
    """
    console = Console()
    findings = [*_packages(), *_device(), *_folders()]
    faults = [finding.topic for finding in findings if not finding.works]
    if as_json:
        listed = [finding._asdict() for finding in findings]
        console.print_json({"works": not faults, "findings": listed})
    else:
        for finding in findings:
            verdict = "ok   " if finding.works else "WRONG"
            line = f"{verdict}  {finding.topic:16}  {finding.text}"
            console.paragraph(line, indent=" " * 25)
        summary = f"will not work: {', '.join(faults)}" if faults else "everything needed works"
        console.print(f"\n{summary}")
    return _FAULT if faults else 0


def _packages() -> Iterator[Finding]:
    """Yield the system, and the versions of Python and of all packages that are needed."""
    from packaging.requirements import Requirement

    yield Finding("system", f"{platform.platform()}, {os.cpu_count()} cores", works=True)
    yield Finding("Python", f"{platform.python_version()}, {sys.prefix}", works=True)
    yield Finding("unlearnbench", version("unlearnbench"), works=True)
    for text in requires("unlearnbench") or ():
        need = Requirement(text)
        # Packages of extras, and those for other systems, are not needed.
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(need.name)
            works = need.specifier.contains(found, prereleases=True)
        except PackageNotFoundError:
            found = "not installed"
            works = False
        if not works:
            found += f" → pip install '{need.name}{need.specifier}'"
        yield Finding(need.name, found, works)


def _device() -> Iterator[Finding]:
    """Yield the GPUs, each of which carries out an addition, or why torch cannot be used."""
    try:
        import torch

        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
            found = f"{device.name}, {device.total_memory / 1e9:.0f} GB"
            yield Finding("GPU", found + bfloat16_notice(device.major), works=True)
        if not torch.cuda.is_available():
            none = "none that torch can use (see nvidia-smi): runs use the CPU"
            yield Finding("GPU", none, works=True)
    except (ImportError, OSError, RuntimeError) as error:
        fix = "install a torch for this machine and driver (pytorch.org)"
        yield Finding("torch in use", f"{error} → {fix}", works=False)


def bfloat16_notice(major: int) -> str:
    """Return which settings a GPU without bfloat16 needs; empty if the GPU has bfloat16.

    Args:
        major: First number of its compute capability.
    """
    if torch_is_rocm() or major >= _FIRST_WITH_BFLOAT16:
        return ""
    return (
        ", computes bfloat16 slowly: set training.precision: fp16 and evaluation.precision: fp16 "
        "(evaluate: --precision fp16)"
    )


def torch_is_rocm() -> bool:
    """Whether torch is built for GPUs of AMD, which have other compute capabilities."""
    import torch

    return torch.version.hip is not None


def _folders() -> Iterator[Finding]:
    """Yield whether results and models can be written, and whether the hub knows the user."""
    from huggingface_hub import constants, get_token

    for topic, folder in (("results", Path("runs")), ("HF_HOME", Path(constants.HF_HUB_CACHE))):
        # The folder itself may not exist yet.
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=nearest):
                free = shutil.disk_usage(nearest).free
            yield Finding(topic, f"{folder}: writable, {free / 1e9:.0f} GB free", works=True)
        except OSError as error:
            text = f"{folder}: cannot be written: {error.strerror}; name another"
            yield Finding(topic, text, works=False)
    token = "found" if get_token() else "none: gated models are out of reach"
    yield Finding("hub's token", token, works=True)
