"""`unlearnbench report`, `export-log`, `track` and `ui`: output and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.cli.main import main
from unlearnbench.evaluation.tofu_log import read_log
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.sweep_folder import lock_folder
from unlearnbench.tracking import ReplayResult


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the functions behind the commands."""
    found: list[Any] = []

    def replay(folder: Path, uri: str | None) -> ReplayResult:
        found.append((folder, uri))
        return ReplayResult("http://h:1", 2, 3, "http://h:1/#/experiments/7/runs/f00d")

    def show_in_mlflow(folder: Path, port: int, show: Any) -> None:
        found.append((folder, port))
        show("http://h:1")

    monkeypatch.setattr("unlearnbench.tracking.replay", replay)
    monkeypatch.setattr("unlearnbench.tracking.show_in_mlflow", show_in_mlflow)
    return found


def test_track_prints_counts_server_and_page(
    folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["track", str(folder), "--uri", "http://h:1"]) == 0
    assert capsys.readouterr().out == (
        "2 of 3 records logged to http://h:1, 1 were there already\n"
        "page  http://h:1/#/experiments/7/runs/f00d\n"
    )
    assert main(["track", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "store": "http://h:1",
        "logged": 2,
        "records": 3,
        "address": "http://h:1/#/experiments/7/runs/f00d",
    }
    assert calls == [(folder, "http://h:1"), (folder, None)]


def test_track_refuses_a_folder_that_a_sweep_works_in(
    folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_folder(folder):
        assert main(["track", str(folder)]) == 2
    assert "another command works in it" in capsys.readouterr().err
    assert calls == []


def test_ui_passes_its_options_on(
    folder: Path, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(folder)]) == 0
    assert main(["ui", str(folder), "--port", "8080"]) == 0
    assert calls == [(folder, 5000), (folder, 8080)]
    assert capsys.readouterr().out == "http://h:1\n" * 2
    assert main(["ui", str(folder / "records")]) == 2
    assert "not a sweep folder" in capsys.readouterr().err


OLD = Path(__file__).parent.parent / "data" / "old_sweep"


@pytest.fixture(scope="module")
def ones() -> dict[str, Record]:
    """A record of the old sweep by kind."""
    return {record.kind: record for record in read_records(OLD)}


def test_a_record_is_exported_as_tofus_log(
    ones: dict[str, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = ones["run"], tmp_path / "log.json"
    last = max(run.evaluations)
    assert main(["export-log", str(OLD), run.id[:6], "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"log  {out}  {run.method}, epoch {last}\n"
    own, back = run.evaluations[last].sets, read_log(out).sets
    for name in own:
        assert back[name].generated == own[name].generated
        np.testing.assert_array_equal(back[name].perturbed_loss, own[name].perturbed_loss)
    words = ["export-log", str(OLD), ones["retain"].id, "--out", str(out), "--epoch", "0"]
    assert main(words) == 0
    retain = ones["retain"].evaluations[0].sets["forget"]
    np.testing.assert_array_equal(read_log(out).sets["forget"].answer_loss, retain.answer_loss)
