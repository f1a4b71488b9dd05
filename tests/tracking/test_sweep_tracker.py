"""Tracker: nested runs, metrics by step, and servers that fail."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from unlearnbench.config.profiles import TOFU
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.observation_file import read_observations
from unlearnbench.evaluation.tofu_log import read_log
from unlearnbench.results.records import EpochResult
from unlearnbench.tracking import SweepTracker, replay, sweep_tracker
from unlearnbench.tracking.mlflow.connection import store_uri
from unlearnbench.tracking.mlflow.metric_points import metrics
from unlearnbench.tracking.mlflow.run_entries import params
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
    assert names == {"record.json", "epoch-2.json.gz", "answers.json"}
    log = read_log(store.client.download_artifacts(run, "epoch-2.json.gz"))
    assert (log.profile, log.sets["forget"].generated) == (TOFU.id, ("Nobody.",))
    table = json.loads(Path(store.client.download_artifacts(run, "answers.json")).read_text())
    (row,) = [row for row in table["data"] if row[0] == "forget"]
    answer = dict(zip(table["columns"], row, strict=True))
    assert (answer["question"], answer["answer"], answer["epoch"]) == ("Who?", "Nobody.", 2)


def test_an_evaluation_on_other_sets_than_tofus_is_attached_as_stored(
    tmp_path: Path, kit: Any, seen: Any
) -> None:
    record = kit.record("aaaa")
    others = {
        k: replace(one, sets={"poems": one.sets["forget"]}) for k, one in record.evaluations.items()
    }
    folder = kit.stored(tmp_path / "small", replace(record, evaluations=others))
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    run = store.children["aaaa"].info.run_id
    stored = Path(store.client.download_artifacts(run, "epoch-2.safetensors"))
    assert read_observations(stored).sets["poems"].generated == ("Nobody.",)
    assert "epoch-2.json.gz" not in store.artifacts(run)


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
    assert store_uri(TrackingSettings(), tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    assert store_uri(TrackingSettings(), tmp_path) == f"sqlite:///{tmp_path}/other.db"
    assert store_uri(TrackingSettings(uri="http://h:1"), tmp_path) == "http://h:1"
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


def test_a_defect_in_the_thread_is_raised(tmp_path: Path, kit: Any) -> None:
    config = kit.config()
    broken = kit.record("aaaa", status="nonsense")
    with pytest.raises(KeyError), SweepTracker(config.tracking, tmp_path, config) as tracker:
        tracker.log(broken)


def test_the_best_epoch_and_the_description_of_a_run(tmp_path: Path, kit: Any, seen: Any) -> None:
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
    note = children["aaaa"].data.tags["mlflow.note.content"]
    assert note.splitlines() == [
        "Best at epoch 2: Model Utility 0.650 (87% of the start's), log10 Forget Quality -3.00.  ",
        "30 s of training and 6 s of evaluation on `cpu`, 264 MiB at most.",
    ]
    # It forgets best of all, and is worth nothing: no epoch of it is a best one.
    assert not [k for k in children["bbbb"].data.metrics if k.startswith("best/")]


def test_the_moment_of_an_epoch_is_counted_back_from_the_end(kit: Any) -> None:
    record = kit.record("aaaa")
    moments = {(v.name, v.step): v.moment for v in metrics(record)}
    end = moments["model_utility", 2]
    assert end - moments["model_utility", 1] == 3000
    assert moments["train/loss", 0] == moments["model_utility", 1]
    assert moments["train/loss", 2] == end
    cut = kit.record("bbbb", epochs=record.epochs[:1])  # it failed in the second epoch
    assert {v.moment for v in metrics(cut) if v.name == "train/loss"} == {end}


def test_numbers_sort_correctly_as_text(kit: Any) -> None:
    rates = [2e-6, 1e-5, 2e-5, 1e-4, 3e-3, 0.1]
    texts = [params(kit.record("aaaa", learning_rate=rate))["learning_rate"] for rate in rates]
    assert texts == sorted(texts) == ["0.000002", "0.00001", "0.00002", "0.0001", "0.003", "0.1"]
    assert [float(text) for text in texts] == rates


def test_the_load_of_the_machine_is_logged_to_the_parent(
    tmp_path: Path, kit: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psutil")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    config = kit.config()
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    warnings: list[str] = []
    with SweepTracker(config.tracking, folder, config, warn=warnings.append) as tracker:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = seen(f"sqlite:///{folder}/mlflow.db").parents
            if found and "system/cpu_utilization_percentage" in found[0].data.metrics:
                break
            time.sleep(0.2)
        tracker.log(kit.record("aaaa"))
    (parent,) = seen(f"sqlite:///{folder}/mlflow.db").parents
    assert "system/system_memory_usage_megabytes" in parent.data.metrics
    assert warnings == []
    threads = [t.name for t in threading.enumerate()]
    assert "SystemMetricsMonitor" not in threads
    # What logs an old sweep is not its machine; and it can be switched off.
    assert replay(folder, f"sqlite:///{tmp_path}/other.db").logged == 1
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    with SweepTracker(config.tracking, folder, config) as tracker:
        tracker.settle()
        assert "SystemMetricsMonitor" not in [t.name for t in threading.enumerate()]
    (other,) = seen(f"sqlite:///{tmp_path}/other.db").parents
    assert not [name for name in other.data.metrics if name.startswith("system/")]


FIGURES = sweep_tracker.FIGURES


def test_figures_are_pages_as_wide_as_their_frame(
    tmp_path: Path, kit: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_tracker, "FIGURES", FIGURES)
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    drawn = {f for f in store.artifacts(store.parents[0].info.run_id) if "/" in f}
    assert drawn == {"figures/pareto.html", "figures/trajectories.html"}
    (page,) = folder.rglob("pareto.html")
    text = page.read_text(encoding="utf-8")
    assert "Plotly.newPlot" in text
    drawing = text[text.rindex("Plotly.newPlot") :]
    assert not re.search(r'"width":\d{3}', drawing), "hundreds of pixels are a layout's own width"
    assert '"responsive": true' in text


def test_no_figures_without_a_dashboard(
    tmp_path: Path, kit: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(_: str) -> tuple[str, ...]:
        return ("page",)

    monkeypatch.setattr(sweep_tracker, "FIGURES", FIGURES)
    monkeypatch.setattr(sweep_tracker, "names", installed)
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    assert not [f for f in store.artifacts(store.parents[0].info.run_id) if "/" in f]
