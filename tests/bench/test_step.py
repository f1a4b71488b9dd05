"""`unlearnbench bench step`: a method's step, the usual way and ours, is the same step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.bench import measured_models as models
from unlearnbench.bench.step import StepBench, objective_of
from unlearnbench.cli.main import main

QUICK = ("bench", "step", "--batch-size", "4", "--repeats", "1")
TRAINED = [
    name
    for name in registry.names("methods")
    if registry.trains(name) and not objective_of(name).needs.parts & {"sample", "alternative"}
]


def no_process(*_: Any) -> int:
    """Stands for a measurement of memory."""
    return 1 << 20


@pytest.fixture(autouse=True)
def smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.ARCHITECTURES, "tiny", models.ARCHITECTURES["quick"])
    monkeypatch.setattr("unlearnbench.bench.step.EPOCHS", 2)  # each has 20 steps


@pytest.fixture(scope="module")
def bench() -> Any:
    return StepBench("quick", "synthetic", 4)


@pytest.mark.parametrize("name", [*TRAINED, "npo+nll", "ce-u+kl"])
def test_all_ways_have_the_same_first_loss(name: str, bench: Any) -> None:
    seconds, losses = bench.measured(name, 1)
    assert set(seconds) == set(losses)
    assert {"usual", "ours"} <= set(losses)
    for loss in losses.values():
        assert loss == pytest.approx(losses["usual"], rel=1e-4, abs=1e-6)


def test_it_measures_prints_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlearnbench.bench.step.peak_in_process", no_process)
    record = tmp_path / "record.jsonl"
    assert main([*QUICK, "--methods", "npo+nll", "kto", "--record", str(record)]) == 0
    out = capsys.readouterr().out
    assert "npo+nll" in out
    assert "agree to" in out
    assert "DIFFER" not in out
    result = json.loads(record.read_text())
    first, second = result["results"]
    assert first["overhead"] is not None
    assert second["overhead"] is None, "there is no bare loop with statistics"


def test_different_losses_show_in_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unlearnbench.bench.step.AGREE", -1.0)
    monkeypatch.setattr("unlearnbench.bench.step.peak_in_process", no_process)
    assert main([*QUICK, "--methods", "ce-u"]) == 1
    assert "DIFFER" in capsys.readouterr().out


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["--methods", "npo+nil"], "a retain term is nll or kl, got nil"),
        (["--methods", "eco"], "it trains nothing"),
        (["--methods", "grpo"], "it generates text"),
        (["--methods", "npoo"], "did you mean 'npo'?"),
    ):
        assert main([*QUICK, *words]) == 2
        assert told in capsys.readouterr().err
