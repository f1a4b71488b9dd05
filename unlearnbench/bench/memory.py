"""Peak memory of a piece of work, beyond what was there before it.

Counted as `peak.py` says; and since an allocator keeps what it was given back, each piece is
measured in a process of its own.
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
from unlearnbench.peak import resident, set_back

Work = tuple[torch.device, Callable[[], object]]


def peak_in_process(job: str, how: Mapping[str, Any], *, here: bool = False) -> int | None:
    """Bytes that a piece of work needs, measured in a process of its own; None where not known.

    job   `module:function`; called with `how`, it gets everything ready and returns the device
          and the work, of which alone the memory counts
    here  in this process: for where starting another takes longer than all of the rest
    """
    order = json.dumps({"job": job, "how": dict(how), "threads": torch.get_num_threads()})
    if here:
        return _carried_out(order)
    command = [sys.executable, "-m", __name__, order]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        name = " ".join(str(value) for value in how.values() if isinstance(value, str))
        raise EvaluationError(f"measuring the memory of {name} failed: {reason[0]}")
    found: int | None = json.loads(done.stdout.splitlines()[-1])
    return found


def _carried_out(order: str) -> int | None:
    told = json.loads(order)
    torch.set_num_threads(told["threads"])
    quiet_transformers()
    module, _, function = told["job"].partition(":")
    work: Work = getattr(import_module(module), function)(told["how"])
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
    if not set_back():
        return None
    before = resident("VmRSS")
    do()
    return resident("VmHWM") - before


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_carried_out(sys.argv[1])) + "\n")
