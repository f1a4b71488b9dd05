"""`track` and `ui` on the command line: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.cli import main
from unlearnbench.folder import locked
from unlearnbench.tracking import Replayed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "records").mkdir()
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the stage behind a command was asked for."""
    found: list[Any] = []

    def replay(folder: Path, uri: str | None) -> Replayed:
        found.append((folder, uri))
        return Replayed("http://h:1", 2, 3, "http://h:1/#/experiments/7/runs/f00d")

    def open_ui(folder: Path, **how: Any) -> None:
        found.append((folder, how["port"], how["browser"]))
        how["tell"]("experiment  http://h:1")

    monkeypatch.setattr("unlearnbench.tracking.replay", replay)
    monkeypatch.setattr("unlearnbench.tracking.open_ui", open_ui)
    return found


def test_track_says_how_many_where_and_where_to_look(
    folder: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["track", str(folder), "--uri", "http://h:1"]) == 0
    assert capsys.readouterr().out == (
        "2 of 3 records logged to http://h:1, 1 were there already\n"
        "page  http://h:1/#/experiments/7/runs/f00d\n"
    )
    assert main(["track", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "uri": "http://h:1",
        "logged": 2,
        "records": 3,
        "address": "http://h:1/#/experiments/7/runs/f00d",
    }
    assert asked == [(folder, "http://h:1"), (folder, None)]


def test_track_does_not_log_beside_a_sweep_that_logs(
    folder: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(folder):
        assert main(["track", str(folder)]) == 2
    assert "another command works in it" in capsys.readouterr().err
    assert asked == []


def test_ui_passes_on_what_it_was_told(
    folder: Path, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(folder)]) == 0
    assert main(["ui", str(folder), "--port", "8080", "--no-browser"]) == 0
    assert asked == [(folder, None, True), (folder, 8080, False)]
    assert capsys.readouterr().out == "experiment  http://h:1\n" * 2
    assert main(["ui", str(folder / "records")]) == 2
    assert "no sweep's folder" in capsys.readouterr().err
