"""Origin of the numbers: code, data, machine, time and the resolved configuration."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import yaml

from unlearnbench.analysis.results import Results
from unlearnbench.config.loader import shipped_configs
from unlearnbench.console import format_duration
from unlearnbench.reporting.latex import tex
from unlearnbench.results.records import Record

from ...formatting import flatten
from ...report_section import PageContext, ReportSection

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


def provenance_groups(report: Results) -> list[tuple[str, Pairs]]:
    """List groups of names and values; provenance that belongs to no group comes last."""
    values = _recorded(report.records)
    groups = [("This sweep", _sweep(report))]
    for title, keys in _GROUPS.items():
        pairs = [pair for key in keys for pair in _pairs(key, values.pop(key, {}))]
        groups.append((title, pairs))
    groups.insert(-1, ("Time and memory", _spent(report.records)))
    rest = [
        (name, _several(sorted(v))) for key in sorted(values) for name, v in values[key].items()
    ]
    return [(title, pairs) for title, pairs in [*groups, ("Also recorded", rest)] if pairs]


def _recorded(records: Iterable[Record]) -> dict[str, dict[str, set[str]]]:
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


def _sweep(report: Results) -> Pairs:
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


LISTED = 12
"""Most record ids that are listed one by one."""


@dataclass(frozen=True)
class Citation:
    """Facts that identify a result, in the order in which they are cited."""

    title: str
    facts: tuple[tuple[str, str], ...]
    """Name and value."""
    year: str
    """Empty where no date is recorded."""
    version: str

    @property
    def text(self) -> str:
        """The citation as a paragraph."""
        return " ".join((f"{self.title}.", *(f"{name}: {value}." for name, value in self.facts)))

    @property
    def bibtex(self) -> str:
        """An entry for the sweep and one for the package."""
        key = re.sub(r"[^a-z0-9]+", "-", self.title.partition(":")[0].lower()).strip("-")
        note = " ".join(f"{name}: {value}." for name, value in self.facts)
        year = [("year", self.year)] if self.year else []
        sweep = [("title", self.title), *year, ("note", note)]
        package = [
            ("title", "unlearnbench: a benchmark harness for unlearning in language models"),
            *year,
            ("note", f"Version {self.version}"),
        ]
        named = f"{key or 'sweep'}-{self.year}".strip("-")
        return f"{_entry(named, sweep)}\n{_entry('unlearnbench', package)}"


def _entry(key: str, fields: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {name} = {{{{{tex(value)}}}}}," for name, value in fields]
    return "\n".join((f"@misc{{{key},", *lines, "}", ""))


def citation(report: Results) -> Citation:
    """Collect what identifies a report's result."""
    runs = [one for one in report.records if one.kind == "run"]
    methods = sorted({one.method for one in runs})
    seeds = sorted({one.seed for one in runs})
    finished = [str(t) for r in report.records if (t := r.provenance.get("finished"))]
    date = max(finished, default="").partition("T")[0]
    count = f"{len(runs)} run{'s' * (len(runs) != 1)} of {len(methods)} method"
    title = f"{report.name}: {count}{'s' * (len(methods) != 1)}, unlearnbench sweep"
    versions = _distinct(report, _version)
    facts = [
        ("Seeds", ", ".join(map(str, seeds))),
        ("Date", date),
        ("unlearnbench", ", ".join(versions)),
        ("Commit", ", ".join(_distinct(report, _commit))),
        ("Evaluation profile", report.profile),
        ("Data fingerprint", ", ".join(_distinct(report, _data))),
        ("Records", _records(sorted(one.id for one in report.records))),
        ("Repeat", _command(report)),
    ]
    return Citation(
        title=title,
        facts=tuple((name, value) for name, value in facts if value),
        year=date[:4],
        version=", ".join(versions) or version("unlearnbench"),
    )


def _distinct(report: Results, of: Callable[[Mapping[str, Any]], Any]) -> list[str]:
    """List the distinct values that the records' provenance has."""
    return sorted({str(v) for one in report.records if (v := of(one.provenance))})


def _version(provenance: Mapping[str, Any]) -> Any:
    return (provenance.get("versions") or {}).get("unlearnbench")


def _data(provenance: Mapping[str, Any]) -> Any:
    return provenance.get("data")


def _commit(provenance: Mapping[str, Any]) -> str | None:
    state = provenance.get("git") or {}
    if not state.get("commit"):
        return None
    return f"{state['commit']}{' with uncommitted changes' if state.get('dirty') else ''}"


def _records(ids: Sequence[str]) -> str:
    """List the ids; of many, give their number and the SHA-256 of the sorted ids, one per line."""
    if len(ids) <= LISTED:
        return ", ".join(ids)
    digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()
    return f"{len(ids)}, SHA-256 of their sorted ids {digest[:16]}"


def _command(report: Results) -> str:
    """Name the command that repeats the sweep, by its configuration's name."""
    name = str(report.config.get("name") or "")
    if not name:
        return ""
    return f"unlearnbench sweep {name if name in shipped_configs() else f'{name}.yaml'}"


def _values(context: PageContext) -> Mapping[str, Any]:
    config = dict(context.report.config)
    return {
        "cite": citation(context.report),
        "groups": provenance_groups(context.report),
        "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else "",
    }


SECTION = ReportSection("provenance", "origin", "Origin", _values)
