"""Links to MLflow: written, validated when read, and shown by reports."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.reporting.report import build_report
from unlearnbench.reporting.tracker_links import (
    LINKS_FILE,
    Links,
    read_links,
    server_of,
    write_links,
)
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.runtime.redaction import redact

LINKS = Links("https://mlflow.example/base", "7", "f00d", {"aaaa": "beef"})


def test_they_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_links(LINKS, tmp_path)
    assert read_links(tmp_path) == LINKS
    assert [path.name for path in tmp_path.iterdir()] == [LINKS_FILE]
    pages = "https://mlflow.example/base/#/experiments/7/runs"
    training = "workflowType=machine_learning"
    assert LINKS.by_record() == {"aaaa": f"{pages}/beef?{training}"}
    assert LINKS.of_sweep == f"{pages}/f00d?{training}"
    assert LINKS.of_experiment == f"{pages}?{training}"


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "{",
        "[]",
        "null",
        '{"server": 3}',
        b"\xff\xfe",
        {"runs": []},
        {"runs": {"aaaa": "../../x"}},
        {"experiment": "7/runs/x?"},
        {"server": "javascript:alert(1)//"},
        {"server": "file:///etc"},
        {"server": "http://"},
    ],
)
def test_what_is_damaged_or_tampered_with_is_no_link_and_no_error(
    tmp_path: Path, stored: str | bytes | dict[str, Any]
) -> None:
    path = tmp_path / LINKS_FILE
    if isinstance(stored, bytes):
        path.write_bytes(stored)
    else:
        path.write_text(stored if isinstance(stored, str) else json.dumps(asdict(LINKS) | stored))
    assert read_links(tmp_path) is None


def test_a_report_has_them(tmp_path: Path) -> None:
    record = Record(
        id="aaaa",
        kind="run",
        model="tiny",
        forget_fraction=0.1,
        method="npo",
        learning_rate=1e-4,
        seed=0,
        spec={},
        status="finished",
        profile="tofu@0",
        epochs=(EpochResult(1, {"model_utility": 0.5}, 1.0, 1.0),),
    )
    write_record(record, tmp_path)
    assert build_report(tmp_path).links == {}
    write_links(LINKS, tmp_path)
    assert build_report(tmp_path).links == LINKS.by_record()
    (tmp_path / LINKS_FILE).write_text('{"server": "https://mlf')
    assert build_report(tmp_path).links == {}


@pytest.mark.parametrize(
    ("uri", "expected", "server"),
    [
        ("http://h:1/", "http://h:1/", "http://h:1"),
        ("https://me:secret@h/mlflow/", "https://h/mlflow/", "https://h/mlflow"),
        ("postgresql://me:secret@h:5432/db", "postgresql://h:5432/db", None),
        ("sqlite:////tmp/a@b/mlflow.db", "sqlite:////tmp/a@b/mlflow.db", None),
        ("databricks", "databricks", None),
    ],
)
def test_no_password_is_shown(uri: str, expected: str, server: str | None) -> None:
    assert (redact(uri), server_of(uri)) == (expected, server)
