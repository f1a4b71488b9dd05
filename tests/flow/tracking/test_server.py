"""Tracking on a real `mlflow server`: a running sweep, and replays."""

import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.results import Results, stored_links
from unlearnbench.base.console import Console
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.links import show_in_mlflow
from unlearnbench.report.report import write_report
from unlearnbench.sweep import run_sweep

from ..sweep.noop_sweep import NOOP, noop_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, kit: Any) -> Iterator[str]:
    """Address of an `mlflow server` on SQLite."""
    with kit.server(tmp_path_factory.mktemp("server")) as uri:
        yield uri


def test_a_sweep_is_linked_from_its_page(tmp_path: Path, server: str, seen: Any) -> None:
    linked: list[dict[str, str]] = []

    def report(folder: Path) -> Path:
        linked.append(dict(Results.read(folder).links))
        return write_report(folder)

    tracking = TrackingSettings(uri=server, experiment="live")
    config = noop_config(tmp_path / "out", 4).model_copy(update={"tracking": tracking})
    result = run_sweep(config, Console(err=StringIO()), replace(NOOP, report=report))
    store = seen(server, "live")
    planned = {run["id"] for run in json.loads((result.folder / "plan.json").read_text())["runs"]}
    assert set(store.children) == planned
    (parent,) = store.parents
    assert parent.info.status == "FINISHED"
    files = store.artifacts(parent.info.run_id)
    assert {"report.html", "results.csv", "sweep.log", "plan.json"} <= files
    start = f"{server}/#/experiments/{parent.info.experiment_id}/runs"
    page = "?workflowType=machine_learning"
    links = {k: f"{start}/{run.info.run_id}{page}" for k, run in store.children.items()}
    assert linked == [links], "the page is made when every run has its place"
    printed: list[str] = []
    show_in_mlflow(result.folder, 5000, printed.append)
    assert printed == [stored_links(result.folder)["sweep"]]
