"""How to cite a sweep's result: what identifies it, as text and as BibTeX."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from unlearnbench.config.loader import shipped_configs
from unlearnbench.reporting.latex import tex
from unlearnbench.reporting.report import Report

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


def citation(report: Report) -> Citation:
    """Collect what identifies a report's result."""
    runs = [one for one in report.records if one.kind == "run"]
    methods = sorted({one.method for one in runs})
    seeds = sorted({one.seed for one in runs})
    finished = [str(t) for r in report.records if (t := r.provenance.get("finished"))]
    date = max(finished, default="").partition("T")[0]
    count = f"{len(runs)} run{'s' * (len(runs) != 1)} of {len(methods)} method"
    title = f"{report.name}: {count}{'s' * (len(methods) != 1)}, unlearnbench sweep"
    versions = _several(report, _version)
    facts = [
        ("Seeds", ", ".join(map(str, seeds))),
        ("Date", date),
        ("unlearnbench", ", ".join(versions)),
        ("Commit", ", ".join(_several(report, _commit))),
        ("Evaluation profile", report.profile),
        ("Data fingerprint", ", ".join(_several(report, _data))),
        ("Records", _records(sorted(one.id for one in report.records))),
        ("Repeat", _command(report)),
    ]
    return Citation(
        title=title,
        facts=tuple((name, value) for name, value in facts if value),
        year=date[:4],
        version=", ".join(versions) or version("unlearnbench"),
    )


def _several(report: Report, of: Callable[[Mapping[str, Any]], Any]) -> list[str]:
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


def _command(report: Report) -> str:
    """Name the command that repeats the sweep, by its configuration's name."""
    name = str(report.config.get("name") or "")
    if not name:
        return ""
    return f"unlearnbench sweep {name if name in shipped_configs() else f'{name}.yaml'}"
