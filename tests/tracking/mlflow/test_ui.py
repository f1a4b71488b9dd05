"""`unlearnbench ui`: MLflow's pages in a browser, and start and end of its server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.reporting.report import write_report
from unlearnbench.reporting.tracker_links import Links
from unlearnbench.results.records import EpochResult
from unlearnbench.tracking import open_ui, replay, ui_command
from unlearnbench.tracking.mlflow import ui as pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


STAND_IN = """
import os, sys, http.server
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.HTTPServer(("127.0.0.1", port), Healthy)
os.fork()
server.serve_forever()
"""
"""A server of two processes, as MLflow's, which starts at once."""
WITH_STAND_IN = f"""
import sys
from unlearnbench.reporting.tracker_links import Links
from unlearnbench.tracking.mlflow import ui
ui.SERVER = (sys.executable, "-c", {STAND_IN!r})
ui._find = lambda *_: (Links("", "1", "f00d"), "")  # without mlflow, whose import takes seconds
from unlearnbench.cli.main import main
sys.exit(main())
"""


@contextmanager
def shown(
    folder: Path, *arguments: str, program: Sequence[str] = ("-m", "unlearnbench")
) -> Generator[tuple[subprocess.Popen[str], list[str]], None, None]:
    """The running command, and its output up to the start of the server."""
    command = [sys.executable, *program, "ui", str(folder), *arguments]
    # Without a display: on a machine with one, a test must open no window.
    hidden = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=hidden,
        preexec_fn=_heeds_ctrl_c,
    ) as process:
        lines: list[str] = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.strip())
                if line.startswith("Ctrl-C"):
                    break
            yield process, lines
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            finally:
                process.kill()


def _heeds_ctrl_c() -> None:
    """Undo that processes started in a script's background ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, kit: Any) -> Path:
    """A finished sweep of two methods, with its page, logged to SQLite; not to be changed."""
    epochs = tuple(
        EpochResult(k, kit.metrics(0.75 - 0.02 * k, -6.0 + k), 1.0, 2.0) for k in (1, 2, 3)
    )
    records = [
        kit.start_model(),
        kit.record("aaaa", epochs=epochs),
        kit.record("bbbb", method="ce-u", epochs=epochs[:2]),
        kit.record("cccc", method="idk", status="failed", error="out of memory", epochs=()),
    ]
    folder: Path = kit.stored(tmp_path_factory.mktemp("ui") / "small", *records)
    write_report(folder)
    replay(folder)
    return folder


@pytest.mark.slow
def test_mlflows_pages_show_the_sweep(sweep: Path, browser: Browser) -> None:
    port = free_port()
    with shown(sweep, "--port", str(port), "--no-browser") as (process, lines):
        experiment, parent = (line.split()[-1] for line in lines[:2])
        assert parent.endswith("?workflowType=machine_learning")
        parent = parent.partition("?")[0]
        assert experiment.startswith(f"http://127.0.0.1:{port}/#/experiments/")
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        try:
            children = listed_runs(page, experiment)
            child = f"{parent.rpartition('/')[0]}/{children['npo+nll']}"
            check_child_run(page, child)
            check_report_page(page, f"{parent}/artifacts/report.html")
        finally:
            page.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        printed = process.stderr.read()
        assert re.fullmatch(r"(ui: (loading mlflow|working) …\n)?", printed), "if it takes long"
    assert not answers(port), "the server must end with the command"


def listed_runs(page: Page, experiment: str) -> dict[str, str]:
    """The link opens the sweep's runs, with the columns of their best epochs; ids by method."""
    page.goto(experiment)
    names = page.get_by_role("link", name=re.compile(r"tiny · forget 0\.1"))
    names.nth(3).wait_for(timeout=30_000)
    assert page.get_by_role("link", name="small", exact=True).count() == 0
    page.get_by_text("Sort: best/log10_forget_quality").wait_for()
    page.get_by_role("columnheader", name="best/log10_forget_quality").first.wait_for()
    found = {
        str(one.inner_text()).partition(" · ")[0]: str(one.get_attribute("href")).split("/")[-1]
        for one in names.all()
    }
    assert set(found) == {"fine-tuned", "npo+nll", "ce-u", "idk"}
    return found


def follow(page: Page, address: str) -> None:
    """Go to another of MLflow's pages as its links do: by the fragment of the address."""
    page.evaluate("address => { location.href = address }", address)


def check_child_run(page: Page, address: str) -> None:
    follow(page, address)
    page.get_by_text("Best at epoch 3: Model Utility 0.690").wait_for(timeout=15_000)
    page.get_by_text("synthetic-forget10 (d1d1)").first.wait_for()
    follow(page, f"{address}/model-metrics")
    page.get_by_text("log10_forget_quality").first.wait_for(timeout=15_000)
    page.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=15_000)
    for group in ("best", "forget", "retain", "real_authors", "world_facts", "train"):
        head = re.compile(rf"^{group}\s*\(\d+\)$")
        page.get_by_text(head).first.wait_for(timeout=15_000)
    follow(page, f"{address}/artifacts/answers.json")
    page.get_by_text("Nobody.").first.wait_for(timeout=15_000)  # as a table, not as JSON
    page.get_by_role("columnheader", name="true_answer").wait_for()


def check_report_page(page: Page, address: str) -> None:
    """The sweep's page draws its panels inside MLflow's frame, which grants it scripts only."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto("about:blank")  # a change of the fragment alone need not load the artifact
    page.goto(address)
    frame = page.frame_locator("iframe.mlflow-html-iframe")
    frame.get_by_role("heading", name="small").wait_for(timeout=30_000)
    frame.locator("#trade-off").scroll_into_view_if_needed()  # figures are drawn when they are seen
    frame.locator(".js-plotly-plot .main-svg").first.wait_for(timeout=30_000)
    assert errors == []


def test_a_port_in_use_is_reported_or_skipped(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = int(used.getsockname()[1])
        with pytest.raises(UnlearnbenchError, match=rf"port {port} of 127\.0\.0\.1 is in use"):
            open_ui(sweep, port=port, browser=False)
        other = free_port()
        monkeypatch.setattr(pages, "PORTS", (port, other))
        assert pages.free_port(None) == other
        monkeypatch.setattr(pages, "PORTS", (port,))
        with pytest.raises(UnlearnbenchError, match="every port from"):
            pages.free_port(None)


def test_sigterm_ends_the_server_too(sweep: Path) -> None:
    port = free_port()
    with shown(sweep, "--port", str(port), program=("-c", WITH_STAND_IN)) as (process, _):
        assert answers(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        until = time.monotonic() + 10
        while answers(port) and time.monotonic() < until:
            time.sleep(0.1)
        assert not answers(port)


def test_a_damaged_store_is_reported(tmp_path: Path, kit: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    (folder / "mlflow.db").write_bytes(b"not a database, but long enough to be opened" * 40)
    with pytest.raises(UnlearnbenchError, match="not a database"):
        open_ui(folder, port=free_port(), browser=False)


def test_a_sweep_that_is_not_logged_is_reported(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    assert ui_command(folder) == "unlearnbench ui small"
    assert ui_command(folder, tracked=False) == "unlearnbench track small && unlearnbench ui small"
    with pytest.raises(RecordError, match=r"mlflow\.db does not exist; `unlearnbench track"):
        open_ui(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(RecordError, match=r"is not logged at sqlite:.*`unlearnbench track"):
        open_ui(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{free_port()}")
    with pytest.raises(UnlearnbenchError, match=r"MLflow at http://127.*is it running\?") as raised:
        open_ui(folder)
    assert "secret" not in str(raised.value)


def test_a_moved_sweep_prints_where_its_artifacts_are(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = kit.stored(tmp_path / "small", kit.record("aaaa"))
    replay(sweep)

    @contextmanager
    def serving(*_: Any) -> Generator[tuple[str, Any], None, None]:
        yield "http://127.0.0.1:1", Ended()

    class Ended:
        def wait(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(pages, "_serving", serving)
    moved = sweep.rename(sweep.with_name("elsewhere"))
    lines: list[str] = []
    open_ui(moved, browser=False, show=lines.append)
    assert f"{sweep}/mlartifacts" in lines[0]
    assert f"unlearnbench track {moved}" in lines[0]
    assert lines[-1] == "Ctrl-C ends it"


def test_a_browser_is_opened_on_a_display_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("webbrowser.get", lambda: object())
    monkeypatch.setattr("sys.platform", "linux")
    links = Links("http://h", "1", "f00d")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    pages.show_links(links, browser=True, show=lambda _: None)
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    pages.show_links(links, browser=False, show=lambda _: None)
    assert opened == []
    pages.show_links(links, browser=True, show=lambda _: None)
    assert opened == ["http://h/#/experiments/1/runs?workflowType=machine_learning"]
