"""Entries of a run: names, moments, numbers as text, and which address `ui` prints."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.errors import RecordError
from unlearnbench.report.mlflow import show_in_mlflow
from unlearnbench.report.tracked_runs import RowsByRun, tracked_run
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record


def entry(record: Record) -> Any:
    rows = RowsByRun(table_of([record])).of(record)
    return tracked_run(record, rows, Path("nowhere"), "small")


def test_numbers_under_attacks_are_apart_from_plain_ones(kit: Any) -> None:
    plain = kit.record("aaaa")
    under = tuple(
        EpochResult(2, {"rouge_forget": value, "ks_n": None}, 0.0, 1.0, variant=variant)
        for variant, value in (("relearning@13", 0.25), ("own attack@a/b:c", 0.5))
    )
    points = entry(kit.record("aaaa", attacked=under)).points
    new = {one.name: one for one in points if one not in entry(plain).points}
    assert {name: (one.value, one.step) for name, one in new.items()} == {
        "under.relearning.13/rouge_forget": (0.25, 2),
        "under.own-attack.a-b-c/rouge_forget": (0.5, 2),
    }
    assert all(re.fullmatch(r"[/\w.-]+", name) for name in new), "which every store accepts"


def test_numbers_sort_correctly_as_text(kit: Any) -> None:
    rates = [2e-6, 1e-5, 2e-5, 1e-4, 3e-3, 0.1]
    texts = [entry(kit.record("a", learning_rate=r)).parameters["learning_rate"] for r in rates]
    assert texts == sorted(texts) == ["0.000002", "0.00001", "0.00002", "0.0001", "0.003", "0.1"]


@pytest.mark.parametrize("store", ["", "sqlite:///other.db", "http://h:1/"])
def test_ui_serves_a_local_store_on_loopback_and_names_a_server(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, command, __: served.append(command))  # pyright: ignore
    shown: list[str] = []
    with pytest.raises(RecordError, match=r"is not logged; `unlearnbench track "):
        show_in_mlflow(tmp_path, 5077, print)
    (tmp_path / "mlflow.db").touch()
    (tmp_path / "links.json").write_text(f'{{"sweep": "{store}#/experiments/1/runs"}}')
    show_in_mlflow(tmp_path, 5077, shown.append)
    if store.startswith("http"):
        assert (shown, served) == ([f"{store}#/experiments/1/runs"], [])
        return
    assert shown == ["http://127.0.0.1:5077/#/experiments/1/runs  (Ctrl-C ends it)"]
    assert {store or f"sqlite:///{tmp_path}/mlflow.db", "127.0.0.1", "5077"} < {*served[0]}
