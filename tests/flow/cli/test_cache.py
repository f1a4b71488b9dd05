"""`unlearnbench cache list` and `clear`."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from unlearnbench.results.sweep_folder import lock_folder

Run = Callable[..., tuple[int, str, str]]
CACHE = Path("runs/cache")


def test_entries_are_listed_and_cleared_by_age_and_records_are_kept(run: Run) -> None:
    for name, age in {"full-1a": 40, "retain90-2b": 1}.items():
        folder = CACHE / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(5000))
        os.utime(folder, (0, time.time() - age * 86400))
    (CACHE / "reference").mkdir()
    (CACHE / "reference/3c.safetensors").write_text("{}")
    Path("runs/mine/records/5e").mkdir(parents=True)
    _, out, _ = run("cache", "list")
    assert "runs/cache/models/full-1a            5.0 kB        40" in out
    with lock_folder(Path("runs/mine")):
        code, _, err = run("cache", "clear", "--older-than", "0")
    assert (code, "mine (process " in err) == (2, True)
    assert run("cache", "clear", "--older-than", "30")[1] == "removed 1 entries, 5.0 kB\n"
    assert [p.name for p in (CACHE / "models").iterdir()] == ["retain90-2b"]
    assert run("cache", "clear", "--older-than", "0")[1] == "removed 2 entries, 5.0 kB\n"
    assert run("cache", "clear", "--older-than", "0", "--cache", "runs/mine")[1].startswith(
        "removed 0 "
    )
    assert Path("runs/mine/records/5e").is_dir()
