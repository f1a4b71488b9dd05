"""Leaderboards as data sets of the library `datasets`."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.errors import RecordError
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.reporting.leaderboard.dataset import RETAIN, leaderboard_dataset
from unlearnbench.reporting.leaderboard.entry import canonical, unpack, with_hash

from .conftest import DATA, EARLY, ROWS, Sweep, lines_of

datasets: Any = pytest.importorskip("datasets", reason="needs the extra `datasets`")


def board(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_row_has_the_numbers_of_a_line_and_epoch(sweep: Sweep, tmp_path: Path) -> None:
    entries = [json.loads(line) for line in lines_of(sweep("a", ("npo",), (0,)))]
    (run,) = (entry for entry in entries if entry["kind"] == "run")
    run["identity"]["method"]["hyperparameters"] = {"beta": 0.5}
    run["id"] = content_hash(run["identity"])
    lines = [canonical(with_hash(entry)) for entry in entries]
    entries = [json.loads(line) for line in lines]
    found: Any = leaderboard_dataset(board(tmp_path / "a.jsonl", lines))
    expected = {(e["id"], epoch["epoch"]): (e, epoch) for e in entries for epoch in e["epochs"]}
    assert len(found) == len(expected) > len(entries)
    for row in found:
        entry, epoch = expected[row["id"], row["epoch"]]
        same = ("schema", "kind", "method", "model", "seed", "learning_rate", "profile", "sha256")
        assert {key: row[key] for key in same} == {key: entry[key] for key in same}
        assert {name: row[name] for name in epoch["metrics"]} == epoch["metrics"]
        assert (row["split"], row["benchmark"], row["data"]) == ("0.1", "synthetic", DATA)
        assert json.loads(row["identity"]) == entry["identity"]
        assert json.loads(row["git"])["commit"] == "c" * 40
        assert row["started"] == entry["provenance"]["started"]
        assert row["log"] == epoch["log"]
        assert row[RETAIN] == unpack(entry["retain"]).tolist()
        for name, arrays in epoch["evidence"].items():
            for key, text in arrays.items():
                stored, values = row[f"values.{name}.{key}"], unpack(text)
                assert len(stored) == ROWS
                assert all(
                    a == b or (math.isnan(a) and math.isnan(b))
                    for a, b in zip(stored, values, strict=True)
                )
    chosen = {row["kind"]: row["hyperparameters"] for row in found}
    assert chosen == {"run": '{"beta": 0.5}', "fine-tuned": "{}", "retain": "{}"}


def test_columns_are_the_same_whatever_lines_have(sweep: Sweep, tmp_path: Path) -> None:
    lines = lines_of(sweep("a"))
    kinds = [json.loads(line)["kind"] for line in lines]
    runs = [line for line, kind in zip(lines, kinds, strict=True) if kind == "run"]
    others = [line for line, kind in zip(lines, kinds, strict=True) if kind != "run"]
    first = leaderboard_dataset(one := board(tmp_path / "a.jsonl", runs))
    second = leaderboard_dataset(two := board(tmp_path / "b.jsonl", others))
    assert first.features == second.features
    assert len(leaderboard_dataset(one, two)) == len(first) + len(second)
    assert first.features["learning_rate"] == datasets.Value("float64")
    assert second["learning_rate"][:] == [None] * len(second)


def test_lines_of_schema_1_have_all_columns_of_later_ones(sweep: Sweep, tmp_path: Path) -> None:
    early: Any = leaderboard_dataset(board(tmp_path / "a.jsonl", EARLY))
    late: Any = leaderboard_dataset(
        board(tmp_path / "b.jsonl", lines_of(sweep("b", ("npo",), (0,))))
    )
    assert set(late.features) <= set(early.features)
    assert {(row["benchmark"], row["schema"]) for row in early} == {(None, 1)}
    assert early["values.forget.R"][:] == late["values.forget.R"][:]


def test_a_damaged_line_is_one_error_with_its_place(sweep: Sweep, tmp_path: Path) -> None:
    lines = lines_of(sweep("a", ("npo",), (0,)))
    lines[1] = lines[1].replace('"seed":0', '"seed":7')
    path = board(tmp_path / "a.jsonl", lines)
    with pytest.raises(RecordError, match=r"a\.jsonl:2: record \w{16}: .*sha256") as caught:
        leaderboard_dataset(path)
    assert "leaderboard merge" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecordError, match=r"none\.jsonl: cannot be read"):
        leaderboard_dataset(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match="no file is given"):
        leaderboard_dataset()


def test_without_the_library_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RecordError, match=r"pip install 'unlearnbench\[datasets\]'"):
        leaderboard_dataset("board.jsonl")


@pytest.mark.skipif(
    tuple(map(int, datasets.__version__.split(".")[:2])) < (5, 2),
    reason="older ones refuse a list of texts and numbers",
)
def test_datasets_opens_a_board_by_itself(sweep: Sweep, tmp_path: Path) -> None:
    path = board(tmp_path / "a.jsonl", lines_of(sweep("a", ("npo",), (0,))))
    found = datasets.load_dataset("json", data_files=str(path), cache_dir=str(tmp_path / "cache"))
    written = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert found["train"]["id"][:] == [one["id"] for one in written]
    assert found["train"]["sha256"][:] == [one["sha256"] for one in written]
