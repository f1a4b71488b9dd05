"""Verification of a line: every hash and every metric is computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unlearnbench.api.benchmark import SPLIT_NAME
from unlearnbench.api.observations import FloatArray, SetName
from unlearnbench.config.choices import Precision
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.profiles import get_profile, profile_of_id
from unlearnbench.config.schema import MOST_EPOCHS
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.columns import column
from unlearnbench.files.bounded import LINE_BYTES, QUESTIONS, parse_json, shortened, text_problem
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.files.outputs import one_line
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.reporting.leaderboard.entry import (
    RATIO,
    Arrays,
    BoardEntry,
    BoardRules,
    canonical,
    leaves,
    rules_of,
    unpack,
    with_hash,
)

CLOSE = 1e-9
"""Relative difference that rounding on another machine explains."""
ROUNDED = 1e-4
"""By which a value may be beyond the bounds of its metric."""
PART_CHARACTERS = 1 << 16
"""Longest identity or provenance; current ones have 2000."""


def _is_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Of an epoch: at most thirty years."""
Time = Annotated[str, AfterValidator(_is_time)]
Flat = dict[str, str | bool | float | None]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _Epoch(_Part):
    epoch: int = Field(ge=0, le=MOST_EPOCHS)
    metrics: dict[str, float | None]
    training_seconds: Seconds
    evaluation_seconds: Seconds
    log: str | None
    evidence: dict[SetName, dict[str, str]]


class _Provenance(_Part):
    git: Flat | None = None
    versions: Flat | None = None
    device: str | None = None
    started: Time | None = None
    finished: Time | None = None


class _Line(_Part):
    """Keys, types and bounds of every line."""

    version: int = Field(alias="schema")
    id: str
    identity: dict[str, Any] | list[Any]
    kind: Literal["run", "fine-tuned", "retain"]
    status: Literal["finished", "collapsed", "stopped"]
    model: str
    forget_fraction: (
        Annotated[float, Field(gt=0, lt=1)] | Annotated[str, Field(pattern=f"^{SPLIT_NAME}$")]
    )
    method: str
    learning_rate: Annotated[float, Field(gt=0)] | None
    seed: int = Field(ge=0)
    profile: str
    data: str
    weights: str | None
    epochs: list[_Epoch]
    provenance: _Provenance
    sha256: str


class _Line1(_Line):
    precision: str | None = None
    """Early lines have none."""
    retain: str


class _Line2(_Line):
    benchmark: str
    versions: dict[str, Annotated[int, Field(ge=2)]]
    precision: str | None
    retain: str | None


_LINES: Mapping[int, type[_Line]] = {1: _Line1, 2: _Line2}


class RefusedError(UnlearnbenchError):
    """A line that cannot be true; the text is the reason."""


def verify_line(text: str) -> BoardEntry:
    """Parse a line and verify all of it. Raises: RefusedError."""
    entry = _parsed(text)
    schema = entry.get("schema")
    if type(schema) is not int or schema not in _LINES:
        raise RefusedError(
            f"schema {shortened(schema)}, and this version reads {' and '.join(map(str, _LINES))}: "
            "merge it with the version that wrote it"
        )
    try:
        _LINES[schema].model_validate(entry)
    except ValidationError as error:
        raise RefusedError(_first_problem(error)) from None
    if with_hash(entry)["sha256"] != entry["sha256"]:
        raise RefusedError("its sha256 is not that of the line: it was changed, or damaged")
    _check_texts(entry)
    if content_hash(entry["identity"]) != entry["id"]:
        raise RefusedError(
            f"its id {entry['id']} is not the hash of its identity "
            f"({content_hash(entry['identity'])})"
        )
    rules = _rules(entry)
    _check_identity(entry)
    for epoch in entry["epochs"]:
        _check_metrics(epoch, entry, rules)
    return entry


def _rules(entry: BoardEntry) -> BoardRules:
    try:
        profile_of_id(entry["profile"])
    except UnlearnbenchError as error:
        raise RefusedError(str(error).partition(";")[0]) from None
    try:
        rules = rules_of(entry)
        here = rules.versions
        _ = rules.plan
    except UnlearnbenchError as error:
        raise RefusedError(one_line(str(error))) from None
    there: dict[str, int] = entry.get("versions", here)
    for name in sorted(here.keys() | there.keys()):
        if (own := there.get(name, 1)) != here.get(name, 1):
            raise RefusedError(
                f"metric {shortened(name)} is version {own} there and {here.get(name, 1)} here: "
                "their numbers do not compare"
            )
    return rules


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > LINE_BYTES:
        raise RefusedError(f"longer than {LINE_BYTES} bytes, the bound on a line")
    try:
        entry = parse_json(text, constants=False)
        if not isinstance(entry, dict):
            raise ValueError("not an object")
        canonical(entry).encode()  # fails for a lone surrogate, which cannot be written again
    except ValueError as error:
        raise RefusedError(f"not a complete line of JSON ({error}); was it cut short?") from None
    return entry


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{one_line('.'.join(map(str, first['loc'])))}: {first['msg']}"


def _check_texts(entry: BoardEntry) -> None:
    """Raise for parts that are too long, and for texts that a page cannot show."""
    for key in ("identity", "provenance"):
        size = len(canonical(entry[key]))
        if size > PART_CHARACTERS:
            raise RefusedError(f"{key}: {size} characters; the bound is {PART_CHARACTERS}")
    for text in _texts([entry[key] for key in entry if key not in ("epochs", "retain")]):
        if wrong := text_problem(text):
            raise RefusedError(f"the text {shortened(text)} {wrong}")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(item)


def _check_identity(entry: BoardEntry) -> None:
    """Raise unless the line agrees with its identity."""
    try:
        implied, planned, ended = (_run if entry["kind"] == "run" else _reference_model)(entry)
    except ValidationError as error:
        raise RefusedError(f"its identity is not a run's: {_first_problem(error)}") from None
    except (KeyError, TypeError, ValueError, UnlearnbenchError) as error:
        raise RefusedError(
            f"its identity is not of kind {entry['kind']}: {' '.join(str(error).split()):.200}"
        ) from None
    for key, value in implied.items():
        if entry[key] != value:
            raise RefusedError(f"{key}: {entry[key]!r}, and {value!r} by its identity")
    epochs = [epoch["epoch"] for epoch in entry["epochs"]]
    whole = entry["status"] == "finished" and not ended
    if not epochs or epochs != (planned if whole else planned[: len(epochs)]):
        raise RefusedError(f"epochs: {epochs} of a {entry['status']} run, planned {planned}")


def _run(entry: BoardEntry) -> tuple[dict[str, Any], list[int], bool]:
    """Values that the identity of a run implies, its planned epochs, True if patience ended it."""
    identity: Any = entry["identity"]
    # The place of the rows is not in an identity. The dtype in which a run trained in bf16 is
    # evaluated follows from the other settings, unless a precision is chosen.
    how = dict(identity["evaluation"])
    if how.get("precision") not in get_args(Precision):
        how.pop("precision", None)
    run = RunSpec.model_validate_json(json.dumps(identity | {"data": {}, "evaluation": how}))
    if run.identity != identity:
        given, whole = (dict(leaves(one)) for one in (identity, run.identity))
        odd = sorted(
            name for name in given.keys() | whole.keys() if given.get(name) != whole.get(name)
        )
        raise ValueError(f"{', '.join(odd)[:80]}: missing, or not a setting")
    overrides = {key: how.get(key) for key in ("rows", "max_length", "question_key")}
    implied = {
        "model": run.model.name,
        "method": run.method.label,
        "data": run.data_fingerprint,
        "profile": get_profile(how["profile"], **overrides).id,
        **{key: identity[key] for key in ("forget_fraction", "learning_rate", "seed")},
    }
    if "precision" in entry:
        # An identity does not contain the device.
        possible = [precision_of_spec(identity, device) for device in ("cuda", "cpu")]
        own = entry["precision"]
        implied["precision"] = own if own in possible else possible[-1]
    numbers = [(one["epoch"], one["metrics"]) for one in entry["epochs"]]
    patience = run.evaluation.patience
    ended = False
    if patience is not None:
        better = column(patience.metric).better
        ended = bool(patience.ended(numbers, better))
        ended = ended and not patience.ended(numbers[:-1], better)
    return implied, list(run.evaluate_at), ended


def _reference_model(entry: BoardEntry) -> tuple[dict[str, Any], list[int], bool]:
    """As `_run`, of a start or retain model."""
    identity = entry["identity"]
    if not isinstance(identity, list):
        raise ValueError("not a list")
    model, target, _, fraction, profile, data, *more = identity
    if more and more[-1] in {f"precision {one}" for one in get_args(Precision)}:
        more.pop()  # a chosen precision
    if len(more) > 1:  # one more is the hash of a rendered chat template
        raise ValueError(f"{len(identity)} parts")
    kind = "fine-tuned" if target == "full" else "retain"
    implied = {
        **{"model": model, "kind": kind, "method": kind, "learning_rate": None},
        **{"forget_fraction": fraction, "profile": profile, "data": data},
    }
    return implied, [0], False


def _check_metrics(epoch: BoardEntry, entry: BoardEntry, rules: BoardRules) -> None:
    """Raise unless the metrics of an epoch follow from its evidence."""
    where = f"epoch {epoch['epoch']}"
    try:
        arrays = rules.arrays(epoch["evidence"])
        for name, of in arrays.items():
            _check_arrays(name, of, rules)
        retain = _retain(epoch, entry, arrays, rules)
        computed = rules.numbers(arrays, retain)
    except (ValueError, UnlearnbenchError) as error:
        raise RefusedError(f"{where}: evidence: {error}") from None
    claimed = epoch["metrics"]
    # Of schema 2, a number that does not follow from values by question is left out.
    known = {name for name, value in computed.items() if value is None and entry["schema"] > 1}
    known -= {*rules.headline.columns}
    if odd := sorted((claimed.keys() ^ computed.keys()) - (known - claimed.keys())):
        raise RefusedError(f"{where}: metrics: {', '.join(odd)}: missing or unknown")
    for name, value in computed.items():
        if name in claimed and not _same(claimed[name], value):
            raise RefusedError(
                f"{where}: {name} is {claimed[name]!r}, and {value!r} by its evidence"
            )


def _retain(
    epoch: BoardEntry, entry: BoardEntry, arrays: Mapping[str, Arrays], rules: BoardRules
) -> FloatArray | None:
    """Truth ratios of the retain model, where the headline has a test. Raises: ValueError."""
    if (entry["retain"] is None) is rules.tested:
        need = "needs" if rules.tested else "has no"
        raise ValueError(f"this benchmark {need} truth ratios of a retain model")
    if not rules.tested:
        return None
    own = epoch["evidence"][rules.forget]["truth_ratio" if rules.schema == 1 else RATIO]
    if entry["kind"] == "retain" and entry["retain"] != own:
        raise ValueError("a retain model's truth ratios are its own")
    retain, n = unpack(entry["retain"]), len(arrays[rules.forget][RATIO])
    if len(retain) != n:
        raise ValueError(f"{len(retain)} of the retain model for {n} forget questions")
    return retain


def _check_arrays(name: str, of: Arrays, rules: BoardRules) -> None:
    """Raise ValueError for impossible values; NaN is possible for a collapsed model."""
    lengths = {len(values) for values in of.values()}
    if len(lengths) > 1 or lengths == {0}:
        raise ValueError("a set's arrays are of unequal length, or empty")
    if (n := lengths.pop()) > QUESTIONS:
        raise ValueError(f"{name}: {n} questions; the bound is {QUESTIONS}")
    bounds = {m.name: m.metric.bounds for m in rules.plan.measures if name in m.sets}
    bounds[RATIO] = (0.0, math.inf)
    for key, values in of.items():
        low, high = bounds[key]
        # A loss rounded to just below 0 gives a probability just above 1.
        odd = values[(values < low - ROUNDED) | (values > high + ROUNDED)]
        if odd.size:
            raise ValueError(f"{name}: {key} {odd[0]:g} is not possible")


def _same(claimed: float | None, computed: float | None) -> bool:
    if claimed is None or computed is None:
        return claimed is computed
    return math.isclose(claimed, computed, rel_tol=CLOSE, abs_tol=CLOSE * CLOSE)
