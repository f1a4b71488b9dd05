"""Files that machines share through a storage: whole or not at all, and checked by hash."""

import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import pytest

from unlearnbench.base.errors import StorageError
from unlearnbench.results.records import read_record, read_records
from unlearnbench.results.remote_copies import Storage
from unlearnbench.runs import workspace
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.run import run_epochs

from ..small_run import config_of, runs_of, without_times


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


def machine(url: str, folder: Path) -> Storage:
    """A machine that works in `folder`."""
    return Storage(url, {"small": folder / "small", "cache": folder / "cache"})


def write(place: Path, **files: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def contents(place: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in place.iterdir() if not p.name.startswith(".")}


def test_units_go_from_machine_to_machine_and_the_first_of_a_name_stays(
    tmp_path: Path, url: str
) -> None:
    one, two = machine(url, tmp_path / "one"), machine(url, tmp_path / "two")
    one.check()
    first = write(tmp_path / "one" / "small" / "records" / "a", record="1", epoch="2")
    place = tmp_path / "two" / "small" / "records" / "a"
    assert not two.has(place)
    assert not two.fetch(place)
    one.push(first)
    assert two.has(place)
    write(first, record="other")
    one.push(first)
    write(tmp_path / "two" / "small" / "records" / "b", record="3")
    two.share(place.parent)
    one.share(first.parent)
    assert contents(place) == {"record": "1", "epoch": "2"}
    assert contents(first.with_name("b")) == {"record": "3"}
    assert {p.name for p in place.parent.iterdir() if p.is_dir()} == {"a", "b"}, "no leftovers"
    with pytest.raises(StorageError, match="is in none of"):
        one.push(tmp_path)


def test_a_state_goes_on_where_another_machine_left_it(tmp_path: Path, url: str) -> None:
    one, two = machine(url, tmp_path / "one"), machine(url, tmp_path / "two")
    here, there = (tmp_path / name / "small" / "state" / "r" for name in ("one", "two"))
    one.push(write(here, progress="1", same="x"), changes=True)
    assert two.fetch(there, changes=True)
    (there / "same").unlink()
    two.push(write(there, progress="2"), changes=True)
    assert one.fetch(here, changes=True)
    assert contents(here) == {"progress": "2"}
    write(here, progress="3")  # this machine's own next epoch, not yet copied
    assert one.fetch(here, changes=True)
    assert contents(here) == {"progress": "3"}
    files: Any = fsspec.filesystem("memory")
    assert len(files.find(f"/{tmp_path.name}")) == 2, "manifest and one file: the old ones are gone"
    one.remove(here)
    assert not two.has(there)
    assert not files.find(f"/{tmp_path.name}")


def test_a_damaged_copy_counts_for_nothing_and_is_made_anew(tmp_path: Path, url: str) -> None:
    one, two = machine(url, tmp_path / "one"), machine(url, tmp_path / "two")
    first = write(tmp_path / "one" / "cache" / "models" / "full", weights="right")
    one.push(first)
    files: Any = fsspec.filesystem("memory")
    files.pipe_file(f"/{tmp_path.name}/cache/models/full/weights", b"wrong")
    place = tmp_path / "two" / "cache" / "models" / "full"
    assert not two.fetch(place)
    assert not place.exists()
    assert not one.has(first)
    one.push(first)
    assert two.fetch(place)
    assert contents(place) == {"weights": "right"}


def test_what_a_storage_had_stays_whole_where_a_copy_fails(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = machine(url, tmp_path / "one"), machine(url, tmp_path / "two")
    here, there = (tmp_path / name / "small" / "state" / "r" for name in ("one", "two"))
    one.push(write(here, progress="1"), changes=True)
    kind: Any = type(fsspec.filesystem("memory"))

    def failing(*_: Any) -> None:
        raise TimeoutError("no route to host")

    monkeypatch.setattr(kind, "pipe_file", failing)
    with pytest.raises(StorageError, match="cannot write: no route to host; results on this mach"):
        one.push(write(here, progress="3"), changes=True)
    assert contents(here) == {"progress": "3"}
    assert two.fetch(there, changes=True)
    assert contents(there) == {"progress": "1"}


def test_a_run_goes_on_on_a_machine_that_has_nothing_but_the_storage(tmp_path: Path) -> None:
    def work(name: str) -> tuple[Any, Path]:
        workspace.clear_workspaces()
        place = tmp_path / name
        stored = str(tmp_path / "stored")
        return config_of(place, storage=stored), place / "runs" / "small"

    config, folder = work("one")
    (spec,) = runs_of(config)
    for task in preparation_tasks(config, [spec], folder):
        execute_task(task, config, folder)
    through = list(run_epochs(spec, config, folder))
    alone = read_record(folder / "records" / spec.id)
    shutil.rmtree(tmp_path / "stored" / "small" / "records" / spec.id)

    config, folder = work("two")
    tasks = preparation_tasks(config, [spec], folder)
    assert [task.done for task in tasks] == [True, True, True, False, False, False]
    assert not list((tmp_path / "two").rglob("*.safetensors")), "nothing is copied in advance"
    begun = run_epochs(spec, config, folder)
    next(begun)
    next(begun)
    del begun

    config, folder = work("three")
    results = list(run_epochs(spec, config, folder))
    assert [result.metrics for result in results] == [result.metrics for result in through]
    took_over = read_record(folder / "records" / spec.id)
    assert without_times(took_over) == without_times(alone)
    assert took_over.epochs[0] == results[0], "its first epoch, times included, is the other's"
    assert not list((tmp_path / "stored" / "small").glob("state/*"))

    config, folder = work("four")
    assert not list(run_epochs(spec, config, folder))
    assert without_times(read_records(folder)[-1]) == without_times(alone)


@pytest.mark.parametrize(
    ("scheme", "extra", "driver"), [("s3", "s3", "s3fs"), ("gs", "gcs", "gcsfs")]
)
def test_a_storage_without_its_driver_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str, driver: str
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    # Without drivers that another test has imported.
    monkeypatch.setattr(import_module("fsspec.registry"), "_registry", {})
    storage = machine(f"{scheme}://user:secret@bucket/runs", tmp_path / "one")
    with pytest.raises(StorageError, match=rf"pip install 'unlearnbench\[{extra}\]'") as raised:
        storage.push(write(tmp_path / "one" / "small" / "records" / "r", record="1"))
    assert "secret" not in str(raised.value)
