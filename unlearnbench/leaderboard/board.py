"""Folders become lines, and lines become records again, which tables and pages are made from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.bounded import BoundsError, numbered_lines
from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.evaluation.files import writing
from unlearnbench.leaderboard.line import SAME, Entry, line_of, precision_of
from unlearnbench.leaderboard.verify import RefusedError, verified
from unlearnbench.records import EpochResult, Record
from unlearnbench.report import build_report
from unlearnbench.table import Row, table

_NO_SETTING = (
    *("model.name", "forget_fraction", "method.name", "learning_rate", "seed", "evaluate_at"),
)
"""Of an identity, what a row says anyway."""


@dataclass(frozen=True)
class Exported:
    """A record of a folder: its line, or why it has none."""

    place: str
    id: str
    line: str
    why_not: str = ""


def export(folder: Path) -> Iterator[Exported]:
    """Each record that a sweep's page shows; those of failed runs have nothing to be believed by.

    Raises: RecordError where the folder holds no record, or a damaged one.
    """
    records = build_report(folder).records
    retains = [r for r in records if r.kind == "retain" and 0 in r.evaluations]
    for record in records:
        place = f"{folder / 'records' / record.place}"
        if record.status == "failed":
            yield Exported(place, record.id, "", "its run failed")
            continue
        here = (record.model, record.forget_fraction)
        fitting = [r for r in retains if (r.model, r.forget_fraction) == here]
        if record.kind == "retain":
            fitting = [record] if record in retains else []
        why = "there is no evaluation of its retain model"
        for retain in fitting:
            try:
                line = line_of(record, retain.evaluations[0])
                verified(line)
            except (RefusedError, RecordError, ValueError) as error:
                why = str(error)
                continue
            yield Exported(place, record.id, line)
            break
        else:
            yield Exported(place, record.id, "", why)


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """(place, line) of every line of a file. Raises: RecordError where it holds none."""
    empty = True
    try:
        for number, line in numbered_lines(path):
            if line.strip():
                empty = False
                # What is not UTF-8 becomes half characters, for which the line alone is refused.
                yield f"{path}:{number}", line.decode(errors="surrogateescape")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    except BoundsError as error:
        raise RecordError(f"{path}: {error}") from None
    if empty:
        raise RecordError(f"{path}: empty; give a file of `leaderboard export`")


def write_lines(lines: Sequence[str], path: Path) -> None:
    """A line each; the file is there whole or stays as it was."""
    try:
        with writing(path, "the leaderboard") as part:
            part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    except UnlearnbenchError as error:
        raise RecordError(str(error)) from None


def records_of(entries: Iterable[Entry]) -> tuple[Record, ...]:
    """Records without answers and steps, from which `table` and `make_report` make theirs.

    Groups train in other ways, too: whatever differs between runs of one method (batch size,
    schedule, adapters) counts as one more of its hyper-parameters, and seeds are averaged only
    where all of it is the same.
    """
    entries = tuple(entries)
    telling = _telling(entries)
    return tuple(_record(entry, telling.get(entry["method"], ())) for entry in entries)


def tables(entries: Iterable[Entry]) -> dict[str, tuple[Row, ...]]:
    """The table of each profile: numbers by different rules of evaluation stay apart."""
    by_profile: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_profile[entry["profile"]].append(entry)
    return {profile: table(records_of(found)) for profile, found in sorted(by_profile.items())}


def _record(entry: Entry, telling: Iterable[str]) -> Record:
    spec: Mapping[str, Any] = {}
    if entry["kind"] == "run":
        leaves, method = dict(_leaves(entry["identity"])), entry["identity"]["method"]
        more = {name: leaves.get(name) for name in telling}
        spec = {"method": method | {"hyperparameters": method["hyperparameters"] | more}}
    return Record(
        id=entry["id"],
        **{key: entry[key] for key in SAME},
        spec=spec,
        precision=precision_of(entry),
        epochs=tuple(
            EpochResult(e["epoch"], e["metrics"], e["training_seconds"], e["evaluation_seconds"])
            for e in entry["epochs"]
        ),
        provenance=entry["provenance"] | {"data": entry["data"], "weights": entry["weights"]},
    )


def _telling(entries: Iterable[Entry]) -> dict[str, set[str]]:
    """By method, what its runs on one panel differ in beyond what a row says."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        if entry["kind"] == "run":
            place = (entry["method"], entry["model"], entry["forget_fraction"])
            groups[place].append(dict(_leaves(entry["identity"])))
    telling: dict[str, set[str]] = defaultdict(set)
    for (method, *_), found in groups.items():
        for name in {name for leaves in found for name in leaves}:
            # One that is missing is a value, too: a default that stays out of identities.
            if len({leaves.get(name) for leaves in found}) > 1:
                telling[method].add(name)
    return telling


def _leaves(identity: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all that is not a row's own, nor a hyper-parameter."""
    for key, value in identity.items():
        name = f"{above}{key}"
        if name in _NO_SETTING or name.startswith(("method.hyperparameters", "method.retain")):
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        else:
            yield name, json.dumps(value) if isinstance(value, list) else value
