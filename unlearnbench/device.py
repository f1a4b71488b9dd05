"""The device of a run, checked before anything is loaded; what GPUs a machine has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from unlearnbench.errors import TrainingError, UnlearnbenchError
from unlearnbench.execution import Resources

USABLE = 0.94
"""Of a GPU's memory: torch's context, and gaps between tensors, take the rest."""

_FLASH = "FLASH_ATTENTION_DETERMINISTIC"
"""What transformers reads before it calls the flash-attn package."""
_DRIVER = Path("/proc/driver/nvidia/version")


def use_device(resources: Resources) -> None:
    """Hide GPUs from a run that takes none; call before anything is computed in the process.

    Raises: UnlearnbenchError where a run was given a GPU that torch cannot use: it would be
    carried out on the CPU, while the GPU stands idle.
    """
    if not resources.gpu:
        # Ray hides GPUs from processes that ask for none; a run without Ray has to do it itself.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        raise UnlearnbenchError(
            f"resources.gpu: {resources.gpu:g}, but torch finds no GPU to use: torch "
            f"{torch.__version__} is built for {_built_for()}, and the machine has "
            f"{_driver()}; install a torch that is built for a CUDA version which the driver "
            "supports, or run on the CPU with --set resources.gpu=0"
        )
    steady_attention()


def cuda_variables(*, deterministic: bool = False) -> dict[str, str]:
    """Environment variables that torch and cuBLAS read once, before they first use a GPU.

    A value that the user has set stays.
    """
    wanted: dict[str, str] = {}
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        # Batches differ in their lengths: segments of fixed sizes leave gaps that nothing fits in.
        wanted["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if deterministic:
        wanted["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


@contextmanager
def deterministic(wanted: bool) -> Generator[None, None, None]:
    """While it lasts, the same work gives the same bits on a GPU; nothing changes unless `wanted`.

    torch's flash and memory-efficient attention have deterministic backward passes, which they
    take under this flag. The variables have to be those of `cuda_variables`.

    Raises: TrainingError for an operation that has no deterministic form
    """
    if not wanted:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    flash = os.environ.get(_FLASH)
    before = torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    os.environ[_FLASH] = "1"
    try:
        yield
    except Exception as error:  # a method wraps what torch raises in errors of its own
        if (reason := _without_deterministic_form(error)) is None:
            raise
        raise TrainingError(
            f"training.deterministic: {reason}; leave the key out for runs that repeat to "
            "rounding, or change what uses the operation"
        ) from error
    finally:
        mode, cudnn.deterministic, cudnn.benchmark = before
        torch.set_deterministic_debug_mode(mode)
        if flash is None:
            del os.environ[_FLASH]
        else:
            os.environ[_FLASH] = flash


def _without_deterministic_form(error: BaseException | None) -> str | None:
    """What torch says of an operation that it refuses; None where it refuses none.

    A method's error is wrapped in one that names the method.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and "use_deterministic_algorithms" in str(error):
            return str(error).partition(", but you set")[0].partition("\n")[0]
        error = error.__cause__
    return None


def device_memory() -> int | None:
    """Bytes of the smallest GPU that this process may use; None where there is none."""
    if not torch.cuda.is_available():
        return None
    devices = range(torch.cuda.device_count())
    return min(torch.cuda.get_device_properties(device).total_memory for device in devices)


def usable(total: int | None, resources: Resources) -> int | None:
    """Bytes that a process of a run may take of a GPU of `total`; None where nothing limits it."""
    if total is None or not resources.gpu:
        return None
    return int(total * USABLE * min(resources.gpu, 1.0))


def steady_attention() -> None:
    """Keep cuDNN's attention off.

    On H100 and later it comes first, and makes a plan for every new shape of a batch: tens of
    milliseconds, again and again, where batches differ in their lengths.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def gpu_of_process() -> dict[str, str]:
    """Name and capability of the GPU that torch uses here, and the versions that run it."""
    major, minor = torch.cuda.get_device_capability()
    return {
        "GPU": torch.cuda.get_device_name(),
        "compute capability": f"{major}.{minor}",
        **_versions(),
    }


@lru_cache(maxsize=1)
def gpus_of_machine() -> dict[str, str]:
    """As `gpu_of_process`, of the machine's GPUs, without using one; torch's CUDA alone elsewhere.

    GPUs of several kinds are joined by commas.
    """
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {key: value for key, value in _versions().items() if key == "CUDA of torch"}
    kinds = sorted({line.strip() for line in done.stdout.splitlines() if line.strip()})
    names = {
        "GPU": ", ".join(kind.rpartition(", ")[0] for kind in kinds),
        "compute capability": ", ".join(kind.rpartition(", ")[2] for kind in kinds),
    }
    return names | _versions()


def _versions() -> dict[str, str]:
    driver = _driver().removeprefix("NVIDIA driver ")
    return {"NVIDIA driver": driver, "CUDA of torch": torch.version.cuda or "none"}


def _built_for() -> str:
    version: str | None = torch.version.cuda
    return f"CUDA {version}" if version else "CPUs alone"


def _driver() -> str:
    """The version of NVIDIA's driver, in words."""
    try:
        first = _DRIVER.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return "no NVIDIA driver"
    words = first.split()
    number = next((word for word in words if word[0].isdigit() and "." in word), "unknown")
    return f"NVIDIA driver {number}"
