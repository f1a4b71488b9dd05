"""One immutable record per run: the product. Reports, plots and MLflow are views of it.

On disk a record is a folder, written beside its place and renamed into it, so that it is there
whole or not at all:

    records/<id>/record.json            spec, provenance, metrics, loss terms, its own SHA-256
    records/<id>/epoch-<k>.json.gz      the evaluation in TOFU's own log format
    records/<id>.failed/record.json     a run that failed, until it succeeds
    records/<id>.stopped/…              a run that a search stopped, until it is run to its end
    records/<id>.damaged/               what a sweep has set aside, and done again

The first record of an id stays: equal ids are equal runs. A failed run is tried again by the next
command. JSON has no infinity: a float that is not finite is stored as `{"$float": "nan"}`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from unlearnbench.bounded import parse_json, read_bytes, shortened
from unlearnbench.digests import document_hash, file_hash
from unlearnbench.durable import flush, rename_new
from unlearnbench.errors import DamagedError, EvaluationError, RecordError
from unlearnbench.evaluation.precision import precision_of_spec
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.floats import plain, revive
from unlearnbench.plan import RunSpec
from unlearnbench.plausible import check_record
from unlearnbench.redaction import redacted
from unlearnbench.step import StepResult

SCHEMA = 1
PROVISIONAL = {"failed": ".failed", "stopped": ".stopped"}
"""Ends the name of a record, by its status, that gives way to any other of the same id."""
DAMAGED, PART = ".damaged", ".part-"
"""End of what is set aside, and beginning of what is being written; host and process follow."""


@dataclass(frozen=True)
class EpochResult:
    """The model after an epoch; epoch 0 is the start."""

    epoch: int
    metrics: Mapping[str, float | None]
    """Named as in `results.csv`; None where undefined."""
    training_seconds: float
    evaluation_seconds: float


@dataclass(frozen=True)
class Record:
    """A run, or a model it is measured against."""

    id: str
    kind: Literal["run", "fine-tuned", "retain"]
    """`fine-tuned`: where runs start; `retain`: the model that never saw the forget set."""
    model: str
    forget_fraction: float
    method: str
    """Method label; the kind for anchors."""
    learning_rate: float | None
    seed: int
    spec: Mapping[str, Any]
    """The resolved RunSpec, or what an anchor was evaluated with."""
    status: Literal["finished", "collapsed", "failed", "stopped"]
    """collapsed: finite no more, or too little utility left; stopped: given up by a search."""
    profile: str
    precision: str | None = "float32"
    """In which its models were evaluated, see `evaluation/precision.py`; None where a log of a
    retain model does not say it."""
    epochs: tuple[EpochResult, ...] = ()
    steps: tuple[StepResult, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Commit, versions, device, host, times, hashes of data and start weights."""
    error: str | None = None
    """What a failed run died of; the first line says it, a traceback may follow."""
    ended: str | None = None
    """Why a finished run has fewer epochs than planned: its patience (`evaluation.patience`)."""
    evaluations: Mapping[int, Evaluation] = field(default_factory=dict, repr=False, compare=False)
    """By epoch; read from disk when used."""

    @property
    def seconds(self) -> float:
        """Of training and evaluation, over all epochs."""
        return sum(e.training_seconds + e.evaluation_seconds for e in self.epochs)

    @property
    def place(self) -> str:
        """Name of its folder."""
        return self.id + PROVISIONAL.get(self.status, "")


@dataclass(frozen=True)
class StoredEvaluations(Mapping[int, Evaluation]):
    """A record's evaluations on disk; each is read, and checked by its hash, when asked for."""

    folder: Path
    digests: Mapping[int, str]
    """SHA-256 of each file, by epoch."""
    precision: str | None = None
    """The record's, for logs of versions that did not write it."""

    def __getitem__(self, epoch: int) -> Evaluation:
        from unlearnbench.evaluation.log import read_log

        found = read_log(self.path(epoch))
        return found if found.precision else replace(found, precision=self.precision)

    def path(self, epoch: int) -> Path:
        """The file, whole. Raises: DamagedError."""
        path = self.folder / _evaluation_name(epoch)
        if file_hash(path) != self.digests[epoch]:
            raise _damaged(path, "its content is not what was written")
        return path

    def __iter__(self) -> Iterator[int]:
        return iter(self.digests)

    def __contains__(self, epoch: object) -> bool:
        return epoch in self.digests  # the inherited one would read the file

    def __len__(self) -> int:
        return len(self.digests)


def run_record(run: RunSpec, **found: Any) -> Record:
    """The record of a run: what its spec says, and the other fields as given; no secrets."""
    spec = run.to_json()
    evaluations = found.get("evaluations") or {}
    known = next((one.precision for one in evaluations.values()), None)
    own: dict[str, Any] = {"precision": known or precision_of_spec(spec), **found}
    own["error"] = redacted(own.get("error"))
    return Record(
        id=run.id,
        kind="run",
        model=run.model.name,
        forget_fraction=run.forget_fraction,
        method=run.method.label,
        learning_rate=run.learning_rate,
        seed=run.seed,
        spec=spec,
        **own,
    )


def write_record(record: Record, folder: Path) -> Path:
    """Store `record` under a sweep's `folder`; return where it is.

    A finished record that is there already stays; a provisional one gives way to any other.
    Raises: RecordError where the disk is full or cannot be written; nothing is left behind then.
    """
    place = folder / "records" / record.place
    part = place.with_name(f"{PART}{platform.node()}-{os.getpid()}-{uuid4().hex[:8]}")
    try:
        if place.name == record.id and place.is_dir():
            return place
        shutil.rmtree(place, ignore_errors=True)
        part.mkdir(parents=True)
        _write_files(record, part)
        rename_new(part, place)
        for other in {record.id + end for end in PROVISIONAL.values()} - {place.name}:
            shutil.rmtree(place.with_name(other), ignore_errors=True)
    except OSError as error:
        raise _unwritable(place, error) from error
    except EvaluationError as error:
        if isinstance(error.__cause__, OSError):
            raise _unwritable(place, error.__cause__) from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def _write_files(record: Record, part: Path) -> None:
    from unlearnbench.evaluation.log import write_log

    digests: dict[str, str] = {}
    for epoch, evaluation in sorted(record.evaluations.items()):
        path = part / _evaluation_name(epoch)
        write_log(evaluation, path)
        digests[str(epoch)] = file_hash(path)
        flush(path)
    document = plain({"schema": SCHEMA, **redacted(_fields(record)), "evaluations": digests})
    sealed = document | {"sha256": document_hash(document)}
    text = json.dumps(sealed, indent=1, ensure_ascii=False, allow_nan=False)
    (part / "record.json").write_text(text + "\n", encoding="utf-8")
    flush(part / "record.json")
    flush(part)


def _fields(record: Record) -> dict[str, Any]:
    # Not `asdict`: it deep-copies every value, which takes longer than the writing.
    own = {f.name: getattr(record, f.name) for f in fields(record) if f.name != "evaluations"}
    epochs, steps = ([vars(one) for one in many] for many in (record.epochs, record.steps))
    return own | {"epochs": epochs, "steps": steps}


def read_record(path: str | Path) -> Record:
    """The record in folder `path`, its evaluations unread.

    Raises: RecordError that names the file, where it is damaged, incomplete or of another schema.
    """
    file = (path := Path(path)) / "record.json"
    try:
        document = parse_json(content := read_bytes(file), revive)
        if not isinstance(document, dict):
            raise ValueError("not an object")
    except FileNotFoundError:
        raise _damaged(file, "it is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, f"it is no whole JSON object ({error})") from None
    if document.get("schema") != SCHEMA:
        raise RecordError(
            f"{file}: schema {shortened(document.get('schema'))}, but this version reads {SCHEMA}; "
            "use the version that wrote it, or give the sweep another name"
        )
    try:
        record = _record(path, document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None
    if record.id != path.name.partition(".")[0]:
        raise _damaged(file, f"it is the record of {record.id!r}")
    for epoch in record.evaluations:
        if not (path / _evaluation_name(epoch)).is_file():
            raise _damaged(path / _evaluation_name(epoch), "it is missing")
    # Records of earlier versions have no hash.
    if "sha256" in document and document["sha256"] != document_hash(parse_json(content)):
        raise _damaged(file, "its content is not what was written")
    return record


def _record(path: Path, document: dict[str, Any]) -> Record:
    # Before there was a choice, models were evaluated in the precision of their settings.
    early = {"precision": precision_of_spec(document["spec"]) or "float32", "ended": None}
    document = early | document
    check_record(document)
    values = {f.name: document[f.name] for f in fields(Record)}
    # Those of earlier versions may hold secrets, which pages and MLflow would show.
    values |= {name: redacted(values[name]) for name in ("spec", "provenance", "error")}
    values["epochs"] = tuple(EpochResult(**e) for e in document["epochs"])
    values["steps"] = tuple(StepResult(**s) for s in document["steps"])
    digests = {int(epoch): str(digest) for epoch, digest in document["evaluations"].items()}
    own = values["precision"]
    values["evaluations"] = StoredEvaluations(path, dict(sorted(digests.items())), own)
    return Record(**values)


def read_evaluation(folder: str | Path, record_id: str, epoch: int) -> Evaluation:
    """One evaluation of a record."""
    found = read_record(Path(folder) / "records" / record_id).evaluations
    if epoch in found:
        return found[epoch]
    raise RecordError(f"record {record_id}: epoch {epoch} was not evaluated, only {[*found]}")


def read_records(
    folder: str | Path, read: Callable[[Path], Record | None] = read_record
) -> tuple[Record, ...]:
    """All records of a sweep's folder (or of its `records/`), always in the same order.

    A provisional record is among them as long as its run has no other; one that `read` has no
    answer for is left out.
    """
    places = _places(Path(folder))
    names = {place.name for place in places}
    found = [read(p) for p in places if p.name.partition(".")[0] not in names - {p.name}]
    return tuple(sorted((record for record in found if record is not None), key=_order))


def _places(folder: Path) -> list[Path]:
    inner = folder / "records"
    place = folder if folder.name == "records" and not inner.is_dir() else inner
    return sorted(p for p in place.glob("[!.]*") if p.is_dir() and p.suffix != DAMAGED)


def _order(record: Record) -> tuple[Any, ...]:
    kind = ("fine-tuned", "retain", "run").index(record.kind)
    rate = -math.inf if record.learning_rate is None else record.learning_rate
    return record.model, record.forget_fraction, kind, record.method, rate, record.seed, record.id


def _evaluation_name(epoch: int) -> str:
    return f"epoch-{epoch}.json.gz"


def _unwritable(place: Path, error: OSError) -> RecordError:
    return RecordError(
        f"{place}: the record cannot be written: {error.strerror or error}; mend that and start "
        "the same command again: only this run is repeated"
    )


def _damaged(file: Path, what: str) -> DamagedError:
    return DamagedError(
        f"{file}: damaged: {what}; delete the folder {file.parent} and start the sweep again: "
        "only this run is repeated"
    )
