"""Tracker: nested runs, metrics by step, and servers that fail."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import PluginError, RecordError, UnlearnbenchError
from unlearnbench.reporting.tracker_links import run_links, sweep_link
from unlearnbench.results.records import EpochResult, write_record
from unlearnbench.tracking import SweepTracker, replay
from unlearnbench.tracking.mlflow import store_uri
from unlearnbench.training.step_result import StepResult


def test_records_become_nested_runs(tmp_path: Path, kit: Any, seen: Any) -> None:
    record = kit.record("aaaa")
    folder = kit.stored(tmp_path / "small", record)
    (folder / "report.html").write_text("<p>", encoding="utf-8")
    config = kit.config()
    warnings: list[str] = []
    with SweepTracker(config.tracking, folder, config, warn=warnings.append) as tracker:
        tracker.log(record)
        tracker.log_files([folder / "report.html", folder / "results.csv"])
    assert (warnings, tracker.trouble, tracker.logged) == ([], None, 1)

    store = seen(f"sqlite:///{folder}/mlflow.db")
    assert [e.name for e in store.experiments] == ["unlearnbench-synthetic"]
    (parent,) = store.parents
    assert (parent.info.run_name, parent.info.status) == ("small", "FINISHED")
    assert {"report.html", "plan.json"} <= store.artifacts(parent.info.run_id)

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
        "base": "tiny",
        "dtype": "float32",
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
    assert names == {"record.json", "answers.json"}
    table = json.loads(Path(store.client.download_artifacts(run, "answers.json")).read_text())
    (row,) = [row for row in table["data"] if row[0] == "forget"]
    answer = dict(zip(table["columns"], row, strict=True))
    assert (answer["question"], answer["answer"], answer["epoch"]) == ("Who?", "Nobody.", 2)


def test_metrics_are_logged_in_several_requests(tmp_path: Path, kit: Any, seen: Any) -> None:
    steps = tuple(StepResult(k, 1, 1e-4, 1.0, {"forget": 1.0}, 1.0) for k in range(250))
    folder = kit.stored(tmp_path / "small", kit.record("aaaa", steps=steps))
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    run = store.children["aaaa"].info.run_id
    assert len(store.client.get_metric_history(run, "train/grad_norm")) == 250


def test_the_store_is_the_setting_then_the_environment_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit: Any, seen: Any
) -> None:
    assert store_uri(None, tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    assert store_uri(None, tmp_path) == f"sqlite:///{tmp_path}/other.db"
    assert store_uri("http://h:1", tmp_path) == "http://h:1"
    config = kit.config(experiment="my-own")
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"), config=config)
    replay(folder)
    assert [e.name for e in seen(f"sqlite:///{tmp_path}/other.db").experiments] == ["my-own"]
    assert not (folder / "mlflow.db").exists()


def test_switched_off_nothing_is_written(tmp_path: Path, kit: Any) -> None:
    config = kit.config(enabled=False)
    with SweepTracker(config.tracking, tmp_path, config) as tracker:
        tracker.log(kit.record("aaaa"))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def silent_server() -> Generator[str, None, None]:
    """A server that accepts connections and never responds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(50)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_unreachable_server_costs_one_warning_and_little_time(tmp_path: Path, kit: Any) -> None:
    with socket.socket() as used:  # bound but not listening: refuses
        used.bind(("127.0.0.1", 0))
        config = kit.config(uri=f"http://me:secret@127.0.0.1:{used.getsockname()[1]}")
        folder = kit.stored(tmp_path / "small", kit.record("aaaa"), config=config)
        warnings: list[str] = []
        begin = time.monotonic()
        with SweepTracker(config.tracking, folder, config, warn=warnings.append) as tracker:
            for _ in range(3):
                tracker.log(kit.record("aaaa"))
        assert time.monotonic() - begin < 10
        (warning,) = warnings
        assert f"unlearnbench track {folder}" in warning
        assert tracker.trouble is not None
        with pytest.raises(UnlearnbenchError, match="start it, or give --uri") as raised:
            replay(folder)
        assert "secret" not in warning + tracker.trouble + str(raised.value)


def test_a_silent_server_delays_nothing(tmp_path: Path, kit: Any) -> None:
    with silent_server() as uri:
        config = kit.config(uri=uri)
        warnings: list[str] = []
        begin = time.monotonic()
        with SweepTracker(
            config.tracking, tmp_path, config, warn=warnings.append, seconds=0.5
        ) as t:
            t.log(kit.record("aaaa"))
            assert time.monotonic() - begin < 5
        assert time.monotonic() - begin < 6
        assert len(warnings) == 1


class Failing(BaseHTTPRequestHandler):
    """Handler that fails all requests."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_a_failing_server_costs_one_warning_and_replay_logs_later(tmp_path: Path, kit: Any) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    Thread(target=server.serve_forever, daemon=True).start()
    config = kit.config(uri=f"http://127.0.0.1:{server.server_port}")
    records = [kit.record("aaaa"), kit.record("bbbb")]
    folder = kit.stored(tmp_path / "small", *records, config=config)
    warnings: list[str] = []
    begin = time.monotonic()
    with SweepTracker(config.tracking, folder, config, warn=warnings.append) as tracker:
        for record in records:
            tracker.log(record)
    assert time.monotonic() - begin < 10
    assert len(warnings) == 1
    assert "500" in warnings[0]
    server.shutdown()
    server.server_close()
    assert replay(folder, f"sqlite:///{tmp_path}/later.db").logged == 2


def test_the_best_epoch_of_a_run(tmp_path: Path, kit: Any, seen: Any) -> None:
    epochs = tuple(
        EpochResult(k, kit.metrics(utility, quality), 10.0, 2.0)
        for k, (utility, quality) in enumerate([(0.7, -6.0), (0.65, -3.0), (0.2, -0.5)], start=1)
    )
    records = [
        kit.start_model(utility=0.75),
        kit.record("aaaa", epochs=epochs),
        kit.record("bbbb", epochs=epochs[2:]),
    ]
    replay(kit.stored(tmp_path / "small", *records))
    children = seen(f"sqlite:///{tmp_path}/small/mlflow.db").children
    best = {k: v for k, v in children["aaaa"].data.metrics.items() if k.startswith("best/")}
    assert best == pytest.approx(
        {
            "best/epoch": 2.0,
            "best/model_utility": 0.65,
            "best/log10_forget_quality": -3.0,
            "best/forget_quality": 1e-3,
            "best/utility_kept": 0.65 / 0.75,
        }
    )
    # It forgets best of all, and is worth nothing: no epoch of it is a best one.
    assert not [k for k in children["bbbb"].data.metrics if k.startswith("best/")]


def test_replay_logs_missing_records_only(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    assert replay(folder).logged == 1
    assert replay(folder).logged == 0
    write_record(kit.record("bbbb", seed=4), folder)
    failed = kit.record("cccc", status="failed", error="boom", evaluations={})
    write_record(failed, folder)
    write_record(kit.record("dddd", status="stopped"), folder)
    assert replay(folder).logged == 3
    assert replay(folder).logged == 0
    stopped = seen(f"sqlite:///{folder}/mlflow.db").children["dddd"]
    assert stopped.info.status == "KILLED"
    # The failed run has succeeded since, the stopped one went to its end.
    for one in ("cccc", "dddd"):
        write_record(kit.record(one), folder)
    assert replay(folder).logged == 2
    store = seen(f"sqlite:///{folder}/mlflow.db")
    assert store.runs == 5
    assert {k: r.info.status for k, r in store.children.items()} == dict.fromkeys(
        ("aaaa", "bbbb", "cccc", "dddd"), "FINISHED"
    )


def test_a_partly_logged_run_is_replaced(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    assert replay(folder).logged == 1
    store = seen(f"sqlite:///{folder}/mlflow.db")
    store.client.update_run(store.children["aaaa"].info.run_id, status="RUNNING")
    assert replay(folder).logged == 1
    assert seen(f"sqlite:///{folder}/mlflow.db").runs == 2


def test_a_folder_that_is_not_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"is not a sweep folder: no plan\.json"):
        replay(tmp_path)
    (tmp_path / "plan.json").write_text('{"config": {"name": 3}}', encoding="utf-8")
    with pytest.raises(RecordError, match=r"plan\.json: damaged"):
        replay(tmp_path)


def everything(store: Any) -> Any:
    """Ids, tags, metrics and files of all runs in a store."""
    found = {}
    for run in [*store.parents, *store.children.values()]:
        files = sorted(store.artifacts(run.info.run_id))
        spent = (run.info.start_time, run.info.end_time, run.info.status)
        found[run.info.run_id] = (run.data.tags, run.data.metrics, files, spent)
    return found


def test_a_second_replay_changes_nothing(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"), kit.start_model())
    for name in ("report.html", "results.csv", "sweep.log"):
        (folder / name).write_text("<p>", encoding="utf-8")
    first = replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    before = everything(store)
    assert (first.logged, first.records, len(before)) == (2, 2, 3)
    (parent,) = store.parents
    _, _, files, spent = before[parent.info.run_id]
    assert {"report.html", "results.csv", "sweep.log", "plan.json"} <= set(files)
    assert spent[1] - spent[0] == 60_000, "the time of the sweep, not of the replay"

    again = replay(folder)
    assert (again.logged, again.records) == (0, 2)
    assert everything(seen(f"sqlite:///{folder}/mlflow.db")) == before


def test_a_local_store_has_links_that_only_ui_reads(tmp_path: Path, kit: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    assert replay(folder).address is None
    assert run_links(folder) == {}
    assert (sweep_link(folder) or "").startswith("#/experiments/1/runs?viewStateShareKey=")
    replay(folder, f"sqlite:///{tmp_path}/other.db")
    assert (sweep_link(folder) or "").startswith(f"sqlite:///{tmp_path}/other.db#/experiments/")


def test_an_unknown_tracker_is_refused(tmp_path: Path, kit: Any) -> None:
    config = kit.config(tracker="mlfow")
    with pytest.raises(PluginError, match="did you mean 'mlflow'"):
        SweepTracker(config.tracking, tmp_path, config).__enter__()
