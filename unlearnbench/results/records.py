"""One immutable record per run. Reports, plots and MLflow are views of it.

On disk a record is a folder that is written whole or not at all:

    records/<id>/record.json            spec, provenance, metrics, loss terms, its own SHA-256
    records/<id>/epoch-<k>.safetensors  the evaluation: all observations of every set
    records/<id>/epoch-<k>.<variant>.safetensors  one under an attack
    records/<id>.failed/record.json     a run that failed, until it succeeds
    records/<id>.stopped/…              a run that a search stopped, until it is run to its end
    records/<id>.damaged/               a record that a sweep has set aside, and made again

The first record of an id stays, because equal ids mean equal runs. The next command tries a failed
run again. JSON has no infinity, so a float that is not finite is stored as `{"$float": "nan"}`.
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
from unlearnbench.config.plan_file import PLAN_FILE
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.training.step_result import StepResult

SCHEMA = 1
PROVISIONAL = {"failed": ".failed", "stopped": ".stopped"}
"""Suffix of a record's folder by status. Such a record is replaced by any other of its id."""
DAMAGED = ".damaged"
"""Suffix of the folder of a record that was set aside."""
_Key = TypeVar("_Key", int, tuple[int, str])
_UNREAD: Any = PlainValidator(lambda value: value)
"""Marks fields that are not in `record.json`, or have another form there: they are not checked."""


@dataclass(frozen=True)
class EpochResult:
    """What was measured of a model after an epoch. Epoch 0 is the start model."""

    epoch: int
    """Number of the epoch. In a run by steps, the number of optimiser steps."""
    metrics: Mapping[str, float | None]
    """Numbers by column of `results.csv`. None for a number that is undefined."""
    training_seconds: float
    """Seconds of training since the last evaluation."""
    evaluation_seconds: float
    """Seconds of the evaluation. Under an attack, those of the attack are included."""
    variant: str = ""
    """Attack and point (`relearning@13`) of an evaluation under an attack."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields, but no empty `variant`."""
        fields = dict(vars(self))
        if not self.variant:
            del fields["variant"]
        return fields


@dataclass(frozen=True)
class Record:
    """A run, or a start or retain model that runs are compared with.

    A new record needs `redacted`, so that it holds no secrets.
    """

    id: str
    kind: Literal["run", "fine-tuned", "retain"]
    """`fine-tuned` for a start model, `retain` for a model trained without the forget rows."""
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
    """`collapsed` if numbers were no longer finite or too little utility was left, `stopped` if a
    search gave the run up."""
    profile: str
    precision: str | None = "float32"
    """Precision of its evaluations, see `evaluation/precision.py`. None if it is unknown, for
    example because the log of a retain model does not say it."""
    epochs: tuple[EpochResult, ...] = ()
    attacked: tuple[EpochResult, ...] = ()
    """Results under attacks. Start and retain models have a separate record for each attack, which
    contains no plain results."""
    steps: tuple[StepResult, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Commit, versions, device, host, times, and hashes of data and start weights."""
    error: str | None = None
    """Why a run failed or collapsed, in the first line. A traceback may follow."""
    ended: str | None = None
    """Why a finished run has fewer epochs than planned: its patience (`evaluation.patience`)."""
    evaluations: Annotated[Mapping[int, Evaluation], _UNREAD] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Evaluations by epoch. Those on disk are read when they are used."""
    attacked_evaluations: Annotated[Mapping[tuple[int, str], Evaluation], _UNREAD] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Evaluations under attacks by epoch and variant. Those on disk are read when they are used."""
    benchmark: Annotated[BenchmarkSchema | None, _UNREAD] = field(
        default=None, repr=False, compare=False
    )
    """Schema in the plan of its sweep. None if no plan was read."""

    def redacted(self) -> "Record":
        """Return the record without passwords and tokens in the texts that come from outside.

        Whoever makes a record calls this first. Records that are read or written pass through it,
        too, because an older version or another tool may have written the file.
        """
        return replace(
            self,
            model=redact_tree(self.model),
            spec=redact_tree(self.spec),
            provenance=redact_tree(self.provenance),
            error=redact_tree(self.error),
        )

    @property
    def seconds(self) -> float:
        """Seconds of training, evaluation and attacks, over all epochs."""
        results = (*self.epochs, *self.attacked)
        return sum(result.training_seconds + result.evaluation_seconds for result in results)

    @property
    def unit(self) -> Unit:
        """What `EpochResult.epoch` counts: epochs, or steps in a sweep by steps."""
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
        """Check that the file is as it was written.

        Raises:
            DamagedError: If it is not.
        """
        if file_hash(self.path) != self.digest:
            raise _damaged(self.path, "its content is not what was written")

    def read(self) -> Evaluation:
        """Read the evaluation.

        Raises:
            DamagedError: If the file is not as it was written.
        """
        self.check()
        return read_observations(self.path)


@dataclass(frozen=True)
class StoredEvaluations(Mapping[_Key, Evaluation]):
    """Evaluations of a record on disk, by epoch, or by epoch and variant under attacks.

    An evaluation is read, and checked by its hash, when it is used.
    """

    folder: Path
    files: Mapping[_Key, StoredFile]

    def __getitem__(self, key: _Key) -> Evaluation:
        return self.files[key].read()

    def __iter__(self) -> Iterator[_Key]:
        return iter(self.files)

    def __contains__(self, key: object) -> bool:
        # The inherited method would read the file.
        return key in self.files

    def __len__(self) -> int:
        return len(self.files)


def run_record(run: RunSpec, **fields: Any) -> Record:
    """Make the record of a run, without secrets.

    Args:
        run: Its spec.
        fields: Other fields of the record. `status` is required. The profile and the provenance
            default to those of this process.
    """
    spec = run.to_json()
    # A worker trained a failed or stopped run, and nothing is known here of its process or device.
    is_of_unknown_worker = fields["status"] in PROVISIONAL
    origin = provenance(data=run.data_fingerprint)
    if is_of_unknown_worker:
        origin |= dict.fromkeys(("host", "process", "device", "gpu"))
    fields = {"profile": profile_of(run.evaluation).id, "provenance": origin, **fields}

    evaluations = list(fields.get("evaluations", {}).values())
    if evaluations:
        precision = evaluations[0].precision
    else:
        devices = ("cpu", "cuda") if is_of_unknown_worker else ("cpu",)
        possible = {precision_of_spec(spec, device) for device in devices}
        precision = possible.pop() if len(possible) == 1 else None
    record = Record(
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
    return record.redacted()


def write_record(record: Record, folder: Path) -> Path:
    """Store a record in a sweep's folder.

    A finished record that is already there stays. A failed or stopped one is replaced.

    Returns:
        The record's own folder.

    Raises:
        RecordError: If the folder cannot be written, or the disk is full. Nothing is left behind.
    """
    target = folder / "records" / record.place
    try:
        if target.name == record.id and target.is_dir():
            return target
        shutil.rmtree(target, ignore_errors=True)
        with atomic_folder(target) as part:
            document = record_document(record)
            document["evaluations"] = {}
            document["attacked_evaluations"] = {}
            for epoch, variant in _evaluated_variants(record):
                path = part / evaluation_name(epoch, variant)
                if variant:
                    evaluation = record.attacked_evaluations[epoch, variant]
                    digests = document["attacked_evaluations"]
                else:
                    evaluation = record.evaluations[epoch]
                    digests = document["evaluations"]
                write_observations(evaluation, path)
                fsync(path)
                # Keys look like "3", or "3 relearning@13" under an attack.
                digests[f"{epoch} {variant}".strip()] = file_hash(path)
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


def _evaluated_variants(record: Record) -> list[tuple[int, str]]:
    """Return epoch and variant of every evaluation, sorted. Plain ones have an empty variant."""
    plain = [(epoch, "") for epoch in record.evaluations]
    return sorted([*plain, *record.attacked_evaluations])


def record_document(record: Record) -> dict[str, Any]:
    """Return the values of `record.json`, with evaluations in place of their hashes."""
    # `asdict` would copy every value deeply, which takes longer than writing the file.
    document = {"schema": SCHEMA, **vars(record.redacted())}
    # The benchmark is stored once for all records, in the plan of the sweep.
    del document["benchmark"]
    document["epochs"] = [result.to_json() for result in record.epochs]
    document["attacked"] = [result.to_json() for result in record.attacked]
    document["steps"] = [vars(step) for step in record.steps]
    return document


def read_record(path: str | Path) -> Record:
    """Read the record in a folder. Its evaluations are read when they are used.

    Raises:
        RecordError: If `record.json` is damaged, incomplete or of another schema.
    """
    path = Path(path)
    file = path / "record.json"
    try:
        content = file.read_bytes()
        document = json.loads(content, object_hook=decode_floats)
        schema = document.get("schema")
        if schema != SCHEMA:
            raise RecordError(
                f"{file}: schema {shortened(schema)}, but this version reads {SCHEMA}; "
                "use the version that wrote it, or give the sweep another name"
            )
        record = parse_record(path, document)
        is_whole = document["sha256"] == document_hash(json.loads(content))
    except FileNotFoundError:
        raise _damaged(file, "it is missing") from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from None
    if record.id != path.name.partition(".")[0]:
        raise _damaged(file, f"it is the record of {record.id!r}")
    for epoch, variant in _evaluated_variants(record):
        evaluation_file = path / evaluation_name(epoch, variant)
        if not evaluation_file.is_file():
            raise _damaged(evaluation_file, "it is missing")
    if not is_whole:
        raise _damaged(file, "its content is not what was written")
    return record


def parse_record(path: Path, document: dict[str, Any]) -> Record:
    """Return the record that a `record.json` describes, without secrets.

    Args:
        path: Folder of the record, which has its evaluations.
        document: Content of the file.

    Raises:
        ValueError: If a value is invalid. The message names its key.
        KeyError: If a key is missing.
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
        return _reader().validate_python(document | files).redacted()
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _reader() -> TypeAdapter[Record]:
    return TypeAdapter(Record)


def evaluated_epoch(record: Record, epoch: int | None = None) -> int:
    """Return the evaluated epoch (or step) that a user asked for.

    Args:
        record: Of any run.
        epoch: None for the last epoch that was evaluated.

    Raises:
        RecordError: If the record has no evaluation of this epoch.
    """
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
    """Read all records of a sweep's folder (or of its `records/`), always in the same order.

    The record of a failed or stopped run counts as long as its run has no other record.
    """
    places = _places(Path(folder))
    if not places:
        return ()
    benchmark = BenchmarkSchema.read(places[0].parent.parent / PLAN_FILE)
    names = {place.name for place in places}
    records: list[Record] = []
    for place in places:
        run_id, _, status = place.name.partition(".")
        if status and run_id in names:
            continue
        records.append(replace(read_record(place), benchmark=benchmark))
    return tuple(sorted(records, key=_order))


def planned_records(
    records: Iterable[Record], runs: Collection[str], references: Collection[str] | None
) -> tuple[Record, ...]:
    """Return the records of a plan's runs, and of the start and retain models that it refers to.

    Args:
        records: Of a sweep's folder.
        runs: Ids of the plan's runs.
        references: Ids of the plan's start and retain models. If None, as in plans of version 0.2
            and without the hub, all of them count.
    """
    planned = {*runs, *(references or ())}
    has_all_references = references is None
    return tuple(
        record
        for record in records
        if record.id in planned or (has_all_references and record.kind != "run")
    )


def _places(folder: Path) -> list[Path]:
    """Return the folders of all records that are not set aside as damaged, sorted.

    Args:
        folder: Folder of a sweep, or its folder `records`.
    """
    inner = folder / "records"
    records = folder if folder.name == "records" and not inner.is_dir() else inner
    return sorted(
        place for place in records.glob("[!.]*") if place.is_dir() and place.suffix != DAMAGED
    )


def _order(record: Record) -> tuple[Any, ...]:
    """Return the sort key of a record: by model, split, kind, method, rate and seed."""
    kind = ("fine-tuned", "retain", "run").index(record.kind)
    rate = -math.inf if record.learning_rate is None else record.learning_rate
    split = split_order(record.forget_fraction)
    return record.model, split, kind, record.method, rate, record.seed, record.id


def evaluation_name(epoch: int, variant: str = "") -> str:
    """Return the name of an evaluation's file, in a record and while its run goes on.

    For example `epoch-3.safetensors`, or `epoch-3.relearning@13.safetensors` under an attack.
    """
    return f"epoch-{epoch}.{variant}.safetensors" if variant else f"epoch-{epoch}.safetensors"


def _damaged(file: Path, subject: str) -> DamagedError:
    """Return the error about a file of a record; `subject` says what is wrong with it."""
    return DamagedError(
        f"{file}: damaged: {subject}; delete the folder {file.parent} and start the sweep again: "
        "only this run is repeated"
    )
