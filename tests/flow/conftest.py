"""Prepared models for tests of runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.results.records import StoredFile
from unlearnbench.runs import workspace
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks

from .small_run import config_of, runs_of


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and anchors of the small configuration, made once."""
    folder = tmp_path_factory.mktemp("prepared")
    config = config_of(folder)
    for task in preparation_tasks(config, runs_of(config), folder / "runs" / "small"):
        execute_task(task, config, folder / "runs" / "small")
    return folder


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the records whose observations are read from now on."""
    names: list[str] = []
    read: Any = StoredFile.read

    def read_and_note(file: StoredFile) -> Any:
        names.append(file.path.parent.name)
        return read(file)

    monkeypatch.setattr(StoredFile, "read", read_and_note)
    return names


@pytest.fixture
def place(prepared_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the prepared models with the anchors' records, in a folder of its own."""
    shutil.copytree(prepared_folder, tmp_path, dirs_exist_ok=True)
    workspace.clear_workspaces()
    yield tmp_path
    workspace.clear_workspaces()
