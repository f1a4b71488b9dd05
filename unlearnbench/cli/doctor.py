"""`unlearnbench doctor`: versions, GPUs, folders and tokens, and which of them will not work."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from unlearnbench.base.console import Console
from unlearnbench.cli.command import command, new_group
from unlearnbench.cli.options import Json

app = new_group()

_FIRST_WITH_BFLOAT16 = 8
"""Compute capability of Ampere (A100, RTX 30). Volta (V100) has 7.0, Turing (T4) 7.5."""

Finding = tuple[str, str, bool]
"""Topic, what was found, and whether it works."""


@command(app, "doctor")
def doctor(as_json: Json = False) -> int:
    """Check versions, GPUs, disks and tokens, and say what will not work and why.

    The exit code is 1 if something that is needed does not work. A missing GPU or token is not an
    error.

    Examples:
      unlearnbench doctor
      unlearnbench doctor --json > doctor.json
    """
    findings, console = [*_packages(), *_device(), *_folders()], Console()
    faults = [topic for topic, _, works in findings if not works]
    if as_json:
        listed = [dict(zip(("topic", "text", "works"), row, strict=True)) for row in findings]
        console.print_json({"works": not faults, "findings": listed})
    else:
        for topic, text, works in findings:
            line = f"{'ok   ' if works else 'WRONG'}  {topic:16}  {text}"
            console.paragraph(line, indent=" " * 25)
        last = f"will not work: {', '.join(faults)}" if faults else "everything needed works"
        console.print(f"\n{last}")
    return bool(faults)


def _packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    yield "system", f"{platform.platform()}, {os.cpu_count()} cores", True
    yield "Python", f"{platform.python_version()}, {sys.prefix}", True
    yield "unlearnbench", version("unlearnbench"), True
    for need in map(Requirement, requires("unlearnbench") or ()):
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            try:
                installed = version(need.name)
                works = need.specifier.contains(installed, prereleases=True)
            except PackageNotFoundError:
                installed, works = "not installed", False
            fix = f" → pip install '{need.name}{need.specifier}'"
            yield need.name, installed + fix * (not works), works


def _device() -> Iterator[Finding]:
    try:
        import torch

        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
            found = f"{device.name}, {device.total_memory / 1e9:.0f} GB"
            yield "GPU", found + bfloat16_notice(device.major), True
        if not torch.cuda.is_available():
            yield "GPU", "none that torch can use (see nvidia-smi): runs use the CPU", True
    except (ImportError, OSError, RuntimeError) as error:
        fix = "install a torch for this machine and driver (pytorch.org)"
        yield "torch in use", f"{error} → {fix}", False


def bfloat16_notice(major: int) -> str:
    """What to set on a GPU of that compute capability, if it has no bfloat16."""
    if torch_is_rocm() or major >= _FIRST_WITH_BFLOAT16:
        return ""
    return (
        ", computes bfloat16 slowly: set training.precision: fp16 and evaluation.precision: fp16 "
        "(evaluate: --precision fp16)"
    )


def torch_is_rocm() -> bool:
    """Whether torch is built for GPUs of AMD, whose versions count otherwise."""
    import torch

    return torch.version.hip is not None


def _folders() -> Iterator[Finding]:
    """Yield whether results and models can be written, and whether the hub knows the user."""
    from huggingface_hub import constants, get_token

    for topic, folder in (("results", Path("runs")), ("HF_HOME", Path(constants.HF_HUB_CACHE))):
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=nearest):
                free = shutil.disk_usage(nearest).free
            yield topic, f"{folder}: writable, {free / 1e9:.0f} GB free", True
        except OSError as error:
            yield topic, f"{folder}: cannot be written: {error.strerror}; name another", False
    yield "hub's token", "found" if get_token() else "none: gated models are out of reach", True
