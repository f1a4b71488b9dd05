"""Every changed line is refused with the reason, even if its hash is computed again."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unlearnbench.files.canonical_json import content_hash
from unlearnbench.metrics.probability import Probability
from unlearnbench.reporting.leaderboard.entry import canonical, pack, unpack, with_hash
from unlearnbench.reporting.leaderboard.export import tables
from unlearnbench.reporting.leaderboard.verify import RefusedError, verify_line

from .conftest import EARLY, Sweep, lines_of

BoardEntry = dict[str, Any]


@pytest.fixture
def line(sweep: Sweep) -> BoardEntry:
    """A run's."""
    entries = [json.loads(text) for text in lines_of(sweep("a", ("npo",), (0,)))]
    return next(entry for entry in entries if entry["kind"] == "run")


def refused(entry: BoardEntry, *, sign: bool = True) -> str:
    with pytest.raises(RefusedError) as caught:
        verify_line(canonical(with_hash(entry) if sign else entry))
    return str(caught.value)


def test_what_export_writes_is_believed(sweep: Sweep) -> None:
    texts = lines_of(sweep("a"))
    assert len(texts) == 6
    for text in texts:
        assert canonical(verify_line(text)) == text


def set_to(*path: Any, value: Any) -> Callable[[BoardEntry], object]:
    def change(entry: BoardEntry) -> None:
        place: Any = entry
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value

    return change


def without(*path: Any) -> Callable[[BoardEntry], object]:
    def change(entry: BoardEntry) -> None:
        place: Any = entry
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


def again(change: Callable[[BoardEntry], object]) -> Callable[[BoardEntry], object]:
    """Also gives it the id that its changed identity has."""

    def both(entry: BoardEntry) -> None:
        change(entry)
        entry["id"] = content_hash(entry["identity"])

    return both


def _nudged(text: str) -> str:
    values = unpack(text).copy()
    values[3] *= 1.001
    return pack(values)


def _shorter(text: str) -> str:
    return pack(unpack(text)[1:])


def _threefold(text: str) -> str:
    return pack(unpack(text) * 3)


EVIDENCE = ("epochs", 1, "evidence")
METRICS = ("epochs", 1, "metrics")
CHANGES: dict[str, tuple[Callable[[BoardEntry], object], str]] = {
    "id": (set_to("id", value="0" * 16), "is not the hash of its identity"),
    "spec": (
        set_to("identity", "training", "batch_size", value=64),
        "is not the hash of its identity",
    ),
    "kind": (set_to("kind", value="retain"), "identity is not of kind retain"),
    "unknown kind": (set_to("kind", value="oracle"), "kind: Input should be 'run', 'fine-t"),
    "status": (set_to("status", value="failed"), "status: Input should be 'finished', "),
    "model": (set_to("model", value="other"), "model: 'other', and 'tiny' by its identity"),
    "model, in its identity": (
        again(lambda e: e["identity"]["model"].pop("name")),
        "identity is not a run's",
    ),
    "fraction": (set_to("forget_fraction", value=0.05), "forget_fraction: 0.05, and 0.1"),
    "method": (set_to("method", value="ce-u"), "method: 'ce-u', and 'npo' by its identity"),
    "rate": (set_to("learning_rate", value=1e-4), "learning_rate: 0.0001, and 1e-05"),
    "seed": (set_to("seed", value=7), "seed: 7, and 0 by its identity"),
    "hyper-parameter": (
        set_to("identity", "method", "hyperparameters", value={"beta": 9.0}),
        "is not the hash of its identity",
    ),
    "data": (set_to("data", value="f" * 16), "data: 'ffff"),
    "profile": (set_to("profile", value="tofu@00000000"), "none of those known here"),
    "unknown profile": (set_to("profile", value="mine@00000000"), "none of those known here"),
    "another profile": (set_to("profile", value="tofu+rows=13@"), "none of those known here"),
    "metric": (set_to(*METRICS, "model_utility", value=0.99), "epoch 2: model_utility is 0.99"),
    "quality": (
        set_to(*METRICS, "log10_forget_quality", value=-0.1),
        "epoch 2: log10_forget_quality is -0.1, and ",
    ),
    "p-value": (set_to(*METRICS, "forget_quality", value=0.9), "forget_quality is 0.9"),
    "set's metric": (set_to(*METRICS, "rouge_retain", value=1.0), "rouge_retain is 1.0"),
    "metric as text": (
        set_to(*METRICS, "rouge_retain", value="high"),
        r"epochs\.1\.metrics\.rouge_retain: Input should be a valid number",
    ),
    "metric gone": (lambda e: e["epochs"][0]["metrics"].pop("ks_n"), "ks_n: missing or unknown"),
    "metric undefined": (set_to(*METRICS, "model_utility", value=None), "model_utility is None"),
    "probability": (
        set_to(*EVIDENCE, "retain", "probability", value=_nudged),
        "epoch 2: .* by its evidence",
    ),
    "rouge": (set_to(*EVIDENCE, "world_facts", "rouge", value=_nudged), "epoch 2: .* by its ev"),
    "truth ratio": (
        set_to(*EVIDENCE, "forget", "truth_ratio", value=_nudged),
        "truth_ratio_forget is",
    ),
    "truth ratio R": (
        set_to(*EVIDENCE, "forget", "R", value=_threefold),
        "_forget_quality is|ks_statistic is|forget_quality is",
    ),
    "impossible value": (
        set_to(*EVIDENCE, "retain", "probability", value=_threefold),
        "evidence: retain: probability .* is not possible",
    ),
    "array gone": (
        lambda e: e["epochs"][1]["evidence"]["forget"].pop("R"),
        "evidence: forget: R: missing or unknown",
    ),
    "questions": (
        set_to(*EVIDENCE, "forget", "rouge", value=_shorter),
        "evidence: a set's arrays are of unequal length",
    ),
    "evidence gone": (lambda e: e["epochs"][1]["evidence"].pop("forget"), "evidence: the sets are"),
    "evidence, no base64": (set_to(*EVIDENCE, "forget", "rouge", value="?!"), "epoch 2: evidence"),
    "retain model": (
        set_to("retain", value=_threefold),
        "_forget_quality is|ks_statistic is|forget_quality is",
    ),
    "retain model's questions": (
        set_to("retain", value=_shorter),
        "12 forget questions",
    ),
    "epoch": (set_to("epochs", 1, "epoch", value=3), r"epochs: \[1, 3\] of a finished run"),
    "epoch gone": (lambda e: e["epochs"].pop(), r"epochs: \[1\] of a finished run, planned"),
    "no epoch": (set_to("epochs", value=[]), r"epochs: \[\] of a finished"),
    "schema": (set_to("schema", value=3), "schema 3, and this version reads 1 and 2"),
    "schema as text": (set_to("schema", value="2"), "schema '2', and this version reads 1 and 2"),
    "earlier schema": (set_to("schema", value=1), "retain|benchmark: Extra inputs"),
    "benchmark": (set_to("benchmark", value="riddles"), "'riddles' is not installed here; give"),
    "metric's version": (
        set_to("versions", value={"rouge": 2}),
        "metric 'rouge' is version 2 there and 1 here",
    ),
    "no retain model": (set_to("retain", value=None), "this benchmark needs truth ratios of a ret"),
    "key gone": (lambda e: e.pop("weights"), "weights: Field required"),
    "key more": (lambda e: e.update(note=1), "note: Extra inputs"),
    "type": (set_to("seed", value=True), "seed: Input should be a valid integer"),
    "epoch's key": (lambda e: e["epochs"][0].update(answers=["x"]), r"epochs\.0\.answers: Extra"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_refused_with_its_reason(name: str, line: BoardEntry) -> None:
    change, reason = CHANGES[name]
    change(line)

    assert re.search(reason, refused(line)), refused(line)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weights", "0000"),
        ("provenance", {"device": "cuda: H200"}),
        ("status", "collapsed"),
    ],
)
def test_what_nothing_else_shows_is_shown_by_the_lines_own_hash(
    key: str, value: Any, line: BoardEntry
) -> None:
    line[key] = value
    assert "its sha256 is not that of the line" in refused(line, sign=False)


@pytest.mark.parametrize("key", ["training_seconds", "evaluation_seconds", "log"])
def test_changed_times_and_log_hash_are_refused(key: str, line: BoardEntry) -> None:
    line["epochs"][0][key] = "0" * 64 if key == "log" else 0.001
    assert "its sha256 is not that of the line" in refused(line, sign=False)


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000]
)
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="not a complete line of JSON"):
        verify_line(text)


def test_a_reference_model_is_checked_against_its_identity(sweep: Sweep) -> None:
    entries = {e["kind"]: e for e in map(json.loads, lines_of(sweep("a", ("npo",), (0,))))}
    retain = entries["retain"]
    retain["identity"][1] = "full"
    retain["id"] = content_hash(retain["identity"])
    assert "kind: 'retain', and 'fine-tuned' by its identity" in refused(retain)
    tuned = entries["fine-tuned"]
    assert "learning_rate" in refused(tuned | {"learning_rate": 1e-5})
    other = entries["run"]["epochs"][0]["evidence"]["forget"]["R"]
    own = json.loads(json.dumps(entries["retain"] | {"identity": tuned["identity"]}))
    own["identity"] = [*tuned["identity"]]
    own["identity"][1] = "retain90"
    own["id"] = content_hash(own["identity"])
    assert "a retain model's truth ratios are its own" in refused(own | {"retain": other})


def test_arrays_are_whole_floats_of_eight_bytes() -> None:
    values = np.array([0.1, np.inf, -np.nan, 5e-324])
    assert unpack(pack(values)).tobytes() == values.astype("<f8").tobytes()
    assert base64.b64decode(pack(np.array([1.0]))) == b"\x00\x00\x00\x00\x00\x00\xf0?"


def test_a_number_that_follows_from_the_evidence_cannot_be_left_out(line: BoardEntry) -> None:
    for name in line["epochs"][0]["metrics"]:
        changed = json.loads(json.dumps(line))
        del changed["epochs"][0]["metrics"][name]
        assert f"epoch 1: metrics: {name}: missing or unknown" in refused(changed)


def test_lines_name_the_versions_of_metrics(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, line: BoardEntry
) -> None:
    monkeypatch.setattr(Probability, "version", 2)
    assert "metric 'probability' is version 1 there and 2 here" in refused(line)
    later = lines_of(sweep("b", ("npo",), (0,)))
    assert [json.loads(text)["versions"] for text in later] == 3 * [{"probability": 2}]
    for text in later:
        verify_line(text)


def test_lines_of_schema_1_are_verified_as_before(sweep: Sweep) -> None:
    early, now = EARLY, lines_of(sweep("a", ("npo",), (0,)))
    before, after = (tables(map(verify_line, lines)) for lines in (early, now))
    assert before == after, "every number, to the last digit"
    assert {json.loads(text)["schema"] for text in early} == {1}
    for text in early:
        assert canonical(verify_line(text)) == text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_to("epochs", 0, "metrics", "model_utility", value=0.99), "model_utility is 0.99"),
        (
            set_to("epochs", 0, "evidence", "forget", "truth_ratio", value=_nudged),
            "retain model's truth ratios are its own|truth_ratio_forget is",
        ),
        (
            set_to("epochs", 0, "evidence", "world_facts", "rouge", value=_nudged),
            "epoch [01]: .* by its evidence",
        ),
        (without("epochs", 0, "evidence", "retain", "rouge"), "retain: rouge: missing"),
        (without("epochs", 0, "metrics", "ks_n"), "ks_n: missing or unknown"),
        (set_to("benchmark", value="tofu"), "benchmark: Extra inputs"),
        (set_to("retain", value=None), "retain: Input should be a valid string"),
    ],
)
def test_every_change_of_a_line_of_schema_1_is_refused(
    change: Callable[[BoardEntry], object], reason: str
) -> None:
    for text in EARLY:
        entry = json.loads(text)
        change(entry)
        assert re.search(reason, refused(entry)), refused(entry)


def patient(line: BoardEntry, **rule: Any) -> BoardEntry:
    """Planned for three epochs, with a rule on a metric that never changes."""
    identity_patience = {"metric": "ks_n", "epochs": 1, "min_delta": 0.0, "mode": None} | rule
    line["identity"] |= {"epochs": 3, "evaluate_at": [1, 2, 3]}
    line["identity"]["evaluation"]["patience"] = identity_patience
    line["id"] = content_hash(line["identity"])
    return line


def test_a_run_ended_by_its_patience_is_complete(line: BoardEntry) -> None:
    assert verify_line(canonical(with_hash(patient(line))))["status"] == "finished"


def test_a_run_that_ended_without_reason_is_not_complete(line: BoardEntry) -> None:
    reason = "epochs: [1, 2] of a finished run, planned [1, 2, 3]"
    assert refused(patient(line, epochs=2)) == reason


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"epochs": 0}, "evaluation.patience.epochs: Input should be greater than or equal to 1"),
        ({"metric": 3}, "evaluation.patience.metric: Input should be a valid string"),
    ],
)
def test_an_impossible_patience_is_refused(line: BoardEntry, rule: BoardEntry, reason: str) -> None:
    assert refused(patient(line, **rule)) == f"its identity is not a run's: {reason}"


def test_a_reference_models_identity_may_end_with_a_template_digest(sweep: Sweep) -> None:
    entries = [json.loads(text) for text in lines_of(sweep("a", ("npo",), (0,)))]
    anchor = next(entry for entry in entries if entry["kind"] == "fine-tuned")
    anchor["identity"].append("0123456789abcdef")
    anchor["id"] = content_hash(anchor["identity"])
    assert verify_line(canonical(with_hash(anchor)))["id"] == anchor["id"]
    anchor["identity"].append("precision bf16")
    anchor["id"] = content_hash(anchor["identity"])
    assert verify_line(canonical(with_hash(anchor)))["id"] == anchor["id"]
    anchor["identity"].append("more")
    anchor["id"] = content_hash(anchor["identity"])
    assert "its identity is not of kind fine-tuned" in refused(anchor)
