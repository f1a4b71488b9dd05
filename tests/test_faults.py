"""What may befall a sweep from outside, with real processes: each costs time, never a number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from unlearnbench.errors import RecordError
from unlearnbench.records import read_records

pytestmark = pytest.mark.slow

DRIVER = """
import runpy, sys
from pathlib import Path
if __name__ == "__main__":
    names = runpy.run_path(sys.argv[1])
    from unlearnbench.sweep import run_sweep
    place = Path(sys.argv[2])
    config = names["a_config"](place / "out", (1e-5, 2e-5, 3e-5))
    run_sweep(config, None, names["fake_runtime"](place / "marks", **eval(sys.argv[3])))
"""
PREEMPTED = "stopped by SIGTERM; what is finished is kept; trying again"
FAKES = Path(__file__).with_name("test_sweep.py")


class Driver:
    """A sweep of six runs of two epochs in a process of its own."""

    def __init__(self, place: Path, how: str = "{'seconds': 0.5}") -> None:
        script = place / "driver.py"
        script.write_text(DRIVER, encoding="utf-8")
        self.place, self.said = place, place / "said.txt"
        command = [sys.executable, str(script), str(FAKES), str(place), how]
        with self.said.open("a") as said:
            self.process = subprocess.Popen(command, stderr=said)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def tells(self, text: str, times: int = 1) -> bool:
        return self.said.read_text(encoding="utf-8").count(text) >= times

    def has_another_worker(self, pid: int) -> bool:
        return self.worker() != pid

    def marks(self, kind: str) -> list[Path]:
        return sorted((self.place / "marks").glob(f"{kind}.*"))

    def records(self) -> list[Path]:
        return [*(self.place / "out" / "small" / "records").glob("[!.]*")]

    def workers(self) -> set[int]:
        """Of all trials so far."""
        return {int(path.name.rpartition(".")[2]) for path in self.marks("try")}

    def wait_for(self, what: Callable[[], object], seconds: float = 60.0) -> None:
        wait_until(lambda: what() or self.process.poll() is not None, seconds)
        assert what(), self.said.read_text(encoding="utf-8")

    def end(self, seconds: float = 90.0) -> int:
        return self.process.wait(timeout=seconds)

    def worker(self) -> int:
        """Of the trial that was begun last."""
        last = max(self.marks("try"), key=lambda path: path.stat().st_mtime_ns)
        return int(last.name.rpartition(".")[2])


def process_of(driver: int, name: str) -> int:
    """The process called `name` that `driver` has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            own, _, rest = stat.read_text(encoding="utf-8").partition(") ")
        except OSError:
            continue
        if own.endswith(f"({name}") and int(rest.split()[1]) == driver:
            return int(stat.parent.name)
    raise AssertionError(f"{driver} has no process {name}")


def wait_until(what: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def gone(pids: set[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ray_is_started_again_when_its_raylet_dies(tmp_path: Path) -> None:
    with Driver(tmp_path) as driver:
        driver.wait_for(lambda: driver.marks("end"))
        workers = driver.workers()
        begin = time.monotonic()
        os.kill(process_of(driver.process.pid, "raylet"), signal.SIGKILL)
        driver.wait_for(lambda: driver.tells("Ray is gone: its process raylet died"), 10)
        assert time.monotonic() - begin < 10, "noticed within seconds"
        driver.wait_for(lambda: gone(workers), 20)
        assert driver.end() == 0
    records = read_records(tmp_path / "out" / "small")
    assert [record.status for record in records] == ["finished"] * 6
    assert len(driver.marks("end")) <= 6 + 2, "only what was under way is done again"


def test_the_death_of_rays_gcs_holds_nobody_up(tmp_path: Path) -> None:
    with Driver(tmp_path) as driver:
        driver.wait_for(lambda: driver.marks("end"))
        workers = driver.workers()
        os.kill(process_of(driver.process.pid, "gcs_server"), signal.SIGKILL)
        driver.wait_for(lambda: driver.tells("process gcs_server died"), 15)
        if (code := driver.end()) == 2:  # it was asking the GCS for something at that moment
            assert driver.tells("start the same command when Ray can run")
            wait_until(lambda: gone(workers), 20)
            with Driver(tmp_path) as again:
                code = again.end()
        assert code == 0
    records = read_records(tmp_path / "out" / "small")
    assert [record.status for record in records] == ["finished"] * 6


def test_sigterm_ends_a_sweep_and_a_pre_empted_worker_is_no_failure(tmp_path: Path) -> None:
    with Driver(tmp_path, "{'seconds': 0.7}") as driver:
        driver.wait_for(lambda: driver.marks("try"))
        for count in (1, 2, 3):  # more often than a run may fail
            pid = driver.worker()
            os.kill(pid, signal.SIGTERM)
            driver.wait_for(partial(driver.tells, PREEMPTED, count))
            driver.wait_for(partial(driver.has_another_worker, pid))
        driver.wait_for(driver.records)
        driver.process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        assert driver.end() == 128 + 15
        assert time.monotonic() - begin < 10
    assert gone(driver.workers())
    folder = tmp_path / "out" / "small"
    assert {record.status for record in read_records(folder)} == {"finished"}
    assert not (folder / ".stop").exists()
    assert not driver.tells("failed")

    # The same command, with a record that something has damaged and a disk that is full for it.
    (victim, *_) = read_records(folder)
    file = folder / "records" / victim.id / "record.json"
    file.write_text(file.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    finished = len(read_records_but(folder, victim.id))
    with pytest.raises(RecordError, match=r"record\.json: damaged"):
        read_records(folder)
    with Driver(tmp_path, f"{{'full': {victim.learning_rate}}}") as driver:
        assert driver.end() == 0
    assert driver.tells(f"set aside as {victim.id}.damaged, and done again")
    reason = "the record cannot be written: File too large; mend that and start the same command"
    assert driver.tells(f"failed: RecordError: {folder / 'records' / victim.id}: {reason}")
    records = {record.id: record.status for record in read_records(folder)}
    assert len(records) == 6
    assert records[victim.id] == "failed"
    assert list(records.values()).count("finished") >= finished
    with Driver(tmp_path, "{}") as driver:
        assert driver.end() == 0
    assert [record.status for record in read_records(folder)] == ["finished"] * 6


def read_records_but(folder: Path, name: str) -> list[Path]:
    return [path for path in (folder / "records").glob("[!.]*") if path.name != name]
