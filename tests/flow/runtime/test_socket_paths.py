"""Sockets get short paths wherever TMPDIR is, and a folder without room is named."""

import os
import tempfile
from multiprocessing import connection, process
from pathlib import Path

import pytest

from unlearnbench.base import socket_paths
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.socket_paths import short_process_sockets, short_ray_sockets

LONG = "x" * 94
"""Folder of a job, as batch systems name it."""
MOST = 39
"""Bytes of a folder that leaves room for Ray's own part."""


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is found once in a process


def longest_path(folder: str) -> bytes:
    """The path of Ray's socket with the longest name."""
    path = f"{folder}/ray/session_2026-11-27_17-52-00_299942_4194304/sockets/plasma_store"
    return os.fsencode(path)


def temporary(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make a folder the temporary one."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(folder))
    tempfile.tempdir = None


def test_a_short_folder_is_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("/tmp", "/" + "x" * (MOST - 1)):
        monkeypatch.setenv("RAY_TMPDIR", folder)
        with short_ray_sockets():
            assert os.environ["RAY_TMPDIR"] == folder
        assert len(longest_path(folder)) <= 107


def test_a_long_folder_is_replaced_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (LONG, "ä" * 40):
        temporary(monkeypatch, tmp_path / name)
        with short_ray_sockets():
            short = Path(os.environ["RAY_TMPDIR"])
            assert short.is_dir()
            assert len(longest_path(str(short))) <= 107
        assert not short.exists()
        assert "RAY_TMPDIR" not in os.environ


def test_a_server_of_processes_gets_a_short_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    temporary(monkeypatch, tmp_path / LONG)
    monkeypatch.setattr(process.current_process(), "_config", {})  # it keeps the folder
    with short_process_sockets(), connection.Listener(family="AF_UNIX") as listener:
        assert len(os.fsencode(str(listener.address))) <= 107
    assert tempfile.gettempdir() == str(tmp_path / LONG)


def test_a_folder_without_room_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / LONG
    temporary(monkeypatch, place)
    monkeypatch.setattr(socket_paths, "SHORT_FOLDERS", (str(tmp_path / "missing"),))
    with pytest.raises(UnlearnbenchError) as error, short_ray_sockets():
        pass
    size = len(os.fsencode(place))
    fix = "a short folder on this machine that you may write to"
    rule = f"has {size} bytes, and sockets need a folder whose path has at most"
    assert str(error.value) == f"TMPDIR: the path {place} {rule} {MOST}; set RAY_TMPDIR to {fix}"
    with pytest.raises(UnlearnbenchError) as error, short_process_sockets():
        pass
    assert str(error.value) == f"TMPDIR: the path {place} {rule} 75; set TMPDIR to {fix}"
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    with pytest.raises(UnlearnbenchError, match=r"^RAY_TMPDIR: "), short_ray_sockets():
        pass
