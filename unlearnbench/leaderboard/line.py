"""A record as one line of JSON that can be believed without the folder it comes from.

    schema      of these lines
    id          of the record: the hash of `identity`, which is all that its numbers depend on
    identity    of a run the RunSpec's; of an anchor [model, target, weights, fraction, profile,
                data]
    kind, status, model, forget_fraction, method, learning_rate, seed, profile, precision
                as in the record; what `identity` says, too, must be the same there; lines of
                earlier versions have no precision
    data        hash of the benchmark's rows
    weights     hash of the start weights; of an anchor, of its own
    epochs      epoch, metrics, seconds, `log` (SHA-256 of the evaluation's file) and `evidence`:
                by set, `Scores` of each question
    retain      truth ratios of the retain model on the forget set
    provenance  commit, versions, device, begin and end
    sha256      of the line without this key

Canonical JSON: sorted keys, no spaces, so that equal records are equal bytes. Arrays are base64 of
little-endian float64, at full precision: `numpy.frombuffer(base64.b64decode(text), "<f8")`. Of
questions and answers there is no text. A hash shows damage and carelessness; who makes numbers up
can hash them, too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from unlearnbench.errors import RecordError
from unlearnbench.evaluation.metrics import Scores, scores, truth_ratios
from unlearnbench.evaluation.precision import precision_of_spec
from unlearnbench.evaluation.profiles import Profile, profile_of_id
from unlearnbench.evaluation.result import SETS, Evaluation, FloatArray, SetName
from unlearnbench.plan import RunSpec
from unlearnbench.records import Record, StoredEvaluations

SCHEMA = 1
PROVENANCE = ("git", "versions", "device", "started", "finished")
"""What goes into a line; host and process are nobody's business."""
ARRAYS = ("probability", "rouge", "truth_ratio")

Entry = Mapping[str, Any]
"""A line, parsed."""


def canonical(entry: Entry) -> str:
    """The line, without its end."""
    return json.dumps(
        entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def signed(entry: Entry) -> dict[str, Any]:
    """`entry` with the hash of all the rest of it."""
    rest = {key: value for key, value in entry.items() if key != "sha256"}
    return rest | {"sha256": hashlib.sha256(canonical(rest).encode()).hexdigest()}


def pack(values: FloatArray) -> str:
    """An array as text."""
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode("ascii")


def unpack(text: Any) -> FloatArray:
    """What `pack` was given. Raises: ValueError."""
    if not isinstance(text, str):
        raise ValueError(f"expected base64, got {text!r:.40}")
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)


def line_of(record: Record, retain: Evaluation) -> str:
    """`record` as a line.

    retain  the evaluation that its Forget Quality compares with
    Raises: RecordError where the record lacks what a line needs.
    """
    profile = profile_of_id(record.profile)
    without = [e.epoch for e in record.epochs if e.epoch not in record.evaluations]
    if without or not record.epochs:
        raise RecordError(f"no evaluation of epoch {without[0] if without else 0} is kept with it")
    found = record.evaluations
    digests = found.digests if isinstance(found, StoredEvaluations) else {}
    epochs = [
        {
            "epoch": one.epoch,
            "metrics": dict(one.metrics),
            "training_seconds": one.training_seconds,
            "evaluation_seconds": one.evaluation_seconds,
            "log": digests.get(one.epoch),
            "evidence": _evidence(found[one.epoch], profile),
        }
        for one in record.epochs
    ]
    made = record.provenance
    entry = {
        "schema": SCHEMA,
        "id": record.id,
        "identity": _identity(record),
        **{key: getattr(record, key) for key in SAME},
        "precision": record.precision,
        "data": made.get("data"),
        "weights": made.get("weights"),
        "epochs": epochs,
        "retain": pack(truth_ratios(retain.sets["forget"], profile)),
        "provenance": {key: made[key] for key in PROVENANCE if key in made},
    }
    return canonical(signed(entry))


SAME = (
    *("kind", "status", "model", "forget_fraction", "method", "learning_rate", "seed", "profile"),
)
"""Named in a line as in a record."""


def precision_of(entry: Entry) -> str | None:
    """In which precision a line's numbers were computed; None where an early line cannot say."""
    own: str | None = entry.get("precision")
    if own is None and entry["kind"] == "run":
        return precision_of_spec(entry["identity"])
    return own


def _identity(record: Record) -> Any:
    if record.kind == "run":
        try:
            return RunSpec.model_validate_json(json.dumps(record.spec)).identity
        except ValueError:
            raise RecordError(
                "its spec is none of this version's; export it with the version that wrote it"
            ) from None
    if "identity" not in record.spec:
        raise RecordError(
            "it was written before anchors kept what their id is the hash of; delete its folder: "
            "the next sweep there that has a run to do evaluates it again"
        )
    return record.spec["identity"]


def _evidence(evaluation: Evaluation, profile: Profile) -> dict[str, dict[str, str]]:
    return {
        name: {key: pack(getattr(of, key)) for key in ARRAYS}
        for name in SETS
        for of in (scores(name, evaluation.sets[name], profile),)
    }


def scores_of(evidence: Mapping[str, Mapping[str, str]]) -> dict[SetName, Scores]:
    """By set, the scores that a line holds. Raises: ValueError, KeyError."""
    if sorted(evidence) != sorted(SETS):
        raise ValueError(f"the sets are {', '.join(sorted(evidence))}")
    return {name: Scores(*(unpack(evidence[name][key]) for key in ARRAYS)) for name in SETS}
