"""Record as one line of JSON that can be verified without the folder it comes from.

    schema      version of these lines
    id          record id: the hash of `identity`, which contains all that its numbers depend on
    identity    RunSpec's identity of a run; [model, target, weights, fraction, profile, data] of a
                start or retain model
    kind, status, model, forget_fraction, method, learning_rate, seed, profile, precision
                as in the record and consistent with `identity`; lines of earlier versions have no
                precision
    data        hash of the benchmark's rows
    weights     hash of the start weights; of a start or retain model, of its own weights
    epochs      epoch, metrics (those that the benchmark itself names), seconds, `log` (SHA-256 of
                the evaluation's file) and `evidence`: of each question by set its probability,
                ROUGE-L recall and truth ratio R
    retain      truth ratios of the retain model on the forget set
    provenance  commit, versions, device, start and end
    sha256      hash of the line without this key

Canonical JSON: sorted keys, no spaces, so that equal records are equal bytes. Arrays are base64 of
little-endian float64: `numpy.frombuffer(base64.b64decode(text), "<f8")`. There is no text of
questions or answers. A hash detects damage and carelessness, not numbers that were invented.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from unlearnbench.api.metric import EvaluatedModel
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.api.profile import Profile
from unlearnbench.config.benchmark_section import WITHOUT_PLUGIN
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import RecordError
from unlearnbench.evaluation.summary import plan_of, truth_ratios
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import Record, StoredEvaluations

SCHEMA = 1
SAME = (
    *("kind", "status", "model", "forget_fraction", "method", "learning_rate", "seed", "profile"),
)
"""Keys that are the same in a line and in a record."""
PROVENANCE = ("git", "versions", "device", "started", "finished")
"""Provenance in a line; host and process stay private."""
RATIO = "truth_ratio"
ARRAYS = ("probability", "rouge", RATIO)
"""Evidence of a set: values of two metrics, and R, from which the truth ratio of every form and
Forget Quality follow."""
Arrays = Mapping[str, FloatArray]

BoardEntry = Mapping[str, Any]
"""A parsed line."""


def canonical(entry: BoardEntry) -> str:
    """The canonical line, without line break."""
    return json.dumps(
        entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def with_hash(entry: BoardEntry) -> dict[str, Any]:
    """`entry` with the hash of all its other keys."""
    rest = {key: value for key, value in entry.items() if key != "sha256"}
    return rest | {"sha256": hashlib.sha256(canonical(rest).encode()).hexdigest()}


def pack(values: FloatArray) -> str:
    """An array as text."""
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode("ascii")


def unpack(text: str) -> FloatArray:
    """Decode the text of `pack`. Raises: ValueError."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)


def board_line(record: Record, retain: Evaluation) -> str:
    """Convert `record` to a line.

    retain  evaluation of the retain model that its Forget Quality compares with
    Raises: RecordError if the record is incomplete.
    """
    profile = profile_of_id(record.profile)
    without = [e.epoch for e in record.epochs if e.epoch not in record.evaluations]
    if without or not record.epochs:
        raise RecordError(
            f"no evaluation of epoch {without[0] if without else 0} is stored with it"
        )
    found = record.evaluations
    digests = found.digests if isinstance(found, StoredEvaluations) else {}
    epochs = [
        {
            "epoch": one.epoch,
            "metrics": {name: one.metrics.get(name) for name in plan_of(profile).own},
            "training_seconds": one.training_seconds,
            "evaluation_seconds": one.evaluation_seconds,
            "log": digests.get(one.epoch),
            "evidence": _evidence(found[one.epoch], profile),
        }
        for one in record.epochs
    ]
    provenance = record.provenance
    entry = {
        "schema": SCHEMA,
        "id": record.id,
        "identity": _identity(record),
        **{key: getattr(record, key) for key in SAME},
        "precision": record.precision,
        "data": provenance.get("data"),
        "weights": provenance.get("weights"),
        "epochs": epochs,
        "retain": pack(truth_ratios(retain.sets["forget"], profile)),
        "provenance": {key: provenance[key] for key in PROVENANCE if key in provenance},
    }
    return canonical(with_hash(entry))


def precision_of(entry: BoardEntry) -> str | None:
    """Precision of a line's evaluation; None if unknown, as in early lines."""
    own: str | None = entry.get("precision")
    if own is None and entry["kind"] == "run":
        return precision_of_spec(entry["identity"])
    return own


def leaves(identity: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every setting in the identity of a run."""
    for key, value in identity.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _identity(record: Record) -> Any:
    if record.kind == "run":
        try:
            spec = json.dumps(record.spec)
            return RunSpec.model_validate_json(spec, context=WITHOUT_PLUGIN).identity
        except ValueError:
            raise RecordError(
                "its spec is of another version; export it with the version that wrote it"
            ) from None
    if "identity" not in record.spec:
        raise RecordError(
            "it was written by a version that did not store its identity; delete its folder: the "
            "next sweep there that has a run to do evaluates it again"
        )
    return record.spec["identity"]


def _evidence(evaluation: Evaluation, profile: Profile) -> dict[str, dict[str, str]]:
    plan = plan_of(profile)
    found: dict[str, dict[str, str]] = {}
    for name in _sets(plan):
        if (seen := evaluation.sets.get(name)) is None:
            raise RecordError(f"its evaluation has no set {name!r}, which a line needs")
        found[name] = {RATIO: pack(truth_ratios(seen, profile))}
        for measure in plan.measures:
            if measure.name in ARRAYS and measure.name != RATIO and name in measure.sets:
                values = measure.per_example(seen)
                unknown = np.full(len(seen.answer_loss), np.nan)
                found[name][measure.name] = pack(unknown if values is None else values)
    return found


def _sets(plan: MetricPlan) -> list[str]:
    """The sets of the metrics that the benchmark itself names."""
    return sorted({one.set for one in plan.columns if one.set and one.name in plan.own})


def arrays_of(evidence: Mapping[str, Mapping[str, str]], profile: Profile) -> Mapping[str, Arrays]:
    """Arrays of a line's evidence by set. Raises: ValueError."""
    if sorted(evidence) != _sets(plan_of(profile)):
        raise ValueError(f"the sets are {', '.join(sorted(evidence))}")
    return {name: {key: unpack(of[key]) for key in ARRAYS} for name, of in evidence.items()}


def numbers_of(
    arrays: Mapping[str, Arrays], retain: FloatArray, profile: Profile
) -> dict[str, float | None]:
    """The metrics that follow from a line's evidence.

    retain  [n] truth ratios R of the retain model on the forget set
    """
    plan = plan_of(profile)
    sets = {name: _observed(of, profile) for name, of in arrays.items()}
    other = EvaluatedModel({"forget": _observed({RATIO: retain}, profile)})
    values = plan.values(sets, other)
    return {name: values[name] for name in values if name in plan.own}


def _observed(arrays: Arrays, profile: Profile) -> SetEvaluation:
    """A set whose truth ratios are R: against one false answer of probability 1."""
    ratio = arrays[RATIO]
    n = len(ratio)
    unknown, none = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    with np.errstate(divide="ignore"):
        loss = -np.log(np.maximum(ratio - profile.truth_ratio_epsilon, 0))
    return SetEvaluation(
        questions=(),
        generated=(),
        references=(),
        answer_loss=unknown,
        answer_tokens=none,
        base_loss=loss,
        base_tokens=none,
        perturbed_loss=np.zeros((n, 1)),
        perturbed_tokens=none[:, None],
        rouge1_recall=unknown,
        rouge_l_recall=unknown,
        values={key: values for key, values in arrays.items() if key != RATIO},
    )
