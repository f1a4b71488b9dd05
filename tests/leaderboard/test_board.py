"""From folders to boards to tables, on the command line, too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.cli import main
from unlearnbench.leaderboard.board import export, records_of, tables
from unlearnbench.leaderboard.merge import merge
from unlearnbench.plan import RunSpec
from unlearnbench.ranking import average_seeds
from unlearnbench.records import Record, read_records, write_record
from unlearnbench.table import table

from .conftest import PROFILE, Sweep, lines_of, runs


def cli(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["leaderboard", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_line_holds_no_text_of_questions_or_answers_nor_of_the_machine(sweep: Sweep) -> None:
    text = "\n".join(lines_of(sweep("a")))
    for secret in ("Secret", "True answer", "a-private-name"):
        assert secret not in text


def test_a_board_makes_the_table_that_its_folder_makes(sweep: Sweep) -> None:
    folder = sweep("a", seeds=(0, 1, 2))
    board = merge((str(i), line) for i, line in enumerate(lines_of(folder)))
    assert tables(board.entries) == {PROFILE.id: table(read_records(folder))}


def test_runs_that_were_trained_in_another_way_are_other_settings(sweep: Sweep) -> None:
    small = lines_of(sweep("a", ("npo",), (0, 1)))
    large = lines_of(sweep("b", ("npo",), (0, 1), training={"batch_size": 64}))
    board = merge((str(i), line) for i, line in enumerate([*small, *large]))
    settings = average_seeds(table(records_of(board.entries)))
    assert {(s.method, len(s.rows)) for s in settings} == {
        ("npo (training.batch_size=32)", 2),
        ("npo (training.batch_size=64)", 2),
    }


def test_what_cannot_be_proved_is_left_out_with_its_reason(sweep: Sweep) -> None:
    folder = sweep("a", ("npo",), (0,))
    (record,) = [r for r in read_records(folder) if r.kind == "run"]
    other, bare = runs(("ce-u",), (0, 1), "0" * 16, {})

    def kept(run: RunSpec, status: Any) -> Record:
        spec = run.to_json()
        return replace(record, id=run.id, spec=spec, method="ce-u", status=status, evaluations={})

    write_record(kept(other, "failed"), folder)
    write_record(kept(bare, "finished"), folder)
    why = {one.id: one.why_not for one in export(folder)}
    assert why.pop(other.id) == "its run failed"
    assert "no evaluation of epoch 1 is kept" in why.pop(bare.id)
    assert set(why.values()) == {""}


def test_export_merge_show(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = sweep("a", seeds=(0, 1)), sweep("b", seeds=(1, 2))
    one, two, out = (
        tmp_path / "one.jsonl",
        tmp_path / "two.jsonl",
        tmp_path / "deep" / "board.jsonl",
    )
    code, said, _ = cli(capsys, "export", a, "--out", one)
    assert code == 0
    assert said.startswith(f"{one}: 6 lines, ")
    code, said, err = cli(capsys, "export", b)
    assert code == 0
    assert len(said.splitlines()) == 6
    assert "6 lines, " in err
    two.write_text(said)
    code, said, _ = cli(capsys, "merge", one, two, "--out", out, "--json")
    told = json.loads(said)
    assert (code, told["lines"], told["equal"], told["refused"]) == (0, 8, 4, [])
    assert told["bytes"] == out.stat().st_size
    assert cli(capsys, "merge", two, one)[1] == out.read_text()
    assert cli(capsys, "export", a, b)[1] == out.read_text()

    code, said, _ = cli(capsys, "show", out)
    assert code == 0
    assert f"best of each method, by {PROFILE.id}" in said
    assert " to " in said, "an interval over seeds"
    page = tmp_path / "board.html"
    code, said, _ = cli(capsys, "show", out, "--json", "--page", page)
    best = json.loads(said)["best"][PROFILE.id]
    assert {line["method"] for line in best} == {"npo", "ce-u"}
    assert all(line["setting"]["seeds"] == [0, 1, 2] for line in best)
    assert all(line["setting"]["intervals"]["model_utility"]["n"] == 3 for line in best)
    assert "leaderboard" in page.read_text()
    assert page.with_suffix(".csv").is_file()


def test_a_refusal_is_exit_code_1_and_says_where(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "one.jsonl", tmp_path / "out.jsonl"
    lines = lines_of(sweep("a"))
    file.write_text("\n".join([*lines, "", lines[0][:-40]]))
    code, _, err = cli(capsys, "merge", file, "--out", out)
    assert code == 1
    assert f"{file}:{len(lines) + 2}: record " in err
    assert "cut short" in err
    assert sorted(out.read_text().splitlines()) == sorted(lines)
    assert cli(capsys, "show", file)[0] == 1


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe\x00", b"nonsense\n"])
def test_what_is_of_no_use_is_exit_code_2_and_writes_nothing(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "one.jsonl", tmp_path / "out.jsonl"
    file.write_bytes(content)
    out.write_text("as it was")
    for words in (("merge", file, "--out", out), ("show", file)):
        code, said, err = cli(capsys, *words)
        assert (code, said) == (2, "")
        assert str(file) in err
    assert out.read_text() == "as it was"


def test_other_mistakes_are_told(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sweep("a", ("npo",), (0,))
    assert "cannot be read" in cli(capsys, "merge", tmp_path / "none.jsonl")[2]
    assert "is no sweep's folder" in cli(capsys, "export", tmp_path / "none")[2]
    assert "--out must say" in cli(capsys, "export", folder, "--json")[2]
    code, _, err = cli(capsys, "export", folder, "--out", folder)
    assert code == 2
    assert "cannot write the leaderboard" in err
    assert not list(tmp_path.glob("*.part"))
    (file,) = [*(folder / "records").glob("*/epoch-2.json.gz")]
    file.write_bytes(b"damaged")
    code, said, err = cli(capsys, "export", folder)
    assert code == 1
    assert len(said.splitlines()) == 2, "the others are whole"
    assert f"{file}: damaged" in err
