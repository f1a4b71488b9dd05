"""`ui`: which address it prints, and which store it serves."""

import os
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.errors import RecordError
from unlearnbench.report.links import show_in_mlflow, ui_command, write_links


@pytest.mark.parametrize("store", ["", "sqlite:///other.db"])
def test_a_local_store_is_served_on_loopback(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, command, __: served.append(command))  # pyright: ignore
    (tmp_path / "mlflow.db").touch()
    write_links(tmp_path, f"{store}#/experiments/1/runs", {})
    shown: list[str] = []
    show_in_mlflow(tmp_path, 5077, shown.append)
    assert shown == ["http://127.0.0.1:5077/#/experiments/1/runs  (Ctrl-C ends it)"]
    ((*_, uri, _, host, _, port, _, _, _, _),) = served
    assert uri == (store or f"sqlite:///{tmp_path}/mlflow.db")
    assert (host, port) == ("127.0.0.1", "5077")


def test_a_server_is_named_and_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "execve")
    write_links(tmp_path, "http://h:1/#/experiments/1/runs", {})
    shown: list[Any] = []
    show_in_mlflow(tmp_path, 5000, shown.append)
    assert shown == ["http://h:1/#/experiments/1/runs"]


def test_a_sweep_that_is_not_logged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"is not logged; `unlearnbench track "):
        show_in_mlflow(tmp_path, 5000, print)
    write_links(tmp_path, "#/experiments/1/runs", {})
    with pytest.raises(RecordError, match=r"mlflow\.db does not exist; `unlearnbench track "):
        show_in_mlflow(tmp_path, 5000, print)
    assert ui_command(tmp_path, tracked=False).startswith("unlearnbench track ")
