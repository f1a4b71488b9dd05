"""Peak memory of a piece of work, beyond what was in use before.

Counted as in `runtime/peak_memory.py`. An allocator reuses freed memory, so each piece is measured
in a process of its own.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

from unlearnbench.errors import EvaluationError
from unlearnbench.models.loading import quiet_transformers
from unlearnbench.runtime.peak_memory import memory_bytes, reset_peak

Work = tuple[torch.device, Callable[[], object]]


def peak_in_process(
    job: Callable[[Mapping[str, Any]], Work], how: Mapping[str, Any], *, here: bool = False
) -> int | None:
    """Bytes that a piece of work needs, measured in a process of its own; None if not known.

    job   a function of a module; called with `how`, ready for JSON, it prepares the inputs and
          returns the device and the work, whose memory alone is counted
    here  measure in this process: for work that takes less time than starting another
    """
    if here:
        return peak_of(*job(how))
    order = json.dumps([job.__module__, job.__name__, how, torch.get_num_threads()])
    name = " ".join(str(value) for value in how.values() if isinstance(value, str))
    output = output_of(f"measuring the memory of {name}", __name__, order)
    found: int | None = json.loads(output.splitlines()[-1])
    return found


def output_of(what: str, module: str, *words: str) -> str:
    """Run a module in a process of its own; returns its standard output.

    Raises: EvaluationError with the last line of its errors.
    """
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EvaluationError(f"{what} failed: {reason[0]}")
    return done.stdout


def _measure(order: str) -> int | None:
    module, function, how, threads = json.loads(order)
    torch.set_num_threads(threads)
    quiet_transformers()
    work: Work = getattr(import_module(module), function)(how)
    return peak_of(*work)


def peak_of(device: torch.device, do: Callable[[], object]) -> int | None:
    """Bytes that `do` needs beyond those in use before; None on systems without VmHWM."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        do()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    if not reset_peak():
        return None
    before = memory_bytes("VmRSS")
    do()
    return memory_bytes("VmHWM") - before


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1])) + "\n")
