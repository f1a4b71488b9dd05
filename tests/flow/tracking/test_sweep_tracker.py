"""Tracker: nested runs, metrics by step, and servers that fail."""

import json
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unlearnbench.analysis.results import LINKS_FILE, Results
from unlearnbench.base.console import Console
from unlearnbench.config.plan import make_plan
from unlearnbench.report.mlflow_store import store_uri
from unlearnbench.report.sweep_tracker import SweepTracker, replay, sweep_config
from unlearnbench.report.tracked_runs import metric_name, variant_group
from unlearnbench.results.records import EpochResult, read_records, write_record
from unlearnbench.results.remote_copies import Storage
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState


def test_a_run_has_its_series_by_step(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    child, (parent,) = store.children["aaaa"], store.parents
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.info.run_name == "1e-4 s3 npo+nll"

    def series(name: str) -> list[tuple[int, float]]:
        found = store.client.get_metric_history(child.info.run_id, name)
        return [(point.step, point.value) for point in found]

    assert series("model_utility") == [(1, 0.7), (2, 0.6)]
    assert series("train/loss_retain") == [(0, 1.0), (1, 0.0), (2, -1.0)]
    assert "forget_quality" not in child.data.metrics  # undefined, and not a number


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
def unresponsive(backlog: int) -> Generator[str]:
    """An address that accepts connections and never responds; without a backlog it refuses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if backlog:
            listener.listen(backlog)
        yield f"http://me:secret@127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("backlog", [0, 50])
def test_a_server_that_fails_costs_one_warning_and_little_time(
    backlog: int, tmp_path: Path, kit: Any
) -> None:
    with unresponsive(backlog) as uri:
        config = kit.config(uri=uri)
        folder = kit.stored(tmp_path / "small", kit.record("aaaa"), config=config)
        warnings: list[str] = []
        begin = time.monotonic()
        with SweepTracker(
            config.tracking, folder, config, warn=warnings.append, seconds=1.0
        ) as tracker:
            for _ in range(3):
                tracker.log(kit.record("aaaa"))
        assert time.monotonic() - begin < 10
        (warning,) = warnings
        assert f"unlearnbench track {folder}" in warning
        assert tracker.trouble is not None
        assert "secret" not in warning + tracker.trouble
    assert replay(folder, f"sqlite:///{tmp_path}/later.db").logged == 1


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
    store = seen(f"sqlite:///{folder}/mlflow.db")
    store.client.update_run(store.children["aaaa"].info.run_id, status="RUNNING")
    assert replay(folder).logged == 1, "it was logged in part"
    failed = kit.record("cccc", status="failed", error="boom", evaluations={})
    more = (kit.record("bbbb", seed=4), failed, kit.record("dddd", status="stopped"))
    kit.stored(folder, kit.record("aaaa"), *more)
    write_record(kit.record("eeee", seed=5), folder)  # of an earlier plan
    assert replay(folder).logged == 3
    assert replay(folder).logged == 0
    assert seen(f"sqlite:///{folder}/mlflow.db").parents[0].info.status == "KILLED", "one failed"
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


def test_the_store_has_the_numbers_of_the_table(tmp_path: Path, seen: Any) -> None:
    """Also those that records lack: a retain model's, which are relative to the start model."""
    folder = tmp_path / "small"
    shutil.copytree(SWEEP, folder)
    replay(folder)
    assert_store_equals_table(seen(f"sqlite:///{folder}/mlflow.db"), folder)


def test_a_running_sweep_logs_the_numbers_of_its_table(tmp_path: Path, seen: Any) -> None:
    """A retain model has numbers that are relative to the start model, which is evaluated later."""
    folder, config = tmp_path / "small", sweep_config(SWEEP)
    shutil.copytree(SWEEP, folder, ignore=shutil.ignore_patterns("records"))
    records = sorted(read_records(SWEEP), key=lambda record: KINDS.index(record.kind))
    runs: Any = tuple(SimpleNamespace(id=r.id) for r in records if r.kind == "run")
    plan = replace(make_plan(config, "data"), runs=runs, references=None)
    progress = Progress(Console(err=StringIO()), config.headline)
    with SweepTracker(config.tracking, folder, config) as tracker:
        state = SweepState(folder, progress, tracker, Storage(None, {}))
        for record in records:
            write_record(record, folder)
            state.track_finished(plan)
        tracker.settle()
    assert tracker.trouble is None
    store = seen(f"sqlite:///{folder}/mlflow.db")
    assert_store_equals_table(store, folder)
    assert replay(folder).logged == 0, "nothing has changed"
    assert json.loads((folder / LINKS_FILE).read_text())["runs"].keys() == {r.id for r in records}


KINDS = ("retain", "fine-tuned", "run")
SWEEP = Path(__file__).parents[2] / "data" / "small_sweep"


def assert_store_equals_table(store: Any, folder: Path) -> None:
    """Every number of the table is in the store, at its step, and no other number of a model."""
    results = Results.read(folder)
    assert store.children.keys() == {record.id for record in results.records}
    expected: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in (*results.rows, *results.attacked):
        for column, value in row.metrics.items():
            if row.variant:
                name = f"{variant_group(row.variant)}/{column}"
            else:
                name = metric_name(column, row.schema.columns)
            if value is not None:
                expected[row.run_id, name][row.epoch] = value
    found: dict[tuple[str, str], dict[int, float]] = {}
    for run_id, child in store.children.items():
        for name in child.data.metrics:
            if not name.startswith(("system/", "train/", "best/", "at_a_glance/")):
                history = store.client.get_metric_history(child.info.run_id, name)
                found[run_id, name] = {point.step: point.value for point in history}
                assert len(found[run_id, name]) == len(history)
    assert found == expected
