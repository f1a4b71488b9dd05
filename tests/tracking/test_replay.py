"""Replay: missing runs are logged, complete ones stay, incomplete ones are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.errors import RecordError
from unlearnbench.reporting.tracker_links import read_links
from unlearnbench.results.records import write_record
from unlearnbench.tracking import SweepTracker, replay
from unlearnbench.tracking.mlflow.store import MlflowStore


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
    """Ids, tags, metrics, inputs and files of all runs in a store."""
    found = {}
    for run in [*store.parents, *store.children.values()]:
        inputs = sorted(
            (one.dataset.name, one.dataset.digest, one.tags[0].value)
            for one in run.inputs.dataset_inputs
        )
        files = sorted(store.artifacts(run.info.run_id))
        spent = (run.info.start_time, run.info.end_time, run.info.status)
        found[run.info.run_id] = (run.data.tags, run.data.metrics, inputs, files, spent)
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
    _, _, inputs, files, spent = before[parent.info.run_id]
    assert {"report.html", "results.csv", "sweep.log", "plan.json"} <= set(files)
    assert spent[1] - spent[0] == 60_000, "the time of the sweep, not of the replay"
    assert inputs == [
        ("synthetic-evaluation-forget10", "d1d1", "evaluation"),
        ("synthetic-forget10", "d1d1", "forget"),
        ("synthetic-retain90", "d1d1", "retain"),
    ]
    assert before[store.children["aaaa"].info.run_id][2] == inputs
    assert before[store.children["5a5a"].info.run_id][2] == inputs[:1]  # evaluated, not trained

    again = replay(folder)
    assert (again.logged, again.records) == (0, 2)
    assert everything(seen(f"sqlite:///{folder}/mlflow.db")) == before


def test_an_interrupted_replay_is_completed(
    tmp_path: Path, kit: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [kit.record(one) for one in ("aaaa", "bbbb", "cccc")]
    folder = kit.stored(tmp_path / "small", *records)
    whole = MlflowStore._send  # pyright: ignore[reportPrivateUsage]

    def dies(self: MlflowStore, run: str, record: Any, start: Any) -> None:
        if record.id == "bbbb":
            raise KeyboardInterrupt
        whole(self, run, record, start)

    monkeypatch.setattr(MlflowStore, "_send", dies)
    uri = f"sqlite:///{folder}/mlflow.db"
    store = MlflowStore(uri, folder, kit.config(), kit.config().tracking)
    assert store.log(records[0])
    with pytest.raises(KeyboardInterrupt):
        store.log(records[1])
    cut = {name: run.info.status for name, run in seen(uri).children.items()}
    assert cut == {"aaaa": "FINISHED", "bbbb": "RUNNING"}
    monkeypatch.undo()
    assert replay(folder).logged == 2
    children = seen(uri).children
    assert {name: run.info.status for name, run in children.items()} == dict.fromkeys(
        ("aaaa", "bbbb", "cccc"), "FINISHED"
    )
    assert children["bbbb"].data.metrics == children["aaaa"].data.metrics


def test_runs_of_an_older_schema_are_replaced(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    replay(folder)
    uri = f"sqlite:///{folder}/mlflow.db"
    store = seen(uri)
    store.client.delete_tag(store.children["aaaa"].info.run_id, "unlearnbench.schema")
    assert replay(folder).logged == 1
    assert seen(uri).runs == 2


def test_an_edited_description_stays(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    replay(folder)
    uri = f"sqlite:///{folder}/mlflow.db"
    store = seen(uri)
    (parent,) = store.parents
    assert "1 of 1 runs finished" in parent.data.tags["mlflow.note.content"]
    kit.stored(folder, kit.record("aaaa"), kit.record("bbbb"))
    replay(folder)
    (parent,) = seen(uri).parents
    assert "2 runs, all finished" in parent.data.tags["mlflow.note.content"]
    store.client.set_tag(parent.info.run_id, "mlflow.note.content", "See page 3 of my notes.")
    replay(folder)
    (parent,) = seen(uri).parents
    assert parent.data.tags["mlflow.note.content"] == "See page 3 of my notes."


def test_a_store_without_pages_has_no_links(tmp_path: Path, kit: Any) -> None:
    folder = kit.stored(tmp_path / "small", kit.record("aaaa"))
    done = replay(folder)
    assert (done.address, read_links(folder)) == (None, None)
    assert done.uri == f"sqlite:///{folder}/mlflow.db"
    with SweepTracker(kit.config().tracking, folder, kit.config()) as tracker:
        tracker.settle()
        assert tracker.links is None
