"""Origin of the numbers: code, data, machine, time and the resolved configuration."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from unlearnbench.analysis.results import Results
from unlearnbench.base.console import format_duration
from unlearnbench.base.hashing import content_hash
from unlearnbench.results.records import Record

from ...formatting import flatten
from ...report_section import PageContext, Section

Pairs = list[tuple[str, str]]
_LEFT_OUT = {
    *("headline", "benchmark"),
    *("process", "started", "finished", "interruptions"),
    *("peak_memory_mib", "estimated_memory_mib"),
}
"""Keys that are summed up over all runs, or are of no use to a reader."""


class Provenance(Section):
    """The citation, the provenance in groups, and the configuration."""

    name, title, order, folder = "origin", "Origin", 140, "provenance"

    def values(self, context: PageContext) -> Mapping[str, Any]:
        """Collect the provenance of all records."""
        config = dict(context.report.config)
        return {
            "citation": citation(context.report),
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
    runs = [r for r in report.records if r.kind == "run"]
    sweep = {
        "configuration": str(report.config.get("name") or report.name),
        "benchmark": report.schema.name,
        "evaluation profile": report.profile or "nothing evaluated yet",
        "runs": str(len(runs)),
        "start and retain models": str(len(report.records) - len(runs)),
        "seeds": _several({f"{r.seed}" for r in runs}) or "none",
    }
    recorded = [(name, _several(texts)) for name, texts in sorted(values.items())]
    groups = [("This sweep", sweep), ("Time and memory", _spent(report.records))]
    named = [(title, [(k, v) for k, v in pairs.items() if v]) for title, pairs in groups]
    return [*named, ("Code, data and machine", recorded)]


def _commit(state: Any) -> str:
    """Format the state of the git repository in one line; empty if it is not known."""
    if not isinstance(state, Mapping) or not state.get("commit"):
        return ""
    of = f" in the {state['of']}" if state.get("of") else ""
    changed = "with" if state.get("dirty") else "no"
    return f"{state['commit']} ({changed} uncommitted changes{of})"


def _spent(records: Sequence[Record]) -> dict[str, str]:
    epochs = [e for r in records for e in r.epochs]
    attacks = sum(e.training_seconds + e.evaluation_seconds for r in records for e in r.attacked)
    memory = sorted({m for r in records if (m := r.provenance.get("peak_memory_mib")) is not None})
    ends = " to ".join(f"{m:g}" for m in dict.fromkeys([*memory[:1], *memory[-1:]]))
    cuts = sum(len(r.provenance.get("interruptions") or ()) for r in records)
    return {
        "training, all runs": format_duration(sum(e.training_seconds for e in epochs)),
        "evaluation, all models": format_duration(sum(e.evaluation_seconds for e in epochs)),
        "attacks, all models": format_duration(attacks) if attacks else "",
        "first started": min(_of(records, "started"), default=""),
        "last finished": max(_of(records, "finished"), default=""),
        "peak memory of a run": f"{ends} MiB" if ends else "",
        "interruptions": f"{cuts}, each resumed from a checkpoint" if cuts else "",
    }


def _of(records: Iterable[Record], key: str) -> list[str]:
    """The distinct values of a key of the provenance."""
    return sorted({str(value) for r in records if (value := r.provenance.get(key))})


def _several(result: Iterable[str]) -> str:
    """List up to three values; of more, the first, the last and their number."""
    values = sorted(result)
    shown = ", ".join(values[:3])
    return shown if len(values) <= 3 else f"{values[0]} … {values[-1]} ({len(values)} values)"


def citation(report: Results) -> str:
    """A sentence that identifies a report's result, to be cited."""
    records = report.records
    methods = {record.method for record in records if record.kind == "run"}
    versions = {(r.provenance.get("versions") or {}).get("unlearnbench") for r in records}
    commits = {_commit(r.provenance.get("git")) for r in records}
    facts = {
        "methods": ", ".join(sorted(methods)),
        "date": max(_of(records, "finished"), default="").partition("T")[0],
        "unlearnbench": ", ".join(sorted(filter(None, versions))),
        "commit": ", ".join(sorted(filter(None, commits))),
        "profile": report.profile,
        "data": ", ".join(_of(records, "data")),
        "records": f"{len(records)}, {content_hash([record.id for record in records])}",
    }
    known = "; ".join(f"{name} {value}" for name, value in facts.items() if value)
    return f"{report.name}, unlearnbench sweep: {known}."
