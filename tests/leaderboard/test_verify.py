"""Whatever is changed in a line, it is refused, and says why: with its hash taken anew, too."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unlearnbench.leaderboard.line import canonical, pack, signed, unpack
from unlearnbench.leaderboard.verify import RefusedError, verified
from unlearnbench.plan import content_hash

from .conftest import Sweep, lines_of

Entry = dict[str, Any]


@pytest.fixture
def line(sweep: Sweep) -> Entry:
    """A run's."""
    entries = [json.loads(text) for text in lines_of(sweep("a", ("npo",), (0,)))]
    return next(entry for entry in entries if entry["kind"] == "run")


def refused(entry: Entry, *, sign: bool = True) -> str:
    with pytest.raises(RefusedError) as caught:
        verified(canonical(signed(entry) if sign else entry))
    return str(caught.value)


def test_what_export_writes_is_believed(sweep: Sweep) -> None:
    texts = lines_of(sweep("a"))
    assert len(texts) == 6
    for text in texts:
        assert canonical(verified(text)) == text


def set_to(*path: Any, value: Any) -> Callable[[Entry], object]:
    def change(entry: Entry) -> None:
        place: Any = entry
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value(place[path[-1]]) if callable(value) else value

    return change


def again(change: Callable[[Entry], object]) -> Callable[[Entry], object]:
    """Also gives it the id that its changed identity has."""

    def both(entry: Entry) -> None:
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
CHANGES: dict[str, tuple[Callable[[Entry], object], str]] = {
    "id": (set_to("id", value="0" * 16), "is not the hash of its identity"),
    "spec": (
        set_to("identity", "training", "batch_size", value=64),
        "is not the hash of its identity",
    ),
    "kind": (set_to("kind", value="retain"), "identity is none of a retain"),
    "unknown kind": (set_to("kind", value="oracle"), "there are no such"),
    "status": (set_to("status", value="failed"), "there are no such"),
    "model": (set_to("model", value="other"), "model: 'other', and 'tiny' by its identity"),
    "model, in its identity": (
        again(lambda e: e["identity"]["model"].pop("name")),
        "identity is none of a run",
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
    "metric as text": (set_to(*METRICS, "rouge_retain", value="high"), "rouge_retain is 'high'"),
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
    "schema": (set_to("schema", value=2), "schema 2, and this version reads 1"),
    "key gone": (lambda e: e.pop("weights"), "weights: missing"),
    "key more": (lambda e: e.update(note=1), "'note'"),
    "type": (set_to("seed", value=True), "seed: True is not what belongs there"),
    "epoch's key": (lambda e: e["epochs"][0].update(answers=["x"]), "epochs: 'answers'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_refused_with_its_reason(name: str, line: Entry) -> None:
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
    key: str, value: Any, line: Entry
) -> None:
    line[key] = value
    assert "its sha256 is not that of the line" in refused(line, sign=False)


@pytest.mark.parametrize("key", ["training_seconds", "evaluation_seconds", "log"])
def test_so_is_what_an_epoch_took_and_the_hash_of_its_log(key: str, line: Entry) -> None:
    line["epochs"][0][key] = "0" * 64 if key == "log" else 0.001
    assert "its sha256 is not that of the line" in refused(line, sign=False)


@pytest.mark.parametrize(
    "text", ["", "[]", "nonsense", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000]
)
def test_what_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="no whole line of JSON"):
        verified(text)


def test_an_anchor_is_held_to_its_identity(sweep: Sweep) -> None:
    entries = {e["kind"]: e for e in map(json.loads, lines_of(sweep("a", ("npo",), (0,))))}
    retain = entries["retain"]
    retain["identity"][1] = "full"
    retain["id"] = content_hash(retain["identity"])
    assert "kind: 'retain', and 'fine-tuned' by its identity" in refused(retain)
    tuned = entries["fine-tuned"]
    assert "learning_rate" in refused(tuned | {"learning_rate": 1e-5})
    other = entries["run"]["epochs"][0]["evidence"]["forget"]["truth_ratio"]
    own = json.loads(json.dumps(entries["retain"] | {"identity": tuned["identity"]}))
    own["identity"] = [*tuned["identity"]]
    own["identity"][1] = "retain90"
    own["id"] = content_hash(own["identity"])
    assert "a retain model's truth ratios are its own" in refused(own | {"retain": other})


def test_arrays_are_whole_floats_of_eight_bytes() -> None:
    values = np.array([0.1, np.inf, -np.nan, 5e-324])
    assert unpack(pack(values)).tobytes() == values.astype("<f8").tobytes()
    assert base64.b64decode(pack(np.array([1.0]))) == b"\x00\x00\x00\x00\x00\x00\xf0?"


def patient(line: Entry, **rule: Any) -> Entry:
    """Planned for three epochs, with a rule on a metric that never changes."""
    held = {"metric": "ks_n", "epochs": 1, "min_delta": 0.0, "mode": None} | rule
    line["identity"] |= {"epochs": 3, "evaluate_at": [1, 2, 3]}
    line["identity"]["evaluation"]["patience"] = held
    line["id"] = content_hash(line["identity"])
    return line


def test_a_run_that_its_own_patience_has_ended_is_whole(line: Entry) -> None:
    assert verified(canonical(signed(patient(line))))["status"] == "finished"


def test_a_run_that_ended_for_no_reason_is_not(line: Entry) -> None:
    reason = "epochs: [1, 2] of a finished run, planned [1, 2, 3]"
    assert refused(patient(line, epochs=2)) == reason


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({"epochs": 0}, "evaluation.patience.epochs: Input should be greater than or equal to 1"),
        ({"metric": 3}, "evaluation.patience.metric: Input should be a valid string"),
    ],
)
def test_a_rule_that_cannot_be_is_not(line: Entry, rule: Entry, reason: str) -> None:
    assert refused(patient(line, **rule)) == f"its identity is none of a run: {reason}"


def test_an_anchors_identity_may_end_in_a_templates_digest(sweep: Sweep) -> None:
    entries = [json.loads(text) for text in lines_of(sweep("a", ("npo",), (0,)))]
    anchor = next(entry for entry in entries if entry["kind"] == "fine-tuned")
    anchor["identity"].append("0123456789abcdef")
    anchor["id"] = content_hash(anchor["identity"])
    assert verified(canonical(signed(anchor)))["id"] == anchor["id"]
    anchor["identity"].append("precision bf16")
    anchor["id"] = content_hash(anchor["identity"])
    assert verified(canonical(signed(anchor)))["id"] == anchor["id"]
    anchor["identity"].append("more")
    anchor["id"] = content_hash(anchor["identity"])
    assert "its identity is none of a fine-tuned" in refused(anchor)
