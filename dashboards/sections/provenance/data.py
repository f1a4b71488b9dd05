"""Provenance of all records in groups: code, data, machine, time and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unlearnbench.console import format_duration
from unlearnbench.reporting.report import Report
from unlearnbench.results.records import Record

from ...formatting import flatten

Pairs = list[tuple[str, str]]

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Code": ("git", "commit", "versions"),
    "Data and models": ("data", "weights"),
    "Machine": ("device", "host", "platform", "processes"),
}
_NAMES = {
    "data": "data, hash",
    "weights": "start weights, hash",
    "processes": "processes a run",
}
_LEFT_OUT = {
    *("headline", "benchmark"),
    *("process", "started", "finished", "interruptions"),
    *("peak_memory_mib", "peak_memory_of", "estimated_memory_mib"),
}
"""Keys that are summed up over all runs, or are of no use to a reader."""


def provenance_groups(report: Report) -> list[tuple[str, Pairs]]:
    """List groups of names and values; provenance that belongs to no group comes last."""
    values = _values(report.records)
    groups = [("This sweep", _sweep(report))]
    for title, keys in _GROUPS.items():
        pairs = [pair for key in keys for pair in _pairs(key, values.pop(key, {}))]
        groups.append((title, pairs))
    groups.insert(-1, ("Time and memory", _spent(report.records)))
    rest = [
        (name, _several(sorted(v))) for key in sorted(values) for name, v in values[key].items()
    ]
    return [(title, pairs) for title, pairs in [*groups, ("Also recorded", rest)] if pairs]


def _values(records: Iterable[Record]) -> dict[str, dict[str, set[str]]]:
    """Collect the values of all records, by key of the provenance and by name."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for record in records:
        for key, value in record.provenance.items():
            if key in _LEFT_OUT:
                continue
            for name, text in _git(value) if key == "git" else flatten({key: value}):
                found[key][name].add(text)
    return found


def _git(state: Any) -> Pairs:
    """Format the state of the git repository in one line."""
    if not isinstance(state, Mapping):
        return []
    of = f" in the {state['of']}" if state.get("of") else ""
    changed = "with" if state.get("dirty") else "no"
    return [("commit", f"{state.get('commit')} ({changed} uncommitted changes{of})")]


def _pairs(key: str, named: Mapping[str, set[str]]) -> Pairs:
    prefix = f"{key} · "
    return [
        (_NAMES.get(name, name.removeprefix(prefix)), _several(sorted(found)))
        for name, found in named.items()
    ]


def _sweep(report: Report) -> Pairs:
    runs = [r for r in report.records if r.kind == "run"]
    references = len(report.records) - len(runs)
    seeds = sorted({r.seed for r in runs})
    return [
        ("configuration", str(report.config.get("name") or report.name)),
        *([("benchmark", name)] if (name := report.schema.name) else []),
        ("evaluation profile", report.profile or "nothing evaluated yet"),
        (
            "records",
            f"{len(report.records)}: {len(runs)} runs, {references} start and retain models",
        ),
        ("seeds", _several([str(s) for s in seeds]) or "none"),
    ]


def _spent(records: Sequence[Record]) -> Pairs:
    epochs = [e for r in records for e in r.epochs]
    training = sum(e.training_seconds for e in epochs)
    evaluating = sum(e.evaluation_seconds for e in epochs)
    attacks = sum(e.training_seconds + e.evaluation_seconds for r in records for e in r.attacked)
    started = [str(t) for r in records if (t := r.provenance.get("started"))]
    finished = [str(t) for r in records if (t := r.provenance.get("finished"))]
    memory = [m for r in records if (m := r.provenance.get("peak_memory_mib")) is not None]
    of = sorted({str(m) for r in records if (m := r.provenance.get("peak_memory_of"))})
    cuts = sum(len(r.provenance.get("interruptions") or ()) for r in records)
    return [
        ("training, all runs", format_duration(training)),
        ("evaluation, all models", format_duration(evaluating)),
        *([("attacks, all models", format_duration(attacks))] if attacks else []),
        *([("first started", _clock(min(started)))] if started else []),
        *([("last finished", _clock(max(finished)))] if finished else []),
        *([("peak memory of a run", _range(memory, of))] if memory else []),
        *([("interruptions", f"{cuts}, each resumed from a checkpoint")] if cuts else []),
    ]


def _clock(moment: str) -> str:
    """Format an ISO time of UTC: `2026-11-21 07:55:18 UTC`."""
    day, _, clock = moment.partition("T")
    return f"{day} {clock[:8]} UTC" if clock.endswith(("+00:00", "Z")) else moment


def _range(memory: Sequence[float], of: Sequence[str]) -> str:
    low, high = min(memory), max(memory)
    text = f"{high:g} MiB" if low == high else f"{low:g} to {high:g} MiB"
    return f"{text} ({', '.join(of)})" if of else text


def _several(values: Sequence[str]) -> str:
    """List up to three values; of more, the first, the last and their number."""
    shown = ", ".join(values[:3])
    return shown if len(values) <= 3 else f"{values[0]} … {values[-1]} ({len(values)} values)"
