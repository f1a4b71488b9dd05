"""Tracking on a real `mlflow server`: a running sweep, and replays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.bench.noop_sweep import NOOP, noop_config
from unlearnbench.cli.main import main
from unlearnbench.config.resources import RaySettings, TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.console import Console
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.reporting.report import build_report, write_report
from unlearnbench.reporting.tracker_links import read_links
from unlearnbench.results.records import EpochResult
from unlearnbench.sweep import run_sweep
from unlearnbench.tracking import open_ui, replay

pytestmark = pytest.mark.slow


LIVE = "live"
"""Experiment of the running sweep, on a server that other tests use as well."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kit: Any) -> Iterator[str]:
    """Address of an `mlflow server` on SQLite."""
    with kit.server(tmp_path_factory.mktemp("server")) as uri:
        yield uri


class Watch(threading.Thread):
    """Numbers of runs on a server during a sweep."""

    def __init__(self, uri: str, seen: Any) -> None:
        super().__init__(daemon=True)
        self.counts: list[int] = []
        self._uri, self._seen, self._over = uri, seen, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.3):
            store = self._seen(self._uri, LIVE)
            if store.parents and store.parents[0].info.status == "RUNNING":
                self.counts.append(len(store.children))

    def stop(self) -> None:
        self._over.set()
        self.join(30)


def test_a_sweep_is_logged_while_it_runs_and_linked_from_its_page(
    tmp_path: Path, server: str, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = server
    # So rarely that links are written at the end only.
    monkeypatch.setattr("unlearnbench.tracking.sweep_tracker.LINK_SECONDS", 1e9)

    def slowly(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        time.sleep(0.7)
        yield from NOOP.run_epochs(run, config, folder)

    linked: list[dict[str, str]] = []

    def report(folder: Path) -> Path:
        linked.append(dict(build_report(folder).links))
        return write_report(folder)

    config = noop_config(tmp_path / "out", 4).model_copy(
        update={
            "tracking": TrackingSettings(uri=uri, experiment=LIVE),
            "ray": RaySettings(concurrent=1),
        }
    )
    watch = Watch(uri, seen)
    watch.start()
    runtime = replace(NOOP, run_epochs=slowly, report=report)
    result = run_sweep(config, Console(err=StringIO()), runtime)
    watch.stop()
    assert 0 < min(count for count in watch.counts if count) < 4, "nothing before the end"

    store = seen(uri, LIVE)
    planned = {run["id"] for run in json.loads((result.folder / "plan.json").read_text())["runs"]}
    assert set(store.children) == planned
    (parent,) = store.parents
    assert parent.info.status == "FINISHED"
    assert {"report.html", "results.csv", "sweep.log", "plan.json"} <= store.artifacts(
        parent.info.run_id
    )
    links = read_links(result.folder)
    assert links is not None
    assert (links.server, links.sweep) == (uri, parent.info.run_id)
    assert links.runs == {name: run.info.run_id for name, run in store.children.items()}
    assert linked == [links.by_record()], "the page is made when every run has its place"

    printed: list[str] = []
    open_ui(result.folder, browser=False, show=printed.append)
    assert printed == [f"experiment  {links.of_experiment}", f"this sweep  {links.of_sweep}"]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_replay_to_a_server_is_clear_and_logs_nothing_twice(
    backend: str,
    tmp_path: Path,
    kit: Any,
    seen: Any,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ExitStack() as stack:
        if backend == "sqlite":
            uri: str = request.getfixturevalue("server")
        else:
            address = request.getfixturevalue("postgres")
            uri = stack.enter_context(kit.server(tmp_path / "server", address))
        failed = kit.record("cccc", status="failed", error="boom", evaluations={})
        folder = kit.stored(tmp_path / "small", kit.start_model(), kit.record("aaaa"), failed)
        write_report(folder)
        assert main(["track", str(folder), "--uri", uri]) == 0
        first, page = capsys.readouterr().out.splitlines()
        assert first == f"3 of 3 records logged to {uri}"
        links = read_links(folder)
        assert links is not None
        assert page == f"page  {links.of_sweep}"
        before = {
            name: run.info.run_id
            for name, run in seen(uri, "unlearnbench-synthetic").children.items()
        }

        assert main(["track", str(folder), "--uri", uri, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed == {"uri": uri, "logged": 0, "records": 3, "address": links.of_sweep}
        store = seen(uri, "unlearnbench-synthetic")
        assert {name: run.info.run_id for name, run in store.children.items()} == before
        (parent,) = store.parents
        assert len(parent.inputs.dataset_inputs) == 3
        assert "report.html" in store.artifacts(parent.info.run_id)
        assert "error.txt" in store.artifacts(before["cccc"])
        history = store.client.get_metric_history(before["aaaa"], "train/loss")
        assert [one.step for one in history] == [0, 1, 2]
        assert replay(folder).address is None, "its own store has no pages"
        assert read_links(folder) == links, "and does not change where they are"
