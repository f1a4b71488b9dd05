"""`unlearnbench sweep`, `quickstart` and `run` carry out runs and print what was made."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unlearnbench.console import Console
from unlearnbench.results.outcomes import RunOutcome
from unlearnbench.sweep.sweep_state import SweepResult

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run_single(spec: Any, config: Any, folder: Any, log: Any) -> Any:
        calls.append((spec, config, folder))
        log("epoch 1")
        metrics = {"model_utility": 0.5, "log10_forget_quality": float("-inf")}
        epoch = SimpleNamespace(epoch=1, metrics=metrics)
        if spec.seed == 1:
            error = "NaN loss at step 7 (epoch 1)\nA lower learning rate often avoids this"
            return SimpleNamespace(id=spec.id, status="collapsed", epochs=(), error=error)
        return SimpleNamespace(id=spec.id, status="finished", epochs=(epoch,), error=None)

    fake = ModuleType("unlearnbench.runs.run")
    fake.run_single = run_single  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unlearnbench.runs.run", fake)
    return calls


def test_run_lists_the_runs_until_one_is_selected(run: Run, done: list[Any]) -> None:
    code, out, err = run("run", "small.yaml")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 13
    assert lines[0].split()[0] == "0"
    assert lines[0].endswith("ce-u · tiny · forget 0.1 · lr 1e-05 · 2 epochs · seed 0")
    assert lines[-1] == "small is more than one run; choose one with --select POSITION or ID"
    assert done == []
    identity = lines[5].split()[1]
    code, out, err = run("run", "small.yaml", "--select", identity[:8], "--json")
    assert code == 0
    assert [call[0].id for call in done] == [identity]
    epochs = [{"epoch": 1, "model_utility": 0.5, "log10_forget_quality": None}]
    shown = {"id": identity, "status": "finished", "found": False, "error": None}
    assert json.loads(out) == shown | {"epochs": epochs}
    assert "epoch 1" in err
    assert done[0][2] == Path("runs/small")
    assert Path("runs/small/plan.json").is_file()


def fake(monkeypatch: pytest.MonkeyPatch, failed: int) -> list[Any]:
    calls: list[Any] = []

    def run_sweep(config: Any, _: Console) -> Any:
        calls.append(config)
        folder = Path("runs") / config.name
        ends = [RunOutcome(f"npo {i}", "failed", "no memory") for i in range(failed)]
        ends += [RunOutcome("ce-u at 0.001", "collapsed", "NaN loss at step 1 (epoch 1)")]
        ends += [RunOutcome(f"idk {i}", "finished") for i in range(3)]
        return SweepResult(
            folder=folder,
            total=len(ends),
            ends=tuple(ends),
            found=2,
            report=folder / "report.html",
            csv=folder / "results.csv",
            mlflow_command=f"unlearnbench ui {folder}",
            seconds={"training": 2.0},
        )

    module = ModuleType("unlearnbench.sweep")
    module.run_sweep = run_sweep  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unlearnbench.sweep", module)
    return calls


def test_sweep_prints_the_selection_with_its_rule(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, failed=0)
    numbers = {"mean": 0.5, "standard_deviation": None}
    place = {"model": "tiny", "forget_fraction": 0.1, "learning_rate": 1e-5, "epoch": 2}
    reported = {"seeds": [1], "model_utility": numbers, "log10_forget_quality": numbers}
    known = {"setting": "npo (beta=0.1)", "method": "npo", "why_not": "", "reported": reported}
    none = {"setting": "", "method": "ce-u", "why_not": "no setting keeps 0.8"}
    choices = [place | known, place | known | none]
    folder = Path("runs/small")
    folder.mkdir(parents=True)
    selection = {"rule": "the best", "chosen_on_seeds": [0], "choices": choices}
    (folder / "selection.json").write_text(json.dumps(selection), encoding="utf-8")
    both = ("--set", "seeds=[0, 1]", "--set", "select={seeds: [0]}")
    _, out, _ = run("sweep", "small.yaml", *both)
    title, _, npo, ceu, rule, *_ = out.splitlines()
    assert title == "best of each method, chosen on seeds 0, reported on others"
    assert " ".join(npo.split()) == "tiny 0.1 npo (beta=0.1) 1e-05 2 0.5 - 0.5 - 1"
    assert " ".join(ceu.split()).endswith(" - - - - no setting keeps 0.8")
    assert rule == "rule: the best"
    _, out, _ = run("sweep", "small.yaml", "--json", *both)
    assert json.loads(out)["selection"] == selection
    _, out, _ = run("sweep", "small.yaml", "--json")
    assert "selection" not in json.loads(out), "this sweep selects nothing"


def test_failed_runs_give_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, failed=1)
    code, out, _ = run("sweep", "small.yaml", "--json")
    assert code == 1
    summary = json.loads(out)
    counts = {name: summary[name] for name in ("finished", "collapsed", "stopped", "failed")}
    assert counts == {"finished": 3, "collapsed": 1, "stopped": 0, "failed": 1}
    assert [one["status"] for one in summary["without_result"]] == ["failed", "collapsed"]


def test_an_interrupted_sweep_explains_how_to_resume(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, failed=0)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["unlearnbench.sweep"], "run_sweep", interrupted)
    code, _, err = run("sweep", "small.yaml")
    assert code == 130
    assert err == "interrupted; the same command resumes where this one stopped\n"
