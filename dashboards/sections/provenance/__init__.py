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
"""Names and values, in the order of the page."""
_LEFT_OUT = {
    "headline",
    "benchmark",
    "process",
    "started",
    "finished",
    "interruptions",
    "peak_memory_mib",
    "estimated_memory_mib",
}
"""Keys of the provenance that the page sums up over all runs, or that are of no use to a reader."""


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
    """List groups of names and values: the sweep, its costs, and the provenance of its records."""
    runs = [record for record in report.records if record.kind == "run"]
    sweep = {
        "configuration": str(report.config.get("name") or report.name),
        "benchmark": report.schema.name,
        "evaluation profile": report.profile or "nothing evaluated yet",
        "runs": str(len(runs)),
        "start and retain models": str(len(report.records) - len(runs)),
        "seeds": _several({f"{record.seed}" for record in runs}) or "none",
    }
    return [
        ("This sweep", _not_empty(sweep)),
        ("Time and memory", _not_empty(_costs(report.records))),
        ("Code, data and machine", _recorded(report.records)),
    ]


def _not_empty(values: Mapping[str, str]) -> Pairs:
    return [(name, text) for name, text in values.items() if text]


def _recorded(records: Iterable[Record]) -> Pairs:
    """List the provenance of records by name, with the distinct values of all records."""
    values: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for key, value in record.provenance.items():
            if key in _LEFT_OUT:
                continue
            pairs = [("git commit", _commit(value))] if key == "git" else flatten({key: value})
            for name, text in pairs:
                values[name].add(text)
    return [(name, _several(texts)) for name, texts in sorted(values.items())]


def _commit(state: Any) -> str:
    """Format the state of the git repository in one line; empty if it is not known."""
    if not isinstance(state, Mapping) or not state.get("commit"):
        return ""
    place = f" in the {state['of']}" if state.get("of") else ""
    changed = "with" if state.get("dirty") else "no"
    return f"{state['commit']} ({changed} uncommitted changes{place})"


def _costs(records: Sequence[Record]) -> dict[str, str]:
    """Sum up time, memory and interruptions over records; a text is empty if there is nothing."""
    epochs = [epoch for record in records for epoch in record.epochs]
    attacked = [attack for record in records for attack in record.attacked]
    attack_seconds = sum(attack.training_seconds + attack.evaluation_seconds for attack in attacked)
    interruption_count = sum(
        len(record.provenance.get("interruptions") or ()) for record in records
    )
    interruptions = f"{interruption_count}, each resumed from a checkpoint"
    return {
        "training, all runs": format_duration(sum(epoch.training_seconds for epoch in epochs)),
        "evaluation, all models": format_duration(
            sum(epoch.evaluation_seconds for epoch in epochs)
        ),
        "attacks, all models": format_duration(attack_seconds) if attack_seconds else "",
        "first started": min(_distinct(records, "started"), default=""),
        "last finished": max(_distinct(records, "finished"), default=""),
        "peak memory of a run": _memory_range(records),
        "interruptions": interruptions if interruption_count else "",
    }


def _memory_range(records: Sequence[Record]) -> str:
    """Format the lowest and the highest peak memory, `900 to 1200 MiB`; empty if none is known."""
    recorded = [record.provenance.get("peak_memory_mib") for record in records]
    peaks = [peak for peak in recorded if peak is not None]
    if not peaks:
        return ""
    lowest = min(peaks)
    highest = max(peaks)
    if lowest == highest:
        return f"{lowest:g} MiB"
    return f"{lowest:g} to {highest:g} MiB"


def _distinct(records: Iterable[Record], key: str) -> list[str]:
    """List the distinct values of a key of the provenance in order, without empty ones."""
    values = [record.provenance.get(key) for record in records]
    return sorted({str(value) for value in values if value})


def _several(texts: Iterable[str]) -> str:
    """List up to three values. Of more values, give the first, the last and the number."""
    values = sorted(texts)
    if len(values) <= 3:
        return ", ".join(values)
    return f"{values[0]} … {values[-1]} ({len(values)} values)"


def citation(report: Results) -> str:
    """Write a sentence to cite, which identifies a report's result."""
    records = report.records
    methods = {record.method for record in records if record.kind == "run"}
    versions: set[str | None] = set()
    commits: set[str] = set()
    for record in records:
        packages = record.provenance.get("versions") or {}
        versions.add(packages.get("unlearnbench"))
        commits.add(_commit(record.provenance.get("git")))

    facts = {
        "methods": ", ".join(sorted(methods)),
        "date": max(_distinct(records, "finished"), default="").partition("T")[0],
        "unlearnbench": ", ".join(sorted(filter(None, versions))),
        "commit": ", ".join(sorted(filter(None, commits))),
        "profile": report.profile,
        "data": ", ".join(_distinct(records, "data")),
        "records": f"{len(records)}, {content_hash([record.id for record in records])}",
    }
    known = "; ".join(f"{name} {value}" for name, value in facts.items() if value)
    return f"{report.name}, unlearnbench sweep: {known}."
