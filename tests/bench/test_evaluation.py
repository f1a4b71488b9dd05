"""`unlearnbench bench evaluation`: what it prints, records and returns."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.bench import measured_models, metric_cost
from unlearnbench.bench import roofline as floor
from unlearnbench.cli.main import main

QUICK = ("bench", "evaluation", "--quick", "--rows", "2")


def no_measurement(*_: Any) -> int:
    """Stand in for a measurement of memory, which evaluates twice more."""
    return 1 << 20


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "SECONDS", 0.0)
    monkeypatch.setattr(metric_cost, "TIMES", 1)
    monkeypatch.setattr(measured_models, "QUICK_EPOCHS", 2)


def test_every_state_is_measured_and_recorded_and_a_difference_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "new" / "record.jsonl"
    words = ["--record", str(record), "--models", str(tmp_path / "models")]
    assert main([*QUICK, *words]) == 0
    out = capsys.readouterr().out
    for state in ("memorised", "unlearned", "random"):
        assert f"\n{state}" in out
    for line in ("tokens/s, fast", "so its floor", "peak memory, plain", "tokens from drafts"):
        assert f"\n{line}" in out
    (result,) = map(json.loads, record.read_text().splitlines())
    assert result["versions"]["torch"] == version("torch"), "of the package: no +cu130"
    assert {"date", "device", "threads", "git", "platform"} <= result.keys()
    assert [state["state"] for state in result["states"]] == ["memorised", "unlearned", "random"]
    for state in result["states"]:
        median = state["median_seconds"]
        assert state["agreement"]["agree"]
        assert [*state["metric_cost"]["added"]] == ["EM, ES, LOSS, ZLib, Min-K", "Min-K++"]
        for way in ("plain", "fast"):
            parts = median[way]["scoring"] + median[way]["generation"]
            assert parts == pytest.approx(median[way]["total"])
        assert state["ratio"]["total"] == pytest.approx(
            median["plain"]["total"] / median["fast"]["total"]
        )

    capsys.readouterr()
    monkeypatch.setattr("unlearnbench.bench.evaluation.peak", no_measurement)
    monkeypatch.setattr("unlearnbench.bench.agreement.ALLOWED", {torch.float32: -1.0})
    assert main([*QUICK, "--states", "random", "--markdown", *words]) == 1
    captured = capsys.readouterr()
    assert "DIFFER" in captured.out
    assert "training" not in captured.err  # the models are there
    lines = captured.out.splitlines()
    assert lines[2:4] == ["| model | phase | plain | fast | faster |", "| --- " * 5 + "|"]
    assert all(line.count("|") in (0, 3, 5, 6) for line in lines)
    assert len(record.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    "words", [("--repeats", "0"), ("--threads", "none"), ("--forget", "2"), ("--rows", "-1")]
)
def test_nonsense_is_refused(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "evaluation", *words]) == 2
    assert f"Invalid value for '{words[0]}': " in capsys.readouterr().err
