"""A benchmark's result for people, as tables for a terminal and for a README; and its record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.errors import EvaluationError


class Table(NamedTuple):
    """Columns, rows and title."""

    columns: Sequence[str]
    rows: list[tuple[str, ...]]
    title: str = ""


def tables(result: dict[str, Any]) -> tuple[Table, Table]:
    """Seconds by state and phase; then everything else by state."""
    states = result["states"]
    questions = sum(states[0]["questions"].values())
    title = (
        f"{states[0]['parameters'] / 1e6:.3g}M parameters, {result['settings']['dtype']}, "
        f"{questions} questions, profile {result['profile']}"
    )
    seconds = [row for state in states for row in _seconds(state)]
    columns = ("model", "phase", "plain", "fast", "faster")
    names = [state["state"] for state in states]
    lines = [dict(_facts(state)) for state in states]
    facts = [(key, *(line[key] for line in lines)) for key in lines[0]]
    return Table(columns, seconds, title), Table(("", *names), facts)


def _seconds(state: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for phase, ratio in state["ratio"].items():
        plain, fast = (state["median_seconds"][way][phase] for way in ("plain", "fast"))
        name = state["state"] if phase == "scoring" else ""
        yield name, phase, f"{plain:.3g} s", f"{fast:.3g} s", f"{ratio:.2f}×"


def _facts(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    rates, least, peaks = state["tokens_per_second"], state["floor"], state["peak_bytes"]
    yield "tokens/s, plain", f"{rates['plain']:.0f}"
    yield "tokens/s, fast", f"{rates['fast']:.0f}"
    yield "scoring's arithmetic", f"{least['flop'] / 1e9:.4g} GFLOP"
    yield "matrix products here", f"{least['flop_per_second'] / 1e9:.0f} GFLOP/s"
    yield "so its floor", f"{least['seconds']:.3g} s"
    yield "fast scoring above it", f"{least['scoring_above']:.0%}"
    for way, size in peaks.items():
        yield f"peak memory, {way}", "not known" if size is None else f"{size / 2**20:.4g} MiB"
    known = None not in peaks.values() and peaks["plain"] > 0
    yield "fast of plain", f"{peaks['fast'] / peaks['plain']:.2f}" if known else "not known"
    how = state["statistics"]
    if how is not None:
        share = how["drafted"] / max(how["generated"], 1)
        yield "tokens from drafts", f"{share:.0%} of {how['generated']}"
        yield "decoding steps", f"{how['steps']}, {how['steps_saved']} saved"
    found = state["agreement"]
    verdict, largest = "agree" if found["agree"] else "DIFFER", found["largest_difference"]
    told = f"to {largest:.1e}" if largest is not None else f"in {found['where']}"
    yield "metrics", f"{verdict} {told}"
    yield "other answers", f"{found['ties']} at a tie, {found['different_answers']} elsewhere"


def made_on(result: dict[str, Any]) -> str:
    """When, on what and with what a result came about, in a line."""
    git, versions = result["git"], result["versions"]
    commit = git["commit"][:12] + (" with changes" if git["dirty"] else "") if git else "unknown"
    of = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers"))
    data = result["settings"]["data"]
    return (
        f"{result['date'][:10]}, {result['device']} ({result['threads']} threads), {of}, "
        f"commit {commit}; data {'synthetic' if data == 'synthetic' else 'TOFU'}, medians of "
        f"{result['settings']['repeats']}"
    )


def markdown(result: dict[str, Any]) -> str:
    """The tables as Markdown, for a README."""
    blocks: list[str] = []
    for table in tables(result):
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        blocks.append(f"{table.title}\n\n{text}" if table.title else text)
    return "\n\n".join([*blocks, made_on(result)])


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
