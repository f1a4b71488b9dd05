"""A sweep whose process is killed: it costs time, and never a number.

`integration/test_end_to_end.py` stops one by SIGTERM; in `test_driver.py` a worker is killed.
"""

from __future__ import annotations

import runpy
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray._private import ray_constants

from unlearnbench.base.errors import RecordError
from unlearnbench.results.records import read_records

from ...forked import start, wait

DRIVER = """
import os, runpy, sys
from pathlib import Path
for name in [*os.environ]:  # those of a Ray in the process of the tests
    if name.startswith(("RAY_", "TUNE_")):
        del os.environ[name]
from unlearnbench.sweep import ray_cluster
from unlearnbench.sweep.driver import run_sweep
def start(config, start=ray_cluster.start):
    from ray._private import ray_constants
    ray_constants.SETUP_WORKER_FILENAME = sys.argv[1]
    start(config)
ray_cluster.start = start
names, place = runpy.run_path(sys.argv[2]), Path(sys.argv[3])
ray = names["RaySettings"](concurrent=1, retries=1)
config = names["a_config"](place / "out", names["SIX_RATES"], ray=ray)
run_sweep(config, None, names["fake_pipeline"](place / "marks", seconds=0.5))
"""
FAKES = Path(__file__).with_name("test_driver.py")
RUNS = 12
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


class Driver:
    """A sweep of twelve runs of two epochs in a process of its own."""

    def __init__(self, place: Path) -> None:
        self.place, self.output = place, place / "output.txt"
        words = [ray_constants.SETUP_WORKER_FILENAME, str(FAKES), str(place)]
        self.process = start(DRIVER, words, output=self.output)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()

    def marks(self, kind: str) -> list[Path]:
        return sorted((self.place / "marks").glob(f"{kind}.*"))

    def has_recorded_a_run(self) -> bool:
        """True if a run has written its record, which it does after its mark."""
        return any((self.place / "out" / "small" / "records").glob("[!.]*/record.json"))

    def workers(self) -> set[int]:
        """Process ids of the workers of all runs so far."""
        return {int(path.name.rpartition(".")[2]) for path in self.marks("try")}

    def wait_for(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        """Wait for a condition, which has to come true before the process ends."""
        wait_until(lambda: condition() or self.process.exitcode is not None, seconds)
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


def listening_addresses(family: set[int]) -> set[str]:
    """Addresses, as /proc writes them, at which processes and descendants take connections."""
    parents = {
        int(stat.parent.name): int(text.rpartition(")")[2].split()[1])
        for stat in Path("/proc").glob("[0-9]*/stat")
        if (text := read(stat))
    }
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family = family | grown
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
@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
def test_a_sweep_whose_process_is_killed_goes_on(tmp_path: Path) -> None:
    fakes: dict[str, Any] = runpy.run_path(str(FAKES))
    folder = tmp_path / "out" / "small"
    ray = fakes["RaySettings"](concurrent=1, retries=0)
    config = fakes["a_config"](tmp_path / "out", fakes["SIX_RATES"], ray=ray)

    def sweep() -> Any:
        return fakes["sweep"](config, fakes["fake_pipeline"](tmp_path / "marks"))

    with Driver(tmp_path) as driver:
        driver.wait_for(driver.has_recorded_a_run)
        assert len(driver.workers()) == 1, "a worker is reused from run to run"
        addresses = listening_addresses({driver.process.pid or 0, *driver.workers()})
        assert addresses
        assert addresses <= LOOPBACK
        with pytest.raises(RecordError, match=f"process {driver.process.pid} on"):
            sweep()
        driver.process.kill()
        assert wait([driver.process], 30) == [-signal.SIGKILL]
        wait_until(lambda: have_ended(driver.workers()), 30)
    records = read_records(folder)
    assert {record.status for record in records} == {"finished"}
    assert 1 <= len(records) < RUNS
    assert len(driver.marks("end")) <= len(records) + 1, "only what was in flight is run again"

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
