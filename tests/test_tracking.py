"""MLflow: nested runs, metrics by step, nothing twice, and a dead server that costs no run."""

from __future__ import annotations

import dataclasses
import json
import math
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.evaluation.profiles import TOFU
from unlearnbench.evaluation.result import SETS, Evaluation, SetEvaluation
from unlearnbench.execution import TrackingSettings
from unlearnbench.mlflow_store import store_uri
from unlearnbench.records import EpochResult, Record, write_record
from unlearnbench.settings import (
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.step import StepResult
from unlearnbench.tracking import Tracker, open_ui, replay, ui_command

pytestmark = [
    # MLflow 3.17 asks SQLAlchemy 2.1 for a loader that the latter is about to drop.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    # Its engine leaves connections to the garbage collector, which may come at any test.
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")


def a_config(**tracking: Any) -> SweepConfig:
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        tracking=TrackingSettings(**tracking),
    )


def a_record(record_id: str, **changes: Any) -> Record:
    one = np.ones(1)
    rows = SetEvaluation(
        questions=("Who?",),
        generated=("Nobody.",),
        references=("Somebody.",),
        answer_loss=one,
        answer_tokens=np.full(1, 3),
        base_loss=one,
        base_tokens=np.full(1, 3),
        perturbed_loss=np.ones((1, 2)),
        perturbed_tokens=np.full((1, 2), 3),
        rouge1_recall=one,
        rouge_l_recall=one,
    )
    record = Record(
        id=record_id,
        kind="run",
        model="tiny",
        forget_fraction=0.1,
        method="npo+nll",
        learning_rate=1e-4,
        seed=3,
        spec={
            "epochs": 2,
            "training": {"batch_size": 32, "micro_batch_size": None},
            "method": {
                "name": "npo",
                "hyperparameters": {"beta": 0.1},
                "retain": {"term": "nll", "weight": 1.0},
            },
        },
        status="finished",
        profile=TOFU.id,
        epochs=(
            EpochResult(1, {"model_utility": 0.7, "forget_quality": None}, 1.0, 2.0),
            EpochResult(2, {"model_utility": 0.6, "forget_quality": math.nan}, 1.0, 2.0),
        ),
        steps=tuple(
            StepResult(k, 1, 1e-4, 2.0 - k, {"forget": 1.0, "retain": 1.0 - k}, 3.0)
            for k in range(3)
        ),
        provenance={
            "git": {"commit": "c0ffee", "dirty": False},
            "started": "2026-01-01T00:00:00.000+00:00",
            "finished": "2026-01-01T00:01:00.000+00:00",
        },
        evaluations={2: Evaluation(profile=TOFU.id, sets=dict.fromkeys(SETS, rows))},
    )
    return dataclasses.replace(record, **changes)


def stored(folder: Path, *records: Record, config: SweepConfig | None = None) -> Path:
    """A sweep's folder with these records."""
    folder.mkdir(exist_ok=True)
    document = {"name": "small", "config": (config or a_config()).model_dump(mode="json")}
    (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
    for record in records:
        write_record(record, folder)
    return folder


class Store:
    """What is in a store."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self.client: Any = MlflowClient(uri)
        found = self.client.search_experiments()
        self.experiments = [e for e in found if e.name != "Default"]
        ids = [e.experiment_id for e in self.experiments]
        runs = self.client.search_runs(ids) if ids else []
        self.parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
        self.children = {
            r.data.tags["unlearnbench.run_id"]: r
            for r in runs
            if "mlflow.parentRunId" in r.data.tags
        }
        self.runs = len(runs)


def test_records_become_nested_runs_with_everything_in_its_place(tmp_path: Path) -> None:
    record = a_record("aaaa")
    folder = stored(tmp_path / "small", record)
    (folder / "report.html").write_text("<p>", encoding="utf-8")
    config = a_config()
    warnings: list[str] = []
    with Tracker(config.tracking, folder, config, warn=warnings.append) as tracker:
        tracker.log(record)
        tracker.log_files([folder / "report.html", folder / "results.csv"])
    assert (warnings, tracker.trouble, tracker.logged) == ([], None, 1)

    store = Store(f"sqlite:///{folder}/mlflow.db")
    assert [e.name for e in store.experiments] == ["unlearnbench-synthetic"]
    (parent,) = store.parents
    assert (parent.info.run_name, parent.info.status) == ("small", "FINISHED")
    files = {f.path for f in store.client.list_artifacts(parent.info.run_id)}
    assert files == {"report.html", "plan.json"}

    child = store.children["aaaa"]
    run = child.info.run_id
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.info.run_name == "npo+nll · tiny · forget 0.1 · lr 0.0001 · seed 3"
    assert child.info.end_time - child.info.start_time == 60_000
    tags = {k: child.data.tags[k] for k in ("method", "seed", "profile", "git_commit", "status")}
    assert tags == {
        "method": "npo+nll",
        "seed": "3",
        "profile": TOFU.id,
        "git_commit": "c0ffee",
        "status": "finished",
    }
    assert child.data.params == {
        "method": "npo+nll",
        "model": "tiny",
        "forget_fraction": "0.1",
        "seed": "3",
        "learning_rate": "0.0001",
        "epochs": "2",
        "batch_size": "32",
        "beta": "0.1",
        "retain_term": "nll",
        "retain_weight": "1.0",
    }

    def series(name: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in store.client.get_metric_history(run, name)]

    assert series("model_utility") == [(1, 0.7), (2, 0.6)]
    assert series("train/loss") == [(0, 2.0), (1, 1.0), (2, 0.0)]
    assert series("train/loss_retain") == [(0, 1.0), (1, 0.0), (2, -1.0)]
    assert series("train/learning_rate") == [(0, 1e-4), (1, 1e-4), (2, 1e-4)]
    assert "forget_quality" not in child.data.metrics  # undefined, and not a number
    names = {f.path for f in store.client.list_artifacts(run)}
    assert names == {"record.json", "epoch-2.json.gz", "answers.json"}
    said = json.loads(Path(store.client.download_artifacts(run, "answers.json")).read_text())
    assert said["answers"][0]["answer"] == "Nobody."


def test_replay_logs_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    folder = stored(tmp_path / "small", a_record("aaaa"))
    assert replay(folder) == 1
    assert replay(folder) == 0
    write_record(a_record("bbbb", seed=4), folder)
    failed = a_record("cccc", status="failed", error="boom", evaluations={})
    write_record(failed, folder)
    write_record(a_record("dddd", status="stopped"), folder)
    assert replay(folder) == 3
    assert replay(folder) == 0
    stopped = Store(f"sqlite:///{folder}/mlflow.db").children["dddd"]
    assert stopped.info.status == "KILLED"
    # The failed run has succeeded since, the stopped one went to its end.
    for one in ("cccc", "dddd"):
        write_record(a_record(one), folder)
    assert replay(folder) == 2
    store = Store(f"sqlite:///{folder}/mlflow.db")
    assert store.runs == 5
    assert {k: r.info.status for k, r in store.children.items()} == dict.fromkeys(
        ("aaaa", "bbbb", "cccc", "dddd"), "FINISHED"
    )


def test_a_run_cut_off_while_it_was_logged_is_logged_anew(tmp_path: Path) -> None:
    folder = stored(tmp_path / "small", a_record("aaaa"))
    assert replay(folder) == 1
    store = Store(f"sqlite:///{folder}/mlflow.db")
    store.client.update_run(store.children["aaaa"].info.run_id, status="RUNNING")
    assert replay(folder) == 1
    assert Store(f"sqlite:///{folder}/mlflow.db").runs == 2


def test_more_metrics_than_one_request_takes(tmp_path: Path) -> None:
    steps = tuple(StepResult(k, 1, 1e-4, 1.0, {"forget": 1.0}, 1.0) for k in range(700))
    folder = stored(tmp_path / "small", a_record("aaaa", steps=steps))
    replay(folder)
    store = Store(f"sqlite:///{folder}/mlflow.db")
    run = store.children["aaaa"].info.run_id
    assert len(store.client.get_metric_history(run, "train/grad_norm")) == 700


def test_the_store_is_the_setting_then_the_environment_then_beside_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store_uri(TrackingSettings(), tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    assert store_uri(TrackingSettings(), tmp_path) == f"sqlite:///{tmp_path}/other.db"
    assert store_uri(TrackingSettings(uri="http://h:1"), tmp_path) == "http://h:1"
    config = a_config(experiment="my-own")
    folder = stored(tmp_path / "small", a_record("aaaa"), config=config)
    replay(folder)
    assert [e.name for e in Store(f"sqlite:///{tmp_path}/other.db").experiments] == ["my-own"]
    assert not (folder / "mlflow.db").exists()


def test_switched_off_it_makes_nothing(tmp_path: Path) -> None:
    config = a_config(enabled=False)
    with Tracker(config.tracking, tmp_path, config) as tracker:
        tracker.log(a_record("aaaa"))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def silent_server() -> Generator[str, None, None]:
    """Takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_is_down_costs_one_warning_and_little_time(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound but not listening: refuses
        taken.bind(("127.0.0.1", 0))
        config = a_config(uri=f"http://127.0.0.1:{taken.getsockname()[1]}")
        folder = stored(tmp_path / "small", a_record("aaaa"), config=config)
        warnings: list[str] = []
        begin = time.monotonic()
        with Tracker(config.tracking, folder, config, warn=warnings.append) as tracker:
            for _ in range(3):
                tracker.log(a_record("aaaa"))
        assert time.monotonic() - begin < 10
        (warning,) = warnings
        assert f"unlearnbench track {folder}" in warning
        assert tracker.trouble is not None
        with pytest.raises(UnlearnbenchError, match="start it, or give --uri"):
            replay(folder)


def test_a_server_that_never_answers_holds_nothing_up(tmp_path: Path) -> None:
    with silent_server() as uri:
        config = a_config(uri=uri)
        warnings: list[str] = []
        begin = time.monotonic()
        with Tracker(config.tracking, tmp_path, config, warn=warnings.append, seconds=0.5) as t:
            t.log(a_record("aaaa"))
            assert time.monotonic() - begin < 5
        assert time.monotonic() - begin < 6
        assert len(warnings) == 1


class Failing(BaseHTTPRequestHandler):
    """Whatever it is asked, it says that it has failed."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_server_that_returns_errors_costs_one_warning_and_replay_makes_up_for_it(
    tmp_path: Path,
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    Thread(target=server.serve_forever, daemon=True).start()
    config = a_config(uri=f"http://127.0.0.1:{server.server_port}")
    records = [a_record("aaaa"), a_record("bbbb")]
    folder = stored(tmp_path / "small", *records, config=config)
    warnings: list[str] = []
    begin = time.monotonic()
    with Tracker(config.tracking, folder, config, warn=warnings.append) as tracker:
        for record in records:
            tracker.log(record)
    assert time.monotonic() - begin < 10
    assert len(warnings) == 1
    assert "500" in warnings[0]
    server.shutdown()
    server.server_close()
    assert replay(folder, f"sqlite:///{tmp_path}/later.db") == 2


def test_a_defect_in_the_thread_is_not_swallowed(tmp_path: Path) -> None:
    config = a_config()
    broken = a_record("aaaa", status="nonsense")
    with pytest.raises(KeyError), Tracker(config.tracking, tmp_path, config) as tracker:
        tracker.log(broken)


def test_what_is_no_sweep_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no plan\.json in it"):
        replay(tmp_path)
    (tmp_path / "plan.json").write_text('{"config": {"name": 3}}', encoding="utf-8")
    with pytest.raises(RecordError, match=r"plan\.json: damaged"):
        replay(tmp_path)


def test_the_pages_are_served_on_loopback_or_by_their_own_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = stored(tmp_path / "small", a_record("aaaa"))
    assert ui_command(folder) == "unlearnbench ui small"
    with pytest.raises(RecordError, match="unlearnbench track"):
        open_ui(folder)
    (folder / "mlflow.db").touch()
    called: list[list[str]] = []

    class Done:
        returncode = 0

    def run(command: list[str], **_: Any) -> Done:
        called.append(command)
        return Done()

    monkeypatch.setattr("unlearnbench.tracking.subprocess.run", run)
    assert open_ui(folder, port=5123) == 0
    assert called[0][1:] == [
        *("-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--host", "127.0.0.1", "--port", "5123", "--workers", "1"),
    ]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    with pytest.raises(UnlearnbenchError, match="open that in a browser"):
        open_ui(folder)
