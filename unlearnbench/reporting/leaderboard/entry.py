"""Record as one line of JSON that can be verified without the folder it comes from.

    schema      version of these lines
    benchmark   name of the benchmark, whose own metrics and headline a line has
    versions    of its metrics by name, where not 1
    id          record id: the hash of `identity`, which contains all that its numbers depend on
    identity    RunSpec's identity of a run; [model, target, weights, fraction, profile, data] of a
                start or retain model
    kind, status, model, forget_fraction, method, learning_rate, seed, profile, precision
                as in the record and consistent with `identity`
    data        hash of the benchmark's rows
    weights     hash of the start weights; of a start or retain model, of its own weights
    epochs      epoch, metrics (those that the benchmark itself names), seconds, `log` (SHA-256 of
                the evaluation's file) and `evidence`: by set, each metric's values by question
    retain      truth ratios of the retain model on the forget set, where the headline has a test
                that compares them; the evidence has the model's own as `R`
    provenance  commit, versions, device, start and end
    sha256      hash of the line without this key

Canonical JSON: sorted keys, no spaces, so that equal records are equal bytes. Arrays are base64 of
little-endian float64: `numpy.frombuffer(base64.b64decode(text), "<f8")`. There is no text of
questions or answers. A hash detects damage and carelessness, not numbers that were invented.

Lines of schema 1 are of a benchmark with TOFU's metrics, which they do not name. Their evidence is
probability and ROUGE-L recall, and as `truth_ratio` the truth ratio R. They may have no precision.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import ValidationError

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.api.benchmark import Benchmark, Headline
from unlearnbench.api.metric import EvaluatedModel
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import load, names, recorded_file
from unlearnbench.config.benchmark_section import WITHOUT_PLUGIN, benchmark_named
from unlearnbench.config.messages import describe_errors
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.errors import RecordError, did_you_mean
from unlearnbench.evaluation.headlines import default_headline
from unlearnbench.evaluation.summary import plan_of, truth_ratios
from unlearnbench.files.bounded import shortened
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import Record, StoredEvaluations

SCHEMA = 2
SAME = (
    *("kind", "status", "model", "forget_fraction", "method", "learning_rate", "seed", "profile"),
)
"""Keys that are the same in a line and in a record."""
PROVENANCE = ("git", "versions", "device", "started", "finished")
"""Provenance in a line; host and process stay private."""
RATIO = "R"
"""Evidence of the forget set from which the headline's test follows; no metric's name."""
BEFORE = "tofu"
"""Benchmark whose metrics lines of schema 1 have; the synthetic one has the same."""
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


@dataclass(frozen=True)
class BoardRules:
    """Rules behind the numbers of a line: its benchmark's own metrics under its profile."""

    schema: int
    benchmark: Benchmark
    profile: Profile

    @cached_property
    def plan(self) -> MetricPlan:
        """The benchmark's own metrics."""
        plan = plan_of(self.profile, self.benchmark)
        return plan.of_columns(plan.own)

    @property
    def headline(self) -> Headline:
        """The two numbers of the benchmark."""
        return self.benchmark.headline

    @property
    def forget(self) -> str:
        """Name of the forget set."""
        return next(name for name, role in self.benchmark.roles.items() if role == "forget")

    @property
    def tested(self) -> bool:
        """True if the headline compares truth ratios with the retain model's."""
        return self.headline.forgotten.test is not None

    @property
    def versions(self) -> dict[str, int]:
        """Versions of its metrics by name, where not 1."""
        named = {use.metric for use in self.benchmark.metrics(self.profile)}
        versions = {name: load("metrics", name).version for name in sorted(named)}
        return {name: version for name, version in versions.items() if version != 1}

    @cached_property
    def evidence(self) -> Mapping[str, tuple[str, ...]]:
        """Names of a line's arrays by set."""
        found: dict[str, set[str]] = {}
        for measure in self.plan.measures:
            for name in measure.sets:
                found.setdefault(name, set()).add(measure.name)
        if self.tested:
            found.setdefault(self.forget, set()).add(RATIO)
        if self.schema == 1:
            found = {name: {"probability", "rouge", "truth_ratio"} for name in found}
        return {name: tuple(sorted(keys)) for name, keys in sorted(found.items())}

    def arrays(self, evidence: Mapping[str, Mapping[str, str]]) -> Mapping[str, Arrays]:
        """The arrays of an epoch's evidence by set. Raises: ValueError."""
        if sorted(evidence) != [*self.evidence]:
            raise ValueError(f"the sets are {', '.join(sorted(evidence))}")
        for name, keys in self.evidence.items():
            if odd := sorted(evidence[name].keys() ^ {*keys}):
                raise ValueError(f"{name}: {', '.join(odd)}: missing or unknown")
        return {
            name: {self._renamed(key): unpack(text) for key, text in sorted(of.items())}
            for name, of in sorted(evidence.items())
        }

    def _renamed(self, key: str) -> str:
        return RATIO if self.schema == 1 and key == "truth_ratio" else key

    def numbers(
        self, arrays: Mapping[str, Arrays], retain: FloatArray | None
    ) -> dict[str, float | None]:
        """The metrics that follow from an epoch's evidence.

        retain  [n] truth ratios R of the retain model on the forget set
        """
        sets = {name: _observed(of, self.profile) for name, of in arrays.items()}
        other = None
        if retain is not None:
            other = EvaluatedModel({self.forget: _observed({RATIO: retain}, self.profile)})
        return self.plan.values(sets, other)


def rules_of(entry: BoardEntry) -> BoardRules:
    """The rules of a line. Raises: UnlearnbenchError for an unknown benchmark or profile."""
    name = entry.get("benchmark", BEFORE)
    return BoardRules(entry["schema"], find_benchmark(name), profile_of_id(entry["profile"]))


def own_headline(entry: BoardEntry) -> str:
    """Name of the benchmark where methods are not ranked by TOFU's two numbers; else empty.

    Lines of TOFU and of the synthetic benchmark share tables, and so do those of schema 1.
    """
    headline = rules_of(entry).headline
    return "" if headline == default_headline() else entry["benchmark"]


def panel(entry: BoardEntry) -> Panel:
    """Model and split of a line."""
    return entry["model"], entry["forget_fraction"]


def find_benchmark(name: str) -> Benchmark:
    """The benchmark called `name`, whatever its settings: they decide where rows come from."""
    known = names("benchmarks")
    if name not in known:
        raise RecordError(
            f"benchmark {shortened(name)} is not installed here{did_you_mean(name, known)}; give "
            f"its file with --plugin, or install its package{recorded_file(name)}"
        )
    try:
        return benchmark_named(name)
    except ValidationError as error:
        raise RecordError(
            f"benchmark {name!r} has no metrics without settings: {describe_errors(error)}"
        ) from None


def board_line(record: Record, retain: Evaluation | None, benchmark: str = BEFORE) -> str:
    """Convert `record` to a line.

    retain     evaluation of the retain model that the headline's test compares with
    benchmark  name of the benchmark
    Raises: RecordError if the record is incomplete, or its headline does not follow from values by
    question.
    """
    rules = BoardRules(SCHEMA, find_benchmark(benchmark), profile_of_id(record.profile))
    without = [e.epoch for e in record.epochs if e.epoch not in record.evaluations]
    if without or not record.epochs:
        raise RecordError(
            f"no evaluation of epoch {without[0] if without else 0} is stored with it"
        )
    found = record.evaluations
    digests = found.digests if isinstance(found, StoredEvaluations) else {}
    goal = None
    if rules.tested and retain is not None:
        goal = truth_ratios(retain.sets[rules.forget], rules.profile)
    epochs: list[dict[str, Any]] = []
    for one in record.epochs:
        evidence = _evidence(found[one.epoch], rules)
        computed = rules.numbers(rules.arrays(evidence), goal)
        epochs.append(
            {
                "epoch": one.epoch,
                "metrics": _columns(one.metrics, computed, rules.headline),
                "training_seconds": one.training_seconds,
                "evaluation_seconds": one.evaluation_seconds,
                "log": digests.get(one.epoch),
                "evidence": evidence,
            }
        )
    provenance = record.provenance
    entry = {
        "schema": SCHEMA,
        "benchmark": benchmark,
        "versions": rules.versions,
        "id": record.id,
        "identity": _identity(record),
        **{key: getattr(record, key) for key in SAME},
        "precision": record.precision,
        "data": provenance.get("data"),
        "weights": provenance.get("weights"),
        "epochs": epochs,
        "retain": None if goal is None else pack(goal),
        "provenance": {key: provenance[key] for key in PROVENANCE if key in provenance},
    }
    return canonical(with_hash(entry))


def _columns(
    stored: Mapping[str, float | None], computed: Mapping[str, float | None], headline: Headline
) -> dict[str, float | None]:
    """The stored numbers, but for those that do not follow from the evidence."""
    gone = {n for n, value in computed.items() if value is None and stored.get(n) is not None}
    if lacking := [name for name in headline.columns if name in gone]:
        raise RecordError(
            f"{', '.join(lacking)} cannot be verified: a line has values by question, and this "
            "headline does not follow from them"
        )
    return {name: stored.get(name) for name in computed if name not in gone}


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


def _evidence(evaluation: Evaluation, rules: BoardRules) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name in rules.evidence:
        if (seen := evaluation.sets.get(name)) is None:
            raise RecordError(f"its evaluation has no set {name!r}, which a line needs")
        found[name] = {}
        if name == rules.forget and rules.tested:
            found[name] = {RATIO: pack(truth_ratios(seen, rules.profile))}
        for measure in rules.plan.measures:
            if name in measure.sets:
                values = measure.per_example(seen)
                unknown = np.full(len(seen.answer_loss), np.nan)
                found[name][measure.name] = pack(unknown if values is None else values)
    return found


def _observed(arrays: Arrays, profile: Profile) -> SetEvaluation:
    """A set whose truth ratios are R: against one false answer of probability 1."""
    n = len(next(iter(arrays.values())))
    unknown, none = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    loss, wrong = unknown, np.zeros((n, 0))
    if (ratio := arrays.get(RATIO)) is not None:
        with np.errstate(divide="ignore"):
            loss = -np.log(np.maximum(ratio - profile.truth_ratio_epsilon, 0))
        wrong = np.zeros((n, 1))
    return SetEvaluation(
        questions=(),
        generated=(),
        references=(),
        answer_loss=unknown,
        answer_tokens=none,
        base_loss=loss,
        base_tokens=none,
        perturbed_loss=wrong,
        perturbed_tokens=wrong.astype(np.int64),
        rouge1_recall=unknown,
        rouge_l_recall=unknown,
        values={key: values for key, values in arrays.items() if key != RATIO},
    )
