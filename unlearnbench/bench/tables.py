"""A benchmark's result for people, as tables for a terminal and for a README; and its record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.errors import EvaluationError


class Table(NamedTuple):
    """Columns, rows and title."""

    columns: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    title: str = ""


def made_on(result: dict[str, Any]) -> str:
    """When, on what and with what a result came about, in a line."""
    git, versions = result["git"], result["versions"]
    commit = git["commit"][:12] + (" with changes" if git["dirty"] else "") if git else "unknown"
    of = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    data = result["settings"].get("data")
    text = f"; data {'synthetic' if data == 'synthetic' else 'TOFU'}" if data else ""
    return (
        f"{result['date'][:10]}, {result['device']} ({result['threads']} threads), {of}, "
        f"commit {commit}{text}; medians of {result['settings']['repeats']}"
    )


def markdown(tables: Sequence[Table], line: str) -> str:
    """Tables and what they were made on, as Markdown for a README."""
    blocks: list[str] = []
    for table in tables:
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks.append(f"{table.title}\n\n{text}" if table.title else text)
    return "\n\n".join([*blocks, line])


def size_of(count: int | None) -> str:
    """Bytes for people."""
    return "not known" if count is None else f"{count / 2**20:.4g} MiB"


def append_record(path: Path, result: dict[str, Any]) -> None:
    """Add `result` to `path` as one JSON line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result, separators=(",", ":")) + "\n")
    except OSError as error:
        raise EvaluationError(
            f"{path}: cannot append the record: {error.strerror or error}"
        ) from error
