"""The GPUs of a process and of a machine, with driver and versions."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

_DRIVER = Path("/proc/driver/nvidia/version")


def gpu_of_process() -> dict[str, str]:
    """Name and capability of the GPU that torch uses here, and the versions that run it."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return {
        "GPU": torch.cuda.get_device_name(),
        "compute capability": f"{major}.{minor}",
        **_versions(torch.version.cuda),
    }


@lru_cache(maxsize=1)
def gpus_of_machine() -> dict[str, str]:
    """Describe the machine's GPUs without using one; only torch's CUDA where there is none.

    GPUs of several kinds are joined by commas.
    """
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {"CUDA of torch": _cuda_of_torch() or "none"}
    kinds = sorted({line.strip() for line in done.stdout.splitlines() if line.strip()})
    names = {
        "GPU": ", ".join(kind.rpartition(", ")[0] for kind in kinds),
        "compute capability": ", ".join(kind.rpartition(", ")[2] for kind in kinds),
    }
    return names | _versions(_cuda_of_torch())


def _versions(cuda: str | None) -> dict[str, str]:
    driver = driver_version().removeprefix("NVIDIA driver ")
    return {"NVIDIA driver": driver, "CUDA of torch": cuda or "none"}


def _cuda_of_torch() -> str | None:
    """Read the file of torch's version: importing torch takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found: str | None = run_path(str(Path(spec.origin).with_name("version.py")))["cuda"]
    return found


def torch_build() -> str:
    """Describe what torch is built for."""
    import torch

    version: str | None = torch.version.cuda
    return f"CUDA {version}" if version else "CPUs alone"


def driver_version() -> str:
    """Describe the version of NVIDIA's driver."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").partition("\n")[0].split()
    except OSError:
        return "no NVIDIA driver"
    number = next((word for word in words if word[0].isdigit() and "." in word), "unknown")
    return f"NVIDIA driver {number}"
