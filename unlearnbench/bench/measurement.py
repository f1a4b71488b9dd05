"""Timing on a device, the circumstances of a measurement, its tables and its record."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unlearnbench.runtime.provenance import git_state, provenance, versions

PrintLine = Callable[[str], None]


def now(device: torch.device) -> float:
    """Seconds on a monotonic clock, after all work queued on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def circumstances() -> dict[str, Any]:
    """Date, device, versions and commit of a measurement, ready for JSON."""
    here = provenance(data="")
    return {
        "date": here["started"],
        "device": here["device"],
        "platform": here["platform"],
        "threads": torch.get_num_threads(),
        "git": git_state(),
        "versions": versions(),
    }


class ResultTable(NamedTuple):
    """The columns, rows and title of a printed table."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    title: str = ""


def circumstances_line(result: dict[str, Any]) -> str:
    """Date, device, versions and commit of a result, on one line."""
    git, versions = result["git"], result["versions"]
    commit = git["commit"][:12] + (" with changes" if git["dirty"] else "") if git else "unknown"
    of = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    data = result["settings"].get("data")
    text = f"; data {'synthetic' if data == 'synthetic' else 'TOFU'}" if data else ""
    return (
        f"{result['date'][:10]}, {result['device']} ({result['threads']} threads), {of}, "
        f"commit {commit}{text}; medians of {result['settings']['repeats']}"
    )


def markdown(tables: Sequence[ResultTable], line: str) -> str:
    """Format tables, and the line below them, as Markdown."""
    blocks: list[str] = []
    for table in tables:
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks.append(f"{table.title}\n\n{text}" if table.title else text)
    return "\n\n".join([*blocks, line])


def size_of(count: int | None) -> str:
    """Format a number of bytes."""
    return "not known" if count is None else f"{count / 2**20:.4g} MiB"


def append_record(path: Path, result: dict[str, Any]) -> None:
    """Add `result` to `path` as one JSON line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result, separators=(",", ":")) + "\n")
