"""Tracking on a real `mlflow server`: a running sweep, and replays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.cli.main import main
from unlearnbench.config.resources import RaySettings, TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.console import Console
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.reporting.report import build_report, write_report
from unlearnbench.reporting.tracker_links import run_links, sweep_link
from unlearnbench.results.records import EpochResult
from unlearnbench.sweep import run_sweep
from unlearnbench.tracking import show_in_mlflow

from ..sweep.noop_sweep import NOOP, noop_config

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
    tmp_path: Path, server: str, seen: Any
) -> None:
    uri = server

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
    links = run_links(result.folder)
    start = f"{uri}/#/experiments/{parent.info.experiment_id}/runs"
    page = "?workflowType=machine_learning"
    assert links == {k: f"{start}/{run.info.run_id}{page}" for k, run in store.children.items()}
    assert linked == [links], "the page is made when every run has its place"

    printed: list[str] = []
    show_in_mlflow(result.folder, 5000, printed.append)
    assert printed == [sweep_link(result.folder)]


def test_a_replay_to_a_server_is_clear_and_logs_nothing_twice(
    server: str, tmp_path: Path, kit: Any, seen: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = kit.record("cccc", status="failed", error="boom", evaluations={})
    folder = kit.stored(tmp_path / "small", kit.start_model(), kit.record("aaaa"), failed)
    write_report(folder)
    assert main(["track", str(folder), "--uri", server]) == 0
    first, page = capsys.readouterr().out.splitlines()
    assert first == f"3 of 3 records logged to {server}"
    assert page == f"page  {sweep_link(folder)}"
    children = seen(server, "unlearnbench-synthetic").children
    before = {name: run.info.run_id for name, run in children.items()}

    assert main(["track", str(folder), "--uri", server, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        **{"store": server, "logged": 0, "records": 3},
        "address": sweep_link(folder),
    }
    store = seen(server, "unlearnbench-synthetic")
    assert {name: run.info.run_id for name, run in store.children.items()} == before
    (parent,) = store.parents
    assert "report.html" in store.artifacts(parent.info.run_id)
    assert "error.txt" in store.artifacts(before["cccc"])
    history = store.client.get_metric_history(before["aaaa"], "train/loss")
    assert [one.step for one in history] == [0, 1, 2]
