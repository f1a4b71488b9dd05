"""`unlearnbench plan --memory`: what each kind of run takes of memory and time."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from unlearnbench.console import Console
from unlearnbench.plan import Plan

if TYPE_CHECKING:
    from unlearnbench.data.benchmark import Benchmark
    from unlearnbench.sizing import Estimate

FLOPS = 400e12
"""Of one process a second: bf16 on an H100 or H200 (989e12) at 40 %."""
DEVICE_MEMORY = 80e9
"""Bytes of a GPU where this machine has none: an H100's."""
_PARTS = ("weights", "gradients", "optimizer", "activations", "casts", "logits", "reference")
_GIB = 2**30


def memory_json(
    planned: Plan, benchmark: Benchmark, flops: float, memory: float | None
) -> dict[str, Any]:
    """The estimates, ready for JSON: bytes in MiB, no hours for what does not fit.

    memory  of a GPU, in 1e9 bytes; None for that of this machine's
    """
    from unlearnbench.footprint import FORMULA
    from unlearnbench.sizing import estimates

    device = _device(memory)
    found, unknown = estimates(planned, benchmark, flops, device)
    kinds = [
        {
            "model": one.run.model.name,
            "method": one.run.method.label,
            "runs": one.runs,
            "processes": one.resources.world,
            "rows_at_a_time": one.setup.items,
            "memory_mib": one.memory.to_json(),
            "fits": one.fits,
            "hours": one.hours.total if one.fits else None,
            "hours_by_work": asdict(one.hours) if one.fits else None,
            "gpu_hours": one.gpu_hours if one.fits else None,
        }
        for one in found
    ]
    mib = round(device / 2**20)
    how = {"flops": flops, "device_memory_mib": mib, "unknown": unknown, "formula": FORMULA}
    return {"kinds": kinds} | how


def print_memory(
    planned: Plan, benchmark: Benchmark, flops: float, memory: float | None, console: Console
) -> None:
    """The estimates as a table, what does not fit, the formula in words, and what is not known."""
    from unlearnbench.device import USABLE
    from unlearnbench.footprint import ASSUMED, FORMULA, Hours
    from unlearnbench.preflight import gib, refusals
    from unlearnbench.sizing import CHARACTERS, TEMPLATE, estimates

    device = _device(memory)
    found, unknown = estimates(planned, benchmark, flops, device)
    if found:
        columns = (
            *("model", "method", "runs", "GPUs", "rows at a time"),
            *(*_PARTS, "evaluation", "peak GiB", "hours a run", "GPU hours"),
        )
        title = "memory of each process in GiB, and hours of the longest run: an estimate"
        console.table(columns, [_row(one) for one in found], title)
        run = [one for one in found if one.fits]
        over = [one for one in found if not one.fits]
        if run:
            total = sum(one.gpu_hours for one in run)
            of = {
                n: sum(getattr(one.hours, n) / one.hours.total * one.gpu_hours for one in run)
                for n in (field.name for field in fields(Hours))
            }
            parts = ", ".join(f"{value:.2g} {name}" for name, value in of.items())
            what = "of what fits" if over else "in all"
            console.print(f"{total:.3g} GPU hours {what}, of which about {parts}")
        for line in refusals(over, planned.config, benchmark, device):
            console.print(line)
        if not over and any(one.limit is not None for one in found):
            console.print(
                f"all of it fits GPUs of {gib(device)} ({device / 1e9:.3g} GB; "
                f"--device-memory), of which {USABLE:.0%} can be used"
            )
        console.print(
            f"\n{FORMULA}\n\nassumed: {flops:g} FLOP/s of a "
            f"process in bf16 (--flops; the device's × the share of it that is reached), "
            f"{ASSUMED}, {CHARACTERS} characters and a template of {TEMPLATE} tokens for a row's "
            "length; time to prepare models and to evaluate what runs are compared with is not "
            "in it"
        )
    for line in unknown:
        console.print(f"not known: {line}")


def _device(memory: float | None) -> int:
    """Bytes of a GPU: as stated in 1e9, else as it is here, else `DEVICE_MEMORY`."""
    from unlearnbench.device import device_memory

    return int(memory * 1e9 if memory is not None else device_memory() or DEVICE_MEMORY)


def _row(one: Estimate) -> tuple[Any, ...]:
    sizes = [getattr(one.memory, part) for part in _PARTS]
    sizes += [one.memory.evaluation, one.memory.peak]
    return (
        one.run.model.name,
        one.run.method.label,
        one.runs,
        f"{one.resources.gpu:g}",
        one.setup.items,
        *(f"{size / _GIB:.2f}" for size in sizes),
        # How fast it decodes depends on memory that is free, and none is.
        *((f"{one.hours.total:.2g}", f"{one.gpu_hours:.2g}") if one.fits else ("–", "–")),
    )
