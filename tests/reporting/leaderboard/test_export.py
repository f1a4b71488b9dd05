"""Export of folders to boards and tables, from Python and the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.best_settings import average_seeds
from unlearnbench.cli.main import main
from unlearnbench.evaluation.columns import own_columns
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.reporting.leaderboard.export import export, records_of, tables
from unlearnbench.reporting.leaderboard.merge import Refusal, merge
from unlearnbench.results.records import Record, read_records, write_record
from unlearnbench.results.table import table

from .conftest import PROFILE, Sweep, lines_of, runs


def cli(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["leaderboard", *map(str, words)])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_line_contains_no_text_of_questions_answers_or_machine(sweep: Sweep) -> None:
    text = "\n".join(lines_of(sweep("a")))
    for secret in ("Secret", "True answer", "a-private-name"):
        assert secret not in text


def test_a_board_makes_the_table_that_its_folder_makes(sweep: Sweep) -> None:
    folder = sweep("a", seeds=(0, 1, 2))
    board = merge((str(i), line) for i, line in enumerate(lines_of(folder)))
    (rows,) = tables(board.entries).values()
    own = own_columns()
    assert len(own) == 17
    assert rows == tuple(
        replace(row, metrics={name: row.metrics[name] for name in own})
        for row in table(read_records(folder))
    )


def test_runs_that_were_trained_in_another_way_are_other_settings(sweep: Sweep) -> None:
    small = lines_of(sweep("a", ("npo",), (0, 1)))
    large = lines_of(sweep("b", ("npo",), (0, 1), training={"batch_size": 64}))
    board = merge((str(i), line) for i, line in enumerate([*small, *large]))
    settings = average_seeds(table(records_of(board.entries)))
    assert {(s.method, len(s.rows)) for s in settings} == {
        ("npo (training.batch_size=32)", 2),
        ("npo (training.batch_size=64)", 2),
    }


def test_unverifiable_records_are_skipped_with_the_reason(sweep: Sweep) -> None:
    folder = sweep("a", ("npo",), (0,))
    (record,) = [r for r in read_records(folder) if r.kind == "run"]
    other, bare = runs(("ce-u",), (0, 1), "0" * 16, {})

    def stored_record(run: RunSpec, status: Any) -> Record:
        spec = run.to_json()
        return replace(record, id=run.id, spec=spec, method="ce-u", status=status, evaluations={})

    write_record(stored_record(other, "failed"), folder)
    write_record(stored_record(bare, "finished"), folder)
    refused: list[Refusal] = []
    assert len(list(export(folder, refused))) == 3
    why = {one.id: one.reason for one in refused}
    assert why.pop(other.id) == "its run failed"
    assert "no evaluation of epoch 1 is stored" in why.pop(bare.id)
    assert why == {}


def test_export_merge_show(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = sweep("a", seeds=(0, 1)), sweep("b", seeds=(1, 2))
    one, two, out = (
        tmp_path / "one.jsonl",
        tmp_path / "two.jsonl",
        tmp_path / "deep" / "board.jsonl",
    )
    code, output, _ = cli(capsys, "export", a, "--out", one)
    assert code == 0
    assert output.startswith(f"{one}: 6 lines, ")
    code, output, err = cli(capsys, "export", b)
    assert code == 0
    assert len(output.splitlines()) == 6
    assert "6 lines, " in err
    two.write_text(output)
    code, output, _ = cli(capsys, "merge", one, two, "--out", out, "--json")
    table_text = json.loads(output)
    assert (code, table_text["lines"], table_text["equal"], table_text["refused"]) == (0, 8, 4, [])
    assert table_text["bytes"] == out.stat().st_size
    assert cli(capsys, "merge", two, one)[1] == out.read_text()
    assert cli(capsys, "export", a, b)[1] == out.read_text()

    code, output, _ = cli(capsys, "show", out)
    assert code == 0
    assert f"best of each method, by {PROFILE.id}" in output
    assert " to " in output, "an interval over seeds"
    page = tmp_path / "board.html"
    code, output, _ = cli(capsys, "show", out, "--json", "--page", page)
    best = json.loads(output)["best"][PROFILE.id]
    assert {line["method"] for line in best} == {"npo", "ce-u"}
    assert all(line["setting"]["seeds"] == [0, 1, 2] for line in best)
    assert all(line["setting"]["intervals"]["model_utility"]["n"] == 3 for line in best)
    assert "leaderboard" in page.read_text()
    assert page.with_suffix(".csv").is_file()


def test_a_refusal_is_exit_code_1_with_its_place(
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
        code, output, err = cli(capsys, *words)
        assert (code, output) == (2, "")
        assert str(file) in err
    assert out.read_text() == "as it was"


def test_other_mistakes_are_reported(
    sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sweep("a", ("npo",), (0,))
    assert "cannot be read" in cli(capsys, "merge", tmp_path / "none.jsonl")[2]
    assert "is not a sweep folder" in cli(capsys, "export", tmp_path / "none")[2]
    assert "give --out FILE for the lines" in cli(capsys, "export", folder, "--json")[2]
    code, _, err = cli(capsys, "export", folder, "--out", folder)
    assert code == 2
    assert "cannot write the leaderboard" in err
    assert not list(tmp_path.rglob(".part-*"))
    (file,) = [*(folder / "records").glob("*/epoch-2.safetensors")]
    file.write_bytes(b"damaged")
    code, output, err = cli(capsys, "export", folder)
    assert code == 1
    assert len(output.splitlines()) == 2, "the others are whole"
    assert f"{file}: damaged" in err


def test_models_under_attacks_have_no_lines(sweep: Sweep) -> None:
    folder = sweep("a", ("npo",), (0,))
    refused: list[Refusal] = []
    lines = [line for _, line in export(folder, refused)]
    for record in read_records(folder):
        if record.kind != "run":
            under = (replace(record.epochs[0], variant="relearning@13"),)
            own: dict[str, Any] = {"epochs": (), "evaluations": {}, "attacked": under}
            write_record(replace(record, id=f"{record.id}a", **own), folder)
    assert [line for _, line in export(folder, refused)] == lines
    assert not refused
