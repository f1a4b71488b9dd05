"""One immutable record per run. Reports, plots and MLflow are views of it.

On disk a record is a folder that is written whole or not at all:

    records/<id>/record.json            spec, provenance, metrics, loss terms, its own SHA-256
    records/<id>/epoch-<k>.safetensors  the evaluation: all observations of every set
    records/<id>/epoch-<k>.<variant>.safetensors  one under an attack
    records/<id>.failed/record.json     a run that failed, until it succeeds
    records/<id>.stopped/…              a run that a search stopped, until it is run to its end
    records/<id>.damaged/               a record that a sweep has set aside, and made again

The first record of an id stays: equal ids are equal runs. A failed run is tried again by the next
command. JSON has no infinity: a float that is not finite is stored as `{"$float": "nan"}`.
"""

import json
import math
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError

from unlearnbench.api.benchmark import SplitKey, split_order
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.atomic import atomic_folder, fsync
from unlearnbench.base.errors import DamagedError, OutputError, RecordError, shortened
from unlearnbench.base.hashing import decode_floats, document_hash, file_hash, sealed_json
from unlearnbench.base.provenance import provenance
from unlearnbench.base.redaction import redact_tree
from unlearnbench.config.plan import PLAN_FILE, RunSpec
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.training.step_result import StepResult

SCHEMA = 1
PROVISIONAL = {"failed": ".failed", "stopped": ".stopped"}
"""Ends the name of a record, by its status, that gives way to any other of the same id."""
_RESULTS = ("epochs", "attacked")
DAMAGED = ".damaged"
"""Ends the name of a record that was set aside."""
_Key = TypeVar("_Key", int, tuple[int, str])
_UNREAD: Any = PlainValidator(lambda value: value)
"""Marks fields that are no part of `record.json`, or stand there in another form."""


@dataclass(frozen=True)
class EpochResult:
    """The model after an epoch; epoch 0 is the start."""

    epoch: int
    """Of a run by steps, the number of optimiser steps."""
    metrics: Mapping[str, float | None]
    """Named as in `results.csv`; None where undefined."""
    training_seconds: float
    """Since the last evaluation."""
    evaluation_seconds: float
    """With the attack's own work, of a variant."""
    variant: str = ""
    """Attack and point (`relearning@13`) of an evaluation under an attack."""

    def to_json(self) -> dict[str, Any]:
        """Every field; no variant where there is no attack."""
        return {key: value for key, value in vars(self).items() if key != "variant" or value}


@dataclass(frozen=True)
class Record:
    """A run, or a model it is measured against; holds no secrets, wherever it comes from."""

    id: str
    kind: Literal["run", "fine-tuned", "retain"]
    """`fine-tuned`: where runs start; `retain`: the model that never saw the forget set."""
    model: str
    forget_fraction: SplitKey
    """The fraction of the rows to forget, or the name of the split."""
    method: str
    """Method label; the kind for start and retain models."""
    learning_rate: float | None
    seed: Annotated[int, Field(ge=0)]
    spec: Mapping[str, Any]
    """The resolved RunSpec, or the settings of a start or retain model's evaluation."""
    status: Literal["finished", "collapsed", "failed", "stopped"]
    """collapsed: finite no more, or too little utility left; stopped: given up by a search."""
    profile: str
    precision: str | None = "float32"
    """In which its models were evaluated, see `evaluation/precision.py`; None where a log of a
    retain model does not say it."""
    epochs: tuple[EpochResult, ...] = ()
    attacked: tuple[EpochResult, ...] = ()
    """Results under attacks. Those of a start or retain model are a record of their own for each
    attack, which has no other epochs."""
    steps: tuple[StepResult, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Commit, versions, device, host, times, hashes of data and start weights."""
    error: str | None = None
    """Reason of a failed or collapsed run in the first line; a traceback may follow."""
    ended: str | None = None
    """Why a finished run has fewer epochs than planned: its patience (`evaluation.patience`)."""
    evaluations: Annotated[Mapping[int, Evaluation], _UNREAD] = field(
        default_factory=dict, repr=False, compare=False
    )
    """By epoch; read from disk when used."""
    attacked_evaluations: Annotated[Mapping[tuple[int, str], Evaluation], _UNREAD] = field(
        default_factory=dict, repr=False, compare=False
    )
    """By epoch and variant; read from disk when used."""
    benchmark: Annotated[BenchmarkSchema | None, _UNREAD] = field(
        default=None, repr=False, compare=False
    )
    """From the plan of its sweep."""

    def __post_init__(self) -> None:
        for name in ("model", "spec", "provenance", "error"):
            object.__setattr__(self, name, redact_tree(getattr(self, name)))

    @property
    def seconds(self) -> float:
        """Seconds of training, evaluation and attacks, over all epochs."""
        results = (*self.epochs, *self.attacked)
        return sum(e.training_seconds + e.evaluation_seconds for e in results)

    @property
    def unit(self) -> Unit:
        """What its epochs are: epochs, or steps in a sweep by steps."""
        if self.benchmark is not None and self.benchmark.unit is Unit.STEP:
            return Unit.STEP
        return Unit.of_spec(self.spec)

    @property
    def panel(self) -> tuple[str, SplitKey]:
        """Model and split."""
        return self.model, self.forget_fraction

    @property
    def place(self) -> str:
        """Name of its folder."""
        return self.id + PROVISIONAL.get(self.status, "")


class StoredFile(NamedTuple):
    """The evaluation of an epoch on disk."""

    path: Path
    digest: str
    """SHA-256 of its content."""

    def check(self) -> None:
        """Raise DamagedError unless the file is as it was written."""
        if file_hash(self.path) != self.digest:
            raise _damaged(self.path, "its content is not what was written")

    def read(self) -> Evaluation:
        """Read the evaluation. Raises: DamagedError."""
        self.check()
        return read_observations(self.path)


@dataclass(frozen=True)
class StoredEvaluations(Mapping[_Key, Evaluation]):
    """Evaluations of a record on disk; each is read, and checked by its hash, when used.

    Keys are epochs, or (epoch, variant) under attacks.
    """

    folder: Path
    files: Mapping[_Key, StoredFile]

    def __getitem__(self, key: _Key) -> Evaluation:
        return self.files[key].read()

    def __iter__(self) -> Iterator[_Key]:
        return iter(self.files)

    def __contains__(self, key: object) -> bool:
        return key in self.files  # the inherited one would read the file

    def __len__(self) -> int:
        return len(self.files)


def run_record(run: RunSpec, **fields: Any) -> Record:
    """Make the record of a run from its spec and the other fields."""
    spec, made = run.to_json(), provenance(data=run.data_fingerprint)
    if fields["status"] in PROVISIONAL:  # its process was a worker's, which is unknown here
        made |= dict.fromkeys(("host", "process", "device", "gpu"))
    fields = {"profile": profile_of(run.evaluation).id, "provenance": made, **fields}
    if evaluations := [*fields.get("evaluations", {}).values()]:
        precision = evaluations[0].precision
    else:
        # The device of a run that came to no evaluation was its worker's, and is unknown here.
        devices = ("cpu", "cuda") if fields["status"] in PROVISIONAL else ("cpu",)
        possible = {precision_of_spec(spec, device) for device in devices}
        precision = possible.pop() if len(possible) == 1 else None
    return Record(
        id=run.id,
        kind="run",
        model=run.model.name,
        forget_fraction=run.forget_fraction,
        method=run.method.label,
        learning_rate=run.learning_rate,
        seed=run.seed,
        spec=spec,
        precision=precision,
        **fields,
    )


def write_record(record: Record, folder: Path) -> Path:
    """Store `record` under a sweep's `folder`; return where it is.

    A finished record that is there already stays; a provisional one gives way to any other.
    Raises: RecordError where the disk is full or cannot be written; nothing is left behind then.
    """
    target = folder / "records" / record.place
    try:
        if target.name == record.id and target.is_dir():
            return target
        shutil.rmtree(target, ignore_errors=True)
        with atomic_folder(target) as part:
            digests: dict[str, dict[str, str]] = {"evaluations": {}, "attacked_evaluations": {}}
            for (epoch, variant), evaluation in sorted(
                (
                    *(((epoch, ""), seen) for epoch, seen in record.evaluations.items()),
                    *record.attacked_evaluations.items(),
                ),
                key=lambda pair: pair[0],
            ):
                path = part / evaluation_name(epoch, variant)
                write_observations(evaluation, path)
                fsync(path)
                kind = "attacked_evaluations" if variant else "evaluations"
                digests[kind][f"{epoch} {variant}".strip()] = file_hash(path)
            document = record_document(record) | digests
            if not record.attacked:
                del document["attacked"], document["attacked_evaluations"]
            (part / "record.json").write_text(sealed_json(document), encoding="utf-8")
            fsync(part / "record.json")
        for other in {record.id + end for end in PROVISIONAL.values()} - {target.name}:
            shutil.rmtree(target.with_name(other), ignore_errors=True)
    except (OSError, OutputError) as error:
        cause = error.__cause__ or error
        raise RecordError(
            f"{target}: the record cannot be written: {getattr(cause, 'strerror', None) or cause}; "
            "fix that and start the same command again: only this run is repeated"
        ) from error
    return target


def record_document(record: Record) -> dict[str, Any]:
    """The values of `record.json`, with the evaluations themselves in place of their hashes."""
    # Not `asdict`: it deep-copies every value, which takes longer than the writing.
    results = {key: [item.to_json() for item in getattr(record, key)] for key in _RESULTS}
    rest = {key: value for key, value in vars(record).items() if key != "benchmark"}
    return {"schema": SCHEMA} | rest | results | {"steps": [*map(vars, record.steps)]}


def read_record(path: str | Path) -> Record:
    """Read the record in folder `path`, without its evaluations.

    Raises: RecordError that names the file, where it is damaged, incomplete or of another schema.
    """
    file = (path := Path(path)) / "record.json"
    try:
        document = json.loads(content := file.read_bytes(), object_hook=decode_floats)
        if (schema := document.get("schema")) != SCHEMA:
            raise RecordError(
                f"{file}: schema {shortened(schema)}, but this version reads {SCHEMA}; "
                "use the version that wrote it, or give the sweep another name"
            )
        record = parse_record(path, document)
        whole = document["sha256"] == document_hash(json.loads(content))
    except FileNotFoundError:
        raise _damaged(file, "it is missing") from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None
    if record.id != path.name.partition(".")[0]:
        raise _damaged(file, f"it is the record of {record.id!r}")
    for kind in ("evaluations", "attacked_evaluations"):
        for stored in getattr(record, kind).files.values():
            if not stored.path.is_file():
                raise _damaged(stored.path, "it is missing")
    if not whole:
        raise _damaged(file, "its content is not what was written")
    return record


def parse_record(path: Path, document: dict[str, Any]) -> Record:
    """The record with the content of a `record.json`, in folder `path`.

    Raises: ValueError that names the key, KeyError.
    """
    plain: dict[int, StoredFile] = {}
    for key, digest in document["evaluations"].items():
        plain[int(key)] = StoredFile(path / evaluation_name(int(key)), digest)
    under: dict[tuple[int, str], StoredFile] = {}
    for key, digest in document.get("attacked_evaluations", {}).items():
        epoch, _, variant = key.partition(" ")
        under[int(epoch), variant] = StoredFile(path / evaluation_name(int(epoch), variant), digest)
    files = {
        "evaluations": StoredEvaluations(path, dict(sorted(plain.items()))),
        "attacked_evaluations": StoredEvaluations(path, under),
    }
    try:
        return _reader().validate_python(document | files)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _reader() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def evaluated_epoch(record: Record, epoch: int | None = None) -> int:
    """The epoch (or step), or the record's last. Raises: RecordError if it has no evaluation."""
    epochs = sorted(record.evaluations)
    if not epochs:
        reason = (record.error or "").strip().partition("\n")[0] or "no reason is recorded"
        raise RecordError(
            f"record {record.id}: no {record.unit} was evaluated, and the run {record.status} "
            f"({reason}); name a run that was evaluated"
        )
    chosen = epochs[-1] if epoch is None else epoch
    if chosen not in epochs:
        raise RecordError(
            f"record {record.id}: {record.unit.at(chosen)} has no evaluation, only {epochs}; "
            "name one of them"
        )
    return chosen


def read_records(folder: str | Path) -> tuple[Record, ...]:
    """All records of a sweep's folder (or of its `records/`), always in the same order.

    A provisional record is among them as long as its run has no other.
    """
    places = _places(Path(folder))
    names = {location.name for location in places}
    result = [read_record(p) for p in places if p.name.partition(".")[0] not in names - {p.name}]
    benchmark = BenchmarkSchema.read(places[0].parent.parent / PLAN_FILE) if places else None
    whole = (replace(record, benchmark=benchmark) for record in result)
    return tuple(sorted(whole, key=_order))


def planned_records(
    records: Iterable[Record], runs: Collection[str], references: Collection[str] | None
) -> tuple[Record, ...]:
    """The records of a plan's runs and of the start and retain models that it refers to.

    references  ids of the latter; None in plans of 0.2, and without the hub: all of them count
    """
    known = {*runs, *(references or ())}
    return tuple(r for r in records if r.id in known or (references is None and r.kind != "run"))


def _places(folder: Path) -> list[Path]:
    inner = folder / "records"
    path = folder if folder.name == "records" and not inner.is_dir() else inner
    return sorted(p for p in path.glob("[!.]*") if p.is_dir() and p.suffix != DAMAGED)


def _order(record: Record) -> tuple[Any, ...]:
    kind = ("fine-tuned", "retain", "run").index(record.kind)
    rate = -math.inf if record.learning_rate is None else record.learning_rate
    split = split_order(record.forget_fraction)
    return record.model, split, kind, record.method, rate, record.seed, record.id


def evaluation_name(epoch: int, variant: str = "") -> str:
    """Name of the file with the evaluation after `epoch`, in a record and while its run goes on."""
    return f"epoch-{epoch}.{variant}.safetensors" if variant else f"epoch-{epoch}.safetensors"


def _damaged(file: Path, subject: str) -> DamagedError:
    return DamagedError(
        f"{file}: damaged: {subject}; delete the folder {file.parent} and start the sweep again: "
        "only this run is repeated"
    )
