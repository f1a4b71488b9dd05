"""Peak memory of an evaluation, beyond the model and the questions' tokens.

On a GPU the device counts it. On a CPU it is the kernel's own high-water mark of resident memory
(VmHWM), set back when the work begins, so that no peak between two samples is missed; and since an
allocator keeps what it was given back, each way is measured in a process of its own.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from unlearnbench.bench.exam import Exam, Settings
from unlearnbench.bench.models import load
from unlearnbench.errors import EvaluationError
from unlearnbench.models.loading import quiet_transformers

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def peak_memory(settings: Settings, folder: Path, way: str) -> int | None:
    """Bytes that `way` (plain, fast) needs for the model in `folder`; None where not known."""
    how: dict[str, Any] = {"settings": asdict(settings), "folder": str(folder), "way": way}
    how["threads"] = torch.get_num_threads()
    if settings.quick:  # a process takes longer to start than all of the rest
        return measured(how)
    command = [sys.executable, "-m", __name__, json.dumps(how)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise EvaluationError(f"measuring the memory of the {way} way failed: {reason[0]}")
    found: int | None = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(how: dict[str, Any]) -> int | None:
    """`peak_memory`, in this process."""
    torch.set_num_threads(how["threads"])
    quiet_transformers()
    settings = Settings(**how["settings"])
    model, tokenizer = load(Path(how["folder"]), settings.dtype)
    exam = Exam(settings.sets(), tokenizer, settings.rules())
    begin: Any = getattr(exam.beginning(), how["way"])()
    begin(model)  # imports, thread pools and kernels are nobody's
    evaluator: Any = getattr(exam, how["way"])()
    return peak_of(next(model.parameters()).device, lambda: evaluator(model))


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
    _give_back()
    try:
        _RESET.write_text("5")  # VmHWM becomes VmRSS
    except OSError:
        return None
    before = _resident("VmRSS")
    do()
    return _resident("VmHWM") - before


def _resident(key: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def _give_back() -> None:
    # Freed memory that the allocator keeps would hide what is allocated next. glibc only.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(json.loads(sys.argv[1]))) + "\n")
