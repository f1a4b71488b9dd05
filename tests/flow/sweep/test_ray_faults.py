"""A sweep that is cut short again and again, by real signals: it costs time, and never a number.

`integration/test_end_to_end.py` stops one by SIGTERM.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.errors import RecordError
from unlearnbench.results.records import read_records

DRIVER = """
import runpy, sys
from pathlib import Path
if __name__ == "__main__":
    names, place = runpy.run_path(sys.argv[1]), Path(sys.argv[2])
    ray = names["RaySettings"](concurrent=1, retries=1)
    config = names["a_config"](place / "out", names["SIX_RATES"], ray=ray)
    names["run_sweep"](config, None, names["fake_pipeline"](place / "marks", seconds=0.5))
"""
FAKES = Path(__file__).with_name("test_driver.py")
RUNS = 12
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


class Driver:
    """A sweep of twelve runs of two epochs in a process of its own."""

    def __init__(self, place: Path) -> None:
        script = place / "driver.py"
        script.write_text(DRIVER, encoding="utf-8")
        self.place, self.output = place, place / "output.txt"
        # Without the variables of a Ray in this process.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TUNE_"))}
        with self.output.open("a") as output:
            command = [sys.executable, str(script), str(FAKES), str(place)]
            self.process = subprocess.Popen(command, stderr=output, env=env)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def printed(self, text: str, times: int = 1) -> bool:
        return self.output.read_text(encoding="utf-8").count(text) >= times

    def marks(self, kind: str) -> list[Path]:
        return sorted((self.place / "marks").glob(f"{kind}.*"))

    def has_recorded_a_run(self) -> bool:
        """True if a run has written its record, which it does after its mark."""
        return any((self.place / "out" / "small" / "records").glob("[!.]*/record.json"))

    def workers(self) -> set[int]:
        """Process ids of the workers of all runs so far."""
        return {int(path.name.rpartition(".")[2]) for path in self.marks("try")}

    def is_in_a_run(self) -> bool:
        """True if a run has begun since the last one ended."""
        times = {kind: [p.stat().st_mtime_ns for p in self.marks(kind)] for kind in ("try", "end")}
        return max(times["try"], default=0) > max(times["end"], default=0)

    def newest_worker(self) -> int:
        newest = max(self.marks("try"), key=lambda path: path.stat().st_mtime_ns)
        return int(newest.name.rpartition(".")[2])

    def wait_for(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        """Wait for a condition, which has to come true before the process ends."""
        wait_until(lambda: condition() or self.process.poll() is not None, seconds)
        assert condition(), self.output.read_text(encoding="utf-8")


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def have_ended(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def read(path: Path) -> str:
    """Read a file of /proc, whose process may be gone."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def target(link: Path) -> str:
    """Read a link of /proc, whose file may be closed."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


def listening_addresses(driver: int) -> set[str]:
    """Addresses, as /proc writes them, at which the driver's descendants take connections."""
    parents = {
        int(stat.parent.name): int(text.rpartition(")")[2].split()[1])
        for stat in Path("/proc").glob("[0-9]*/stat")
        if (text := read(stat))
    }
    family = {driver}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    links = (link for pid in family for link in Path(f"/proc/{pid}/fd").glob("*"))
    inodes = {
        place.removeprefix("socket:[").removesuffix("]")
        for place in map(target, links)
        if place.startswith("socket:[")
    }
    tables = [read(Path(f"/proc/net/{name}")) for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_a_sweep_survives_every_way_to_be_cut_short(tmp_path: Path) -> None:
    fakes: dict[str, Any] = runpy.run_path(str(FAKES))
    folder = tmp_path / "out" / "small"
    ray = fakes["RaySettings"](concurrent=1, retries=0)
    config = fakes["a_config"](tmp_path / "out", fakes["SIX_RATES"], ray=ray)

    def sweep() -> Any:
        return fakes["sweep"](config, fakes["fake_pipeline"](tmp_path / "marks"))

    with Driver(tmp_path) as driver:
        driver.wait_for(driver.has_recorded_a_run)
        addresses = listening_addresses(driver.process.pid)
        assert addresses
        assert addresses <= LOOPBACK
        with pytest.raises(RecordError, match=f"process {driver.process.pid} on"):
            sweep()
        assert len(driver.workers()) == 1, "a worker is reused from run to run"
        for count in (1, 2):  # more often than a run may fail without an epoch in between
            # In a run: Tune would give the next run a worker that died between two runs.
            driver.wait_for(driver.is_in_a_run)
            pid, ended = driver.newest_worker(), len(driver.marks("end"))
            os.kill(pid, signal.SIGKILL)
            died = "its process died: killed, or out of memory; trying again"
            driver.wait_for(partial(driver.printed, died, count))
            driver.wait_for(lambda: len(driver.marks("end")) > ended)  # noqa: B023
        driver.process.send_signal(signal.SIGKILL)
        assert driver.process.wait(30) == -signal.SIGKILL
        wait_until(lambda: have_ended(driver.workers()), 30)
    records = read_records(folder)
    assert {record.status for record in records} == {"finished"}
    assert 1 <= len(records) < RUNS
    assert len(driver.marks("end")) <= len(records) + 3, "only what was in flight is run again"

    # A damaged record.
    victim = records[0]
    file = folder / "records" / victim.id / "record.json"
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    with pytest.raises(RecordError, match=r"record\.json: damaged"):
        read_records(folder)
    result, lines = sweep()
    assert f"set aside as {victim.id}.damaged, and done again" in "\n".join(lines)
    assert (result.total, result.finished, result.failed) == (RUNS, RUNS, 0)
    assert [record.status for record in read_records(folder)] == ["finished"] * RUNS
    assert not list((folder / "records").glob(".*"))
