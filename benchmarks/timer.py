"""Parts that all measurements share: time, peak memory, circumstances, and the result as JSON."""

import argparse
import ctypes
import gc
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unlearnbench.base.provenance import provenance
from unlearnbench.config.resources import Resources
from unlearnbench.models.device import use_device
from unlearnbench.models.quiet_libraries import quiet_transformers

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Work = Callable[[], object]


def now() -> float:
    """Seconds on a monotonic clock, after all work queued on the device is done."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds_of(work: Work) -> float:
    """The time that some work takes."""
    begin = now()
    work()
    return now() - begin


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, 20th and 80th percentile."""
    low, middle, high = np.quantile([*values], (0.2, 0.5, 0.8)).tolist()
    return {"median": middle, "p20": low, "p80": high}


def in_turn(
    ways: Mapping[str, Work], repeats: int, warm_up: int = 1
) -> dict[str, dict[str, float]]:
    """Time the ways in turn, after turns to warm up: other load disturbs all of them alike."""
    turns = range(warm_up + repeats)
    seconds = [{way: seconds_of(work) for way, work in ways.items()} for _ in turns]
    return {way: spread(turn[way] for turn in seconds[warm_up:]) for way in ways}


def peak_bytes(prepare: Callable[..., Work], *arguments: Any, here: bool = False) -> int | None:
    """Bytes that a piece of work needs beyond its inputs; None on systems without VmHWM.

    prepare  a function of a module; called with the arguments, it returns the work
    here     measure in this process, whose allocator reuses what it has freed: for tiny work
    """
    if here:
        return _peak(prepare(*arguments))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as process:
        order = (torch.get_num_threads(), prepare, arguments)
        return process.submit(_measured, *order).result()


def _measured(threads: int, prepare: Callable[..., Work], arguments: tuple[Any, ...]) -> int | None:
    torch.set_num_threads(threads)
    quiet_transformers()
    return _peak(prepare(*arguments))


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def memory_bytes(key: str) -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (the most so far) of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> bool:
    """Reset `VmHWM`; returns whether this system can."""
    # Freed memory that the allocator keeps would hide what is allocated next. glibc only.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        _RESET.write_text("5")  # VmHWM becomes VmRSS
    except OSError:
        return False
    return True


def _peak(work: Work) -> int | None:
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        seconds_of(work)
        return torch.cuda.max_memory_allocated() - before
    if not reset_peak():
        return None
    before = memory_bytes("VmRSS")
    work()
    return memory_bytes("VmHWM") - before


def options_of(description: str | None) -> argparse.ArgumentParser:
    """The options that all measurements have."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="file to write in place of standard output")
    return parser


def begin(parser: argparse.ArgumentParser, words: list[str] | None) -> argparse.Namespace:
    """Read the options, and set up torch as they say."""
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    quiet_transformers()
    use_device(Resources(gpu=1 if DEVICE.type == "cuda" else 0))  # as a run
    return options


def end(options: argparse.Namespace, agree: bool, **result: Any) -> int:
    """Print the result and its circumstances; returns the exit code: 1 where two ways differ."""
    known = provenance(data="")
    about = {key: known[key] for key in ("started", "device", "platform", "git", "versions")}
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    text = json.dumps({**about, "settings": settings, "agree": agree, **result}, indent=1) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0 if agree else 1
