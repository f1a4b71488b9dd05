"""The tracker of docs/tutorials/add-a-tracker.md, offline: what it logged is read back."""

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unlearnbench.api.registry import load
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.sweep_tracker import SweepTracker, sweep_config
from unlearnbench.results.records import read_records

pytest.importorskip("wandb", reason="wandb is no dependency of the project")
ROOT = Path(__file__).resolve().parents[2]
SWEEP = ROOT / "tests" / "data" / "small_sweep"
PAGE = (ROOT / "docs" / "tutorials" / "add-a-tracker.md").read_text(encoding="utf-8")
BLOCK = 1 << 15


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's tracker by its name."""
    (code,) = re.findall(r'```python title="wandb_tracker.py"\n(.*?)```', PAGE, re.DOTALL)
    assert len(code.splitlines()) <= 60
    module = ModuleType("wandb_tracker")
    exec(code, module.__dict__)
    monkeypatch.setattr(
        "unlearnbench.report.sweep_tracker.load",
        lambda kind, name: module.WandB if name == "wandb" else load(kind, name),  # pyright: ignore
    )
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


@pytest.mark.usefixtures("tracker")
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
    history = [
        {item.nested_key[0]: json.loads(item.value_json) for item in entry.history.item}
        for entry in stored(file)
        if entry.WhichOneof("record_type") == "history"
    ]
    last = run.epochs[-1]
    utility = {line["epoch"]: line["model_utility"] for line in history if "model_utility" in line}
    assert utility[last.epoch] == last.metrics["model_utility"]
    (file,) = tmp_path.rglob("*-sweep.wandb")
    names = [f.path for entry in stored(file) for f in entry.files.files]
    assert "report.html" in names
