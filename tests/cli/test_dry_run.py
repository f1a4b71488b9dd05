"""`--dry-run`: what would be written where, and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unlearnbench.reporting.leaderboard.merge import Board

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _nothing_is_written(run: Run) -> Iterator[None]:
    """Makes a sweep's folder, and compares all files before and after."""
    del run  # has changed to a folder of its own
    place = Path("runs/mine/records/5f0c")
    place.mkdir(parents=True)
    (place / "record.json").write_text("{}")
    (place.parents[1] / "results.csv").write_text("\n")
    before = sorted(Path().rglob("*"))
    yield
    assert sorted(Path().rglob("*")) == before


def test_of_a_sweep_is_its_plan(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def flops(*_: object) -> float:
        return 1e10

    monkeypatch.setattr("unlearnbench.estimates.machine_time.measured_flops", flops)
    code, out, err = run("sweep", "small.yaml", "--dry-run")
    assert (code, err) == (0, "dry run: the plan; nothing is run or written\n")
    assert out == run("plan", "small.yaml")[1]
    _, out, _ = run("quickstart", "--dry-run", "--json", "--set", "epochs=1")
    assert json.loads(out)["counts"]["runs"] == len(json.loads(out)["runs"])


def test_of_a_page(run: Run) -> None:
    assert run("report", "runs/mine", "--dry-run")[1].splitlines() == [
        "would write runs/mine/report.html",
        "would write runs/mine/results.csv, in place of what is there",
    ]
    out = run("report", "runs/mine", "--out", "a.html", "--latex", "t.tex", "--dry-run")[1]
    assert out == "would write a.html\nwould write a.csv\nwould write t.tex\n"
    assert run("report", "runs", "--dry-run")[0] == 2


def test_of_tracking(run: Run) -> None:
    code, out, _ = run("track", "runs/mine", "--uri", "http://me:secret@h:1", "--dry-run")
    assert code == 0
    assert out == "would log to http://h:1 those of 1 records that it does not have\n"


def test_of_a_leaderboard(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_files: list[str]) -> Board:
        return Board(("{}",), (), 0, ())

    monkeypatch.setattr("unlearnbench.cli.leaderboard._read", read)
    code, out, _ = run("leaderboard", "merge", "a.jsonl", "--out", "b.jsonl", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "would write b.jsonl")


def test_of_a_package(run: Run) -> None:
    code, out, _ = run("methods", "new", "my-method", "--dry-run")
    assert (code, out.splitlines()[2]) == (0, "would write my-method/my_method.py")
    code, _, err = run("methods", "new", "My Method", "--dry-run")
    assert (code, "try 'my-method'" in err) == (2, True)
