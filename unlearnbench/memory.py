"""`unlearnbench plan --memory`: what each kind of run takes of memory and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unlearnbench.console import Console
from unlearnbench.plan import Plan

if TYPE_CHECKING:
    from unlearnbench.data.benchmark import Benchmark
    from unlearnbench.sizing import Estimate

FLOPS = 400e12
"""Of one process a second: bf16 on an H100 or H200 (989e12) at 40 %."""
_PARTS = ("weights", "gradients", "optimizer", "activations", "casts", "logits", "reference")
_GIB = 2**30


def memory_json(planned: Plan, benchmark: Benchmark, flops: float) -> dict[str, Any]:
    """The estimates, ready for JSON: bytes in MiB."""
    from unlearnbench.footprint import FORMULA
    from unlearnbench.sizing import estimates

    found, unknown = estimates(planned, benchmark, flops)
    kinds = [
        {
            "model": one.model,
            "method": one.method,
            "runs": one.runs,
            "processes": one.processes,
            "memory_mib": one.memory.to_json(),
            "hours": one.hours,
        }
        for one in found
    ]
    return {"flops": flops, "kinds": kinds, "unknown": unknown, "formula": FORMULA}


def print_memory(planned: Plan, benchmark: Benchmark, flops: float, console: Console) -> None:
    """The estimates as a table, the formula in words, and what is not known."""
    from unlearnbench.footprint import FORMULA
    from unlearnbench.sizing import CHARACTERS, TEMPLATE, estimates

    found, unknown = estimates(planned, benchmark, flops)
    if found:
        columns = ("model", "method", "runs", *_PARTS, "peak GiB", "keys+values", "hours a run")
        title = "memory of each process in GiB, and hours of the longest run: an estimate"
        console.table(columns, [_row(one) for one in found], title)
        total = sum(one.hours * one.runs * one.processes for one in found)
        console.print(
            f"at most {total:.3g} GPU hours in all\n\n{FORMULA}\n\nassumed: {flops:g} FLOP/s of a "
            f"process in bf16 (--flops; the device's × the share of it that is reached), "
            f"{CHARACTERS} characters and a template of {TEMPLATE} tokens for a row's length; time "
            "to load and to prepare models is not in it"
        )
    for line in unknown:
        console.print(f"not known: {line}")


def _row(one: Estimate) -> tuple[Any, ...]:
    parts = [f"{getattr(one.memory, part) / _GIB:.2f}" for part in _PARTS]
    ends = (f"{one.memory.peak / _GIB:.2f}", f"≤ {one.memory.keys / _GIB:.2f}")
    return (
        one.model,
        one.method,
        one.runs,
        *parts,
        *ends,
        "< 0.01" if one.hours < 0.01 else f"{one.hours:.2g}",
    )
