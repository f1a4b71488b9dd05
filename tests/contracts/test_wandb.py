"""Weights & Biases as a tracker, offline: what it logged is read back.

The package is an extra. `make test-wandb` runs this file in an environment that has it.
"""

import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.tracker import SweepSummary, TrackedSweep
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.answer_table import COLUMNS
from unlearnbench.report.sweep_tracker import SweepTracker, replay, sweep_config
from unlearnbench.report.wandb_tracker import WandbTracker
from unlearnbench.results.records import read_records

pytest.importorskip("wandb", reason="wandb is an extra: make test-wandb")
ROOT = Path(__file__).resolve().parents[2]
SWEEP = ROOT / "tests" / "data" / "small_sweep"
BLOCK = 1 << 15


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log without an account, and print nothing."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def stored(path: Path) -> Iterator[Any]:
    """The records of a run's file, which is in the form of LevelDB's log."""
    kinds = import_module("wandb.proto.wandb_internal_pb2")
    data, place, message = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := BLOCK - place % BLOCK) < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        message += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = kinds.Record()
            record.ParseFromString(message)
            message = b""
            yield record


def history_of(file: Path) -> list[dict[str, Any]]:
    """The lines that a run has logged."""
    return [
        {".".join(item.nested_key): json.loads(item.value_json) for item in entry.history.item}
        for entry in stored(file)
        if entry.WhichOneof("record_type") == "history"
    ]


def test_what_is_logged_offline_is_read_back(tmp_path: Path) -> None:
    config, records = sweep_config(SWEEP), read_records(SWEEP)
    warnings: list[str] = []
    page = tmp_path / "report.html"
    page.write_text("<p>")
    settings = TrackingSettings(tracker="wandb", uri=str(tmp_path))
    with SweepTracker(settings, SWEEP, config, warn=warnings.append) as logged:
        for record in records:
            logged.log(record)
        logged.settle()
        logged.log_files([page])
    assert warnings == []
    run = next(record for record in records if record.kind == "run")
    (file,) = tmp_path.rglob(f"*-{run.id}.wandb")
    history = history_of(file)
    last = run.epochs[-1]
    utility = {line["epoch"]: line["model_utility"] for line in history if "model_utility" in line}
    assert utility[last.epoch] == last.metrics["model_utility"]
    loss = {line["step"]: line["train/loss"] for line in history if "train/loss" in line}
    assert loss == {step.step: step.loss for step in run.steps}
    (path,) = [line["answers.path"] for line in history if "answers.path" in line]
    table, *_ = tmp_path.rglob(Path(path).name)  # equal files at two places
    content = json.loads(table.read_text(encoding="utf-8"))
    assert tuple(content["columns"]) == COLUMNS
    forget = run.evaluations[content["data"][0][-1]].sets["forget"]
    assert content["data"][0][:2] == [forget.questions[0], forget.generated[0]]
    (file,) = tmp_path.rglob("*-sweep.wandb")
    names = [f.path for entry in stored(file) for f in entry.files.files]
    assert "report.html" in names


def test_a_finished_sweep_is_logged_with_its_conclusion(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(SWEEP, folder)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["config"]["tracking"] = {"tracker": "wandb", "uri": str(tmp_path)}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert replay(folder).logged == len(read_records(SWEEP))
    (file,) = tmp_path.rglob("*-sweep.wandb")
    notes = [entry.run.notes for entry in stored(file) if entry.WhichOneof("record_type") == "run"]
    assert any("Artifacts:" in note for note in notes)


def test_the_name_of_the_sweeps_run_says_that_its_numbers_are_means(tmp_path: Path) -> None:
    tracker = WandbTracker()
    tracker.start(TrackedSweep("5eed", "small", "benchmark", tmp_path))
    tracker.summarize(SweepSummary("Found.", {"best/kept": 0.5}, {}, "mean of 3 seeds"))
    tracker.finish("finished")
    (file,) = tmp_path.rglob("*-sweep.wandb")
    runs = [entry.run for entry in stored(file) if entry.WhichOneof("record_type") == "run"]
    assert runs[0].display_name == "sweep small"
    assert runs[-1].display_name == "sweep small (mean of 3 seeds)"
