"""torch and the GPUs of a machine, looked at from outside.

torch is imported in a process of its own: one that is broken may raise, warn or crash.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from unlearnbench.cli.diagnosis import Finding

TORCH_SECONDS = 30.0
"""Longest import of torch, from a slow disk."""
_DRIVER_FIX = "update NVIDIA's driver, or install a torch that is built for an older CUDA"
_OTHER_BUILD = "install a torch that is built for this GPU"

_TORCH = """
import json, sys, warnings
found = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        import torch
        found["cuda"] = torch.version.cuda
        found["usable"] = torch.cuda.is_available()
        found["built_for"] = torch.cuda.get_arch_list() if found["usable"] else []
        found["gpus"] = []
        for index in range(torch.cuda.device_count() if found["usable"] else 0):
            one = torch.cuda.get_device_properties(index)
            found["gpus"].append([one.name, f"{one.major}.{one.minor}", one.total_memory])
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
    except BaseException as error:
        text = (str(error).strip().splitlines() or [""])[0]
        found["error"] = f"{type(error).__name__}: {text}"
found["warnings"] = [str(one.message).strip().splitlines()[0] for one in caught if str(one.message)]
print(json.dumps(found))
"""


class TorchProbe:
    """torch, imported in a process that is started at once and asked later."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TORCH],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> dict[str, Any]:
        """Wait for torch's description of itself; it has `error` where torch cannot be used."""
        try:
            out, err = self._process.communicate(timeout=TORCH_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {"error": f"its import took more than {TORCH_SECONDS:.0f} s"}
        with suppress(ValueError, IndexError):
            found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
            return found
        last = (err.strip().splitlines() or ["no message"])[-1]
        return {"error": f"its import ended with code {self._process.returncode}: {last}"}


def accelerators(torch: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield torch, the driver, and each GPU with whether torch can use it.

    torch  `TorchProbe.result()`
    """
    driver, seen = nvidia_smi()
    reinstall = "install torch anew: https://pytorch.org/get-started/locally"
    if error := torch.get("error"):
        usable = "cuda" in torch  # it was imported, and its GPU fails
        fix = _DRIVER_FIX if usable and seen else reinstall
        yield Finding(
            "torch", f"cannot be {'used' if usable else 'imported'}: {error}", "wrong", fix
        )
    cuda = torch.get("cuda")
    build = f"built for CUDA {cuda}" if cuda else "built for CPUs alone"
    if not torch.get("error"):
        yield Finding("torch's build", build)
    for name, capability, memory in torch.get("gpus") or []:
        wanted = f"sm_{capability.replace('.', '')}"
        archs: list[str] = torch.get("built_for") or []
        if archs and not any(_runs_on(arch, capability) for arch in archs):
            text = f"{name}, capability {capability}: torch has no kernels for {wanted}"
            yield Finding("GPU", text, "wrong", f"{_OTHER_BUILD}; it has {', '.join(archs)}")
        else:
            text = f"{name}, capability {capability}, {memory / 1e9:.0f} GB; torch can use it"
            yield Finding("GPU", text)
    if seen and not torch.get("gpus"):
        for name in seen:
            yield from _unusable(name, torch, build, driver)
    if not seen and not torch.get("gpus"):
        text = "none: everything runs on the CPU, configs with `gpu` do not"
        yield Finding("GPU", text, "note", "--set resources.gpu=0, or a machine with one")
    if driver:
        yield Finding("NVIDIA driver", driver)
    for line in torch.get("warnings") or []:
        yield Finding("torch warns", line, "note")


def _unusable(name: str, torch: Mapping[str, Any], build: str, driver: str) -> Iterator[Finding]:
    """Yield the reason for which torch does not use a GPU that the driver lists."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        text = f"{name}: hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        yield Finding("GPU", text, "note", "unset CUDA_VISIBLE_DEVICES")
    elif not torch.get("cuda") and not torch.get("error"):
        text = f"{name}: torch cannot use it, {build}"
        yield Finding("GPU", text, "wrong", "install a torch with CUDA: https://pytorch.org")
    else:
        text = f"{name}: torch, {build}, cannot use it with driver {driver or 'of unknown version'}"
        yield Finding("GPU", text, "wrong", _DRIVER_FIX)


def _runs_on(arch: str, capability: str) -> bool:
    """True if code for `arch` (`sm_80`, `compute_90`) runs on a GPU: same generation, or PTX."""
    kind, _, digits = arch.partition("_")
    number = int("".join(filter(str.isdigit, digits)) or 0)
    major, minor = (int(part) for part in capability.split("."))
    if kind == "compute":
        return number <= 10 * major + minor
    return number // 10 == major and number % 10 <= minor


@cache
def nvidia_smi() -> tuple[str, tuple[str, ...]]:
    """Version of the driver ("" without one), and the GPUs that it lists."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=4, check=True)
    except (OSError, subprocess.SubprocessError):
        from unlearnbench.runtime.gpu_inventory import driver_version

        found = driver_version()
        return ("" if found.startswith("no ") else found.removeprefix("NVIDIA driver ")), ()
    rows = [line.partition(", ") for line in done.stdout.splitlines() if ", " in line]
    return (rows[0][0] if rows else ""), tuple(name.strip() for _, _, name in rows)
