"""The GPU of a process, with driver and versions."""

from __future__ import annotations

from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/version")


def gpu_of_process() -> dict[str, str]:
    """Name and capability of the GPU that torch uses here, and the versions that run it."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return {
        "GPU": torch.cuda.get_device_name(),
        "compute capability": f"{major}.{minor}",
        "NVIDIA driver": driver_version().removeprefix("NVIDIA driver "),
        "CUDA of torch": torch.version.cuda or "none",
    }


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
