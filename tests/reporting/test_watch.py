"""A sweep's page while the sweep runs: what is read, what is drawn, what is served."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.main import main
from unlearnbench.console import Console
from unlearnbench.errors import RecordError
from unlearnbench.reporting import report
from unlearnbench.reporting import watch as live
from unlearnbench.reporting.http_server import ServedPage, serve_page
from unlearnbench.reporting.report import Report
from unlearnbench.reporting.watch import Watch, watch
from unlearnbench.results import records
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.results.sweep_folder import lock_folder, lock_owner


def record(name: str, kind: Any = "run", status: Any = "finished") -> Record:
    metrics = {"model_utility": 0.8, "log10_forget_quality": -2.0}
    return Record(
        id=name,
        kind=kind,
        model="tiny",
        forget_fraction=0.1,
        method="npo" if kind == "run" else kind,
        learning_rate=1e-5 if kind == "run" else None,
        seed=0,
        spec={},
        status=status,
        profile="tofu@1",
        epochs=(EpochResult(int(kind == "run"), metrics, 1.0, 1.0),),
    )


def planned(folder: Path, *runs: str) -> None:
    plan = {"name": "small", "config": {"name": "small"}, "runs": [{"id": run} for run in runs]}
    (folder / "plan.json").write_text(json.dumps(plan))


class Clock:
    """Clock that a test advances."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of records on each drawn page."""
    seen: list[int] = []

    def serve(page: str | None, name: str, version: str) -> str:
        return f"{page} {name} {version}"

    def draw(shown: Report) -> str:
        seen.append(len(shown.records))
        return "page"

    def load(_: str, name: str) -> Any:
        return serve if name == "live" else draw

    monkeypatch.setattr(live, "load", load)
    monkeypatch.setattr("unlearnbench.reporting.report.load", load)
    return seen


def test_a_page_is_drawn_when_records_change_and_only_then(
    tmp_path: Path, drawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def noted(place: Path) -> Record:
        read.append(place.name)
        return records.read_record(place)

    monkeypatch.setattr(live, "read_record", noted)
    planned(tmp_path, "a", "b", "c")
    warnings: list[str] = []
    watched = Watch(tmp_path, None, warnings.append)
    assert not watched.refresh()
    assert "no record yet" in watched.status_line()
    versions = {watched.served.version}
    for name in ("a", "b"):
        write_record(record(name), tmp_path)
        assert watched.refresh()
        assert not watched.refresh()
        versions.add(watched.served.version)
    assert drawn == [1, 2]
    assert read == ["a", "b"], "each record is read once"
    assert len(versions) == 3, "each page has a version of its own"
    assert (tmp_path / "report.html").read_text() == "page"
    assert (tmp_path / "results.csv").is_file()
    planned(tmp_path, "a", "b")
    assert watched.refresh(), "the plan stands on the page, too"
    assert not warnings


def test_drawing_takes_at_most_a_tenth_of_the_time_during_a_sweep(
    tmp_path: Path, drawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    build = report.build_report

    def slow(*arguments: Any) -> Any:
        clock.now += 2.0
        return build(*arguments)

    monkeypatch.setattr(live, "build_report", slow)
    watched = Watch(tmp_path, None, print, clock)
    write_record(record("a"), tmp_path)
    with lock_folder(tmp_path):
        watched.refresh()
        write_record(record("b"), tmp_path)
        for _ in range(17):  # two seconds of work, eighteen of rest
            clock.now += 1.0
            watched.refresh()
        assert drawn == [1]
        clock.now += 1.0
        watched.refresh()
        assert drawn == [1, 2]
        write_record(record("c"), tmp_path)
        watched.refresh(last=True)
        assert drawn == [1, 2, 3], "what is left behind is whole"
    write_record(record("d"), tmp_path)
    watched.refresh()
    write_record(record("e"), tmp_path)
    watched.refresh()
    assert drawn[3:] == [4, 5], "without a sweep nobody needs the cores"


def test_status_line(tmp_path: Path, drawn: list[int]) -> None:  # noqa: ARG001
    planned(tmp_path, "a", "b")
    watched = Watch(tmp_path, None, print)
    with lock_folder(tmp_path):
        watched.refresh(5.0)
        assert watched.status_line().startswith("live, no record yet, next refresh ")
        write_record(record("a"), tmp_path)
        watched.refresh(5.0)
        assert watched.status_line().startswith("live, 1 of 2 runs, updated at ")
    watched.refresh(5.0)
    assert watched.status_line().startswith("no sweep runs, 1 of 2 runs, updated at ")
    write_record(record("b", status="failed"), tmp_path)
    watched.refresh(5.0)
    assert watched.status_line().startswith("done, 2 of 2 runs, updated at ")


def test_a_damaged_record_is_skipped_with_one_warning(tmp_path: Path, drawn: list[int]) -> None:
    for name in ("a", "b"):
        write_record(record(name), tmp_path)
    file = tmp_path / "records" / "b" / "record.json"
    whole = file.read_text()
    file.write_text(whole[:40])
    warnings: list[str] = []
    watched = Watch(tmp_path, None, warnings.append)
    watched.refresh()
    (tmp_path / "records" / "b" / "touched").touch()
    planned(tmp_path, "a", "b")
    watched.refresh()
    assert drawn == [1, 1]
    (warning,) = warnings
    assert f"{file}: damaged" in warning
    assert "1 damaged skipped" in watched.status_line()
    file.write_text(whole)
    watched.refresh()
    assert drawn[-1] == 2
    assert "damaged" not in watched.status_line()


def test_the_last_page_stays_if_a_new_one_cannot_be_written(
    tmp_path: Path, drawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(record("a"), tmp_path)
    warnings: list[str] = []
    watched = Watch(tmp_path, None, warnings.append)
    watched.refresh()
    page = watched.served.page

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live, "publish", full)
    write_record(record("b"), tmp_path)
    assert not watched.refresh()
    assert watched.served.page == page
    assert drawn == [1]
    assert "No space left" in warnings[0]
    assert "see the terminal for the reason" in watched.status_line()


def test_refreshing_during_writes_never_fails(tmp_path: Path, drawn: list[int]) -> None:
    """Failed runs give way to finished ones, while somebody looks as often as possible."""
    names = [f"{i:02d}" for i in range(40)]

    def write() -> None:
        for name in names:
            write_record(record(name, status="failed"), tmp_path)
            write_record(record(name, status="failed"), tmp_path)
            write_record(record(name), tmp_path)

    warnings: list[str] = []
    watched = Watch(tmp_path, None, warnings.append)
    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        watched.refresh()
    writer.join()
    watched.refresh()
    assert warnings == []
    assert drawn[-1] == len(names)


def test_the_holder_of_a_folder_is_found_without_locking(tmp_path: Path) -> None:
    assert lock_owner(tmp_path) is None
    with lock_folder(tmp_path):
        assert (lock_owner(tmp_path) or "").startswith("process ")
    assert lock_owner(tmp_path) is None
    (tmp_path / ".lock").write_text("process 1 on elsewhere since yesterday\n")
    assert lock_owner(tmp_path) is None, "killed: the text is left, the lock is not"


def answer(address: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_server_answers_this_machine_only() -> None:
    now = ServedPage("page «x»".encode(), "1", "live")
    with serve_page(lambda: now, None) as address:
        assert address.startswith("http://127.0.0.1:")
        assert answer(address) == (200, "page «x»")
        assert json.loads(answer(f"{address}state")[1]) == {"version": "1", "line": "live"}
        assert answer(f"{address}etc/passwd")[0] == 404
        assert answer(address, "rebound.example:80")[0] == 403
        port = int(address.split(":")[2].rstrip("/"))
        refused = pytest.raises(
            RecordError, match=rf"port {port} of 127.0.0.1 is not available.*--port"
        )
        with refused, serve_page(lambda: now, port):
            pass
    with serve_page(lambda: now, port) as again:
        assert again == address


@contextmanager
def interrupted_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> Generator[None, None, None]:
    """Ctrl-C, that many looks later."""
    left = [looks]

    def sleep(_: float) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        # In this module alone: other threads of the process sleep, too.
        patched.setattr(live, "time", SimpleNamespace(sleep=sleep, time=time.time))
        yield


def test_ctrl_c_leaves_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(record("a"), tmp_path)
    out = StringIO()
    with interrupted_after(2, monkeypatch):
        page = watch(tmp_path, tmp_path / "mine.html", Console(out, StringIO()), every=0.01)
    assert page is not None
    assert page == tmp_path / "mine.html"
    assert page.read_text().count("connect-src") == 0
    assert "http://127.0.0.1:" in out.getvalue()


def test_the_command_watches_sweep_folders_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "none"), "--watch"]) == 2
    assert "is not a sweep folder" in capsys.readouterr().err
    planned(tmp_path, "a")
    with interrupted_after(1, monkeypatch):
        assert main(["report", str(tmp_path), "--watch", "--every", "0.01"]) == 0
    assert "no page: nothing was recorded" in capsys.readouterr().out
    write_record(record("a"), tmp_path)
    with interrupted_after(1, monkeypatch):
        assert main(["report", str(tmp_path), "--watch"]) == 0
    assert f"page  {tmp_path / 'report.html'}" in capsys.readouterr().out
    for wrong in (["--port", "0"], ["--port", "x"], ["--every", "0"]):
        assert main(["report", str(tmp_path), "--watch", *wrong]) == 2


def test_the_served_page_is_the_file_with_a_status_line(
    tmp_path: Path,
) -> None:
    write_record(record("a"), tmp_path)
    watched = Watch(tmp_path, None, print)
    watched.refresh()
    file = (tmp_path / "report.html").read_text()
    served = watched.served.page.decode()
    assert "connect-src" not in file
    assert served.replace("connect-src 'self'; ", "", 1).startswith(file.rpartition("</body>")[0])
    assert served.count("connect-src 'self'") == 1
    assert f'data-version="{watched.served.version}"' in served
    evil = registry.load("dashboards", "live")(None, "<script>alert(1)</script>", "1")
    assert "<script>alert" not in evil
