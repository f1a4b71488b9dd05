"""`unlearnbench bench attacks`: what it prints, records and returns."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.registry import load
from unlearnbench.bench import attacks
from unlearnbench.bench.measured_models import MeasuredModels
from unlearnbench.cli.main import main

NAMES = ("quantization", "paraphrase", "relearning")
QUICK = ("bench", "attacks", "--quick", "--rows", "3", "--names")


@pytest.fixture(autouse=True)
def _ready(make_model: Callable[[], Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that need not be trained first."""

    class Ready(MeasuredModels):
        """The small model in every state."""

        def load(self, state: str) -> tuple[Any, Any]:
            """A model of random weights."""
            del state
            return make_model(), tokenizer

    monkeypatch.setattr(attacks, "MeasuredModels", Ready)


def test_attacks_are_measured_and_recorded_and_weights_that_changed_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record.jsonl"
    assert main([*QUICK, *NAMES, "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert "as before" in out
    assert "CHANGED" not in out
    (result,) = map(json.loads, record.read_text().splitlines())
    assert {"date", "device", "threads", "git", "versions"} <= result.keys()
    ((state,), settings) = result["states"], result["settings"]
    assert (state["state"], settings["repeats"]) == ("unlearned", 1)
    rounded, asked, trained = state["attacks"]
    assert (rounded["name"], rounded["points"], rounded["settings"]["codes"]) == (
        "quantization",
        1,
        ["nf4"],
    )
    assert {*rounded["seconds"]} == {"plain", "attack", "weights"}
    assert {*trained["seconds"]} == {*rounded["seconds"]}
    assert trained["points"] == 5
    assert {*asked["seconds"]} == {"plain", "attack"}
    median = rounded["median_seconds"]
    claimed = median["attack"] / max(median["attack"] - median["weights"], 1e-9)
    assert rounded["limit"]["measured"] == pytest.approx(claimed)
    assert asked["limit"] is None

    monkeypatch.setattr(attacks, "restored", nullcontext)
    assert main([*QUICK, *NAMES[:2], "--markdown"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum("CHANGED" in line for line in lines) == 2
    assert all(line.count("|") in (0, 6, 8) for line in lines)


def test_claims_are_of_evaluations_steps_and_samples() -> None:
    found = attacks.LIMITS["quantization"](load("attacks", "quantization")(), seconds(10.5, 0.5))
    assert (found.measured, found.most) == (1.05, 1.05)
    relearning: Any = load("attacks", "quantization")(codes=("nf4", "fp4"))  # any, of two points
    found = attacks.LIMITS["relearning"](relearning, seconds(17, 3))
    assert (found.claim, found.measured) == ("evaluations at 2 points, of a plain one", 1.4)

    class Sampled(SamplingAttack):
        """Any that samples."""

        label = "Sampled"

    found = attacks.LIMITS["sampling"](Sampled(samples=8), {**seconds(17, 0), "one_sample": 8.5})
    assert (found.claim, found.measured) == ("attack, of 8 attacks with a sample each", 0.25)


def seconds(attack: float, weights: float) -> dict[str, float]:
    return {"plain": 10.0, "attack": attack, "weights": weights}


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attacks", "--names", "quantisation"]) == 2
    assert "did you mean 'quantization'?" in capsys.readouterr().err
