"""`unlearnbench cache list` and `clear`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.console import format_bytes
from unlearnbench.files.locks import exclusive_lock
from unlearnbench.results.sweep_folder import lock_folder

Run = Callable[..., tuple[int, str, str]]
CACHE = Path("runs/cache")


@pytest.fixture
def cached(run: Run) -> Run:
    """Makes a cache of four entries beside a record; returns `run`."""
    days = {"full-1a": 40, "retain90-2b": 1}
    for name, age in days.items():
        folder = CACHE / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(
            '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 16}'
        )
        (folder / "model.safetensors").write_bytes(bytes(5000))
        (folder / "prepared.json").write_text('{"seconds": 12.3, "files": {}}')
        (CACHE / "models" / f".{name}.lock").touch()
        os.utime(folder, (0, time.time() - age * 86400))
    for name in ("reference/3c.safetensors", "alternatives/4d.json"):
        (CACHE / name).parent.mkdir()
        (CACHE / name).write_text("{}")
    Path("runs/mine/records/5e").mkdir(parents=True)
    return run


def test_entries_with_size_age_and_origin(cached: Run) -> None:
    _, out, _ = cached("cache", "list")
    assert "models/full-1a  " in out
    assert "5.1 kB  40.0      start model, trained in 12 s" in out
    assert "model of retain90" in out
    rows = {e["name"]: e for e in json.loads(cached("cache", "list", "--json")[1])["entries"]}
    assert len(rows) == 4
    assert rows["alternatives/4d.json"]["bytes"] == 2
    (CACHE / "models/full-1a/prepared.json").write_text("{")
    assert "damaged" in cached("cache", "list")[1]


def test_clear_by_age_name_and_all_keeps_records(cached: Run) -> None:
    assert cached("cache", "clear", "--older-than", "30d")[1] == "removed 1 entries, 5.1 kB\n"
    assert [p.name for p in (CACHE / "models").glob("[!.]*")] == ["retain90-2b"]
    cached("cache", "clear", "reference/3c")
    assert not [*(CACHE / "reference").iterdir()]
    cached("cache", "clear", "--all")
    assert cached("cache", "list")[1] == "runs/cache: nothing is cached\n"
    assert Path("runs/mine/records/5e").is_dir()


def test_what_is_at_work_is_left_alone(cached: Run) -> None:
    with lock_folder(Path("runs/mine")):
        code, _, err = cached("cache", "clear", "--all")
    assert (code, "nothing was removed: mine (process " in err) == (2, True)
    with exclusive_lock(CACHE / "models/.full-1a.lock"):
        code, _, err = cached("cache", "clear", "models")
    assert (code, err) == (0, "models/full-1a: kept, since a process prepares it\n")
    assert (CACHE / "models/full-1a").is_dir()


def test_a_terminal_is_asked(cached: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def refuse(_question: str, *, err: bool) -> bool:
        assert err, "the question is no result"
        return False

    monkeypatch.setattr("typer.confirm", refuse)
    assert cached("cache", "clear", "--all")[1].endswith("nothing was removed\n")
    assert (CACHE / "models/full-1a").is_dir()
    cached("cache", "clear", "--all", "--yes")
    assert not (CACHE / "models/full-1a").exists()


def test_units() -> None:
    assert [format_bytes(size) for size in (0, 999, 1000, 12_345, 3.14e9)] == [
        "0 B", "999 B", "1.0 kB", "12 kB", "3.1 GB",
    ]  # fmt: skip
