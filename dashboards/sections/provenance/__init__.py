"""Origin of the numbers: code, data, machine, time and the resolved configuration."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from unlearnbench.analysis.results import Results
from unlearnbench.base.console import format_duration
from unlearnbench.config.loader import shipped_configs
from unlearnbench.report.best_table import tex
from unlearnbench.results.records import Record

from ...formatting import flatten
from ...report_section import PageContext, Section

Pairs = list[tuple[str, str]]
_LEFT_OUT = {
    *("headline", "benchmark"),
    *("process", "started", "finished", "interruptions"),
    *("peak_memory_mib", "peak_memory_of", "estimated_memory_mib"),
}
"""Keys that are summed up over all runs, or are of no use to a reader."""
LISTED = 12
"""Most record ids that are listed one by one."""


class Provenance(Section):
    """The citation, the provenance in groups, and the configuration."""

    name, title, order, folder = "origin", "Origin", 140, "provenance"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Collect the provenance of all records."""
        config = dict(context.report.config)
        title, facts = citation(context.report)
        return {
            "title": title,
            "facts": facts,
            "bibtex": bibtex(title, facts),
            "groups": provenance_groups(context.report),
            "config": yaml.safe_dump(config, sort_keys=False, allow_unicode=True) if config else "",
        }


def provenance_groups(report: Results) -> list[tuple[str, Pairs]]:
    """List groups of names and values: of the sweep, of its costs, and what records have else."""
    values: dict[str, set[str]] = defaultdict(set)
    for record in report.records:
        for key, value in record.provenance.items():
            pairs = [("git commit", _commit(value))] if key == "git" else flatten({key: value})
            for name, text in () if key in _LEFT_OUT else pairs:
                values[name].add(text)
    recorded = [(name, _several(texts)) for name, texts in sorted(values.items())]
    return [
        ("This sweep", _sweep(report)),
        ("Time and memory", _spent(report.records)),
        ("Code, data and machine", recorded),
    ]


def _commit(state: Any) -> str:
    """Format the state of the git repository in one line; empty if it is not known."""
    if not isinstance(state, Mapping) or not state.get("commit"):
        return ""
    of = f" in the {state['of']}" if state.get("of") else ""
    changed = "with" if state.get("dirty") else "no"
    return f"{state['commit']} ({changed} uncommitted changes{of})"


def _sweep(report: Results) -> Pairs:
    runs = [r for r in report.records if r.kind == "run"]
    records = (
        f"{len(report.records)}: {len(runs)} runs, {len(report.records) - len(runs)} start and "
        "retain models"
    )
    pairs = [
        ("configuration", str(report.config.get("name") or report.name)),
        ("benchmark", report.schema.name),
        ("evaluation profile", report.profile or "nothing evaluated yet"),
        ("records", records),
        ("seeds", _several({f"{r.seed}" for r in runs}) or "none"),
    ]
    return [(name, text) for name, text in pairs if text]


def _spent(records: Sequence[Record]) -> Pairs:
    epochs = [e for r in records for e in r.epochs]
    attacks = sum(e.training_seconds + e.evaluation_seconds for r in records for e in r.attacked)
    started, finished = _of(records, "started"), _of(records, "finished")
    memory = sorted({m for r in records if (m := r.provenance.get("peak_memory_mib")) is not None})
    ends = " to ".join(f"{m:g}" for m in dict.fromkeys([*memory[:1], *memory[-1:]]))
    of = ", ".join(_of(records, "peak_memory_of"))
    cuts = sum(len(r.provenance.get("interruptions") or ()) for r in records)
    pairs = [
        ("training, all runs", format_duration(sum(e.training_seconds for e in epochs))),
        ("evaluation, all models", format_duration(sum(e.evaluation_seconds for e in epochs))),
        ("attacks, all models", format_duration(attacks) if attacks else ""),
        ("first started", _clock(min(started, default=""))),
        ("last finished", _clock(max(finished, default=""))),
        ("peak memory of a run", f"{ends} MiB{f' ({of})' * bool(of)}" if ends else ""),
        ("interruptions", f"{cuts}, each resumed from a checkpoint" if cuts else ""),
    ]
    return [(name, text) for name, text in pairs if text]


def _of(records: Iterable[Record], key: str) -> list[str]:
    """The distinct values of a key of the provenance."""
    return sorted({str(value) for r in records if (value := r.provenance.get(key))})


def _clock(moment: str) -> str:
    """Format an ISO time of UTC: `2026-11-21 07:55:18 UTC`."""
    day, _, clock = moment.partition("T")
    return f"{day} {clock[:8]} UTC" if clock.endswith(("+00:00", "Z")) else moment


def _several(result: Iterable[str]) -> str:
    """List up to three values; of more, the first, the last and their number."""
    values = sorted(result)
    shown = ", ".join(values[:3])
    return shown if len(values) <= 3 else f"{values[0]} … {values[-1]} ({len(values)} values)"


def citation(report: Results) -> tuple[str, Mapping[str, str]]:
    """The title of a report's result, and what identifies it, by name in order."""
    runs = [record for record in report.records if record.kind == "run"]
    methods = len({run.method for run in runs})
    versions = {(r.provenance.get("versions") or {}).get("unlearnbench") for r in report.records}
    commits = {_commit(r.provenance.get("git")) for r in report.records}
    ids = sorted(record.id for record in report.records)
    records = ", ".join(ids)
    if len(ids) > LISTED:
        digest = hashlib.sha256("\n".join(ids).encode()).hexdigest()
        records = f"{len(ids)}, SHA-256 of their sorted ids {digest[:16]}"
    name = str(report.config.get("name") or "")
    file = name if name in shipped_configs() else f"{name}.yaml"
    facts = {
        "Seeds": ", ".join(map(str, sorted({run.seed for run in runs}))),
        "Date": max(_of(report.records, "finished"), default="").partition("T")[0],
        "unlearnbench": ", ".join(sorted(filter(None, versions))),
        "Commit": ", ".join(sorted(filter(None, commits))),
        "Evaluation profile": report.profile,
        "Data fingerprint": ", ".join(_of(report.records, "data")),
        "Records": records,
        "Repeat": f"unlearnbench sweep {file}" if name else "",
    }
    title = f"{report.name}: {len(runs)} run{'s' * (len(runs) != 1)} of {methods} method"
    known = {label: value for label, value in facts.items() if value}
    return f"{title}{'s' * (methods != 1)}, unlearnbench sweep", known


def bibtex(title: str, facts: Mapping[str, str]) -> str:
    """An entry for the sweep."""
    key = re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower()).strip("-")
    note = " ".join(f"{name}: {value}." for name, value in facts.items())
    fields = {"title": title, "year": facts.get("Date", "")[:4], "note": note}
    lines = [f"  {name} = {{{{{tex(value)}}}}}," for name, value in fields.items() if value]
    return "\n".join((f"@misc{{{key or 'sweep'},", *lines, "}"))
