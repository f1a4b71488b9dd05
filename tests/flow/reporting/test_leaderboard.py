"""Boards merge in any order to the same lines; what is damaged or does not fit stays out."""

import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.settings import average_seeds
from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.report.leaderboard import Board, boards, merge
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record, run_record, write_record
from unlearnbench.results.table import TableRow

from ...numbers.analysis.conftest import pointed

SPEC: dict[str, Any] = {
    "model": {"name": "tiny"},
    "method": {"name": "npo", "hyperparameters": {"beta": 0.1}},
    "training": {"batch_size": 32},
}


PROVENANCE = {"data": "d", "weights": "w", "started": "2026-01-01", "host": "private"}


def a_record(id_: str = "ab", seed: int = 0, utility: float = 0.5, **changes: Any) -> Record:
    made = pointed(id_, [(utility, None)], seed=seed)
    return replace(made, **{"spec": SPEC, "provenance": PROVENANCE, **changes})


def lines_of(*records: Record) -> list[str]:
    return Board(records).text.splitlines()


def merged(*lines: str) -> Board:
    return merge((f"f:{number}", line) for number, line in enumerate(lines, 1))


def test_any_order_gives_the_same_lines_and_nothing_private() -> None:
    lines = lines_of(a_record("aa"), a_record("bb", seed=1))
    board = merged(*lines, lines[0])
    again = merged(*board.text.splitlines())
    assert board.text == merged(*reversed(lines)).text == again.text
    assert (len(board.records), board.refused) == (2, ())
    assert "private" not in board.text
    assert board.records[1].seed == 1


def test_a_damaged_line_is_refused_with_its_place() -> None:
    line = lines_of(a_record())[0]
    board = merged(line.replace("0.5", "0.9"), line, "{")
    assert [line[:4] for line in board.refused] == ["f:1:", "f:3:"]
    assert "not what was exported" in board.refused[0]
    assert len(board.records) == 1


def test_the_earlier_of_two_runs_of_one_id_stays() -> None:
    later = {"data": "d", "weights": "w", "started": "2026-02-01"}
    lines = lines_of(a_record(utility=0.4, provenance=later), a_record())
    board = merged(*lines)
    assert board.records[0].epochs[0].metrics["model_utility"] == 0.5
    assert "f:2, which started earlier" in board.refused[0]


def test_of_two_exports_of_one_record_the_same_stays_in_any_order() -> None:
    """A version of the package may compute other numbers from the same observations."""
    lines = lines_of(a_record(utility=0.4), a_record(utility=0.6))
    board, turned = merged(*lines), merged(*reversed(lines))
    assert board.text == turned.text
    assert "computed by other code or settings; export both again" in board.refused[0]
    assert len(board.records) == len(board.refused) == 1
    newer = PROVENANCE | {"computed_by": "c0de"}
    lines = lines_of(a_record(utility=0.4), a_record(utility=0.6, provenance=newer))
    for board in (merged(*lines), merged(*reversed(lines))):
        assert board.records[0].epochs[0].metrics["model_utility"] == 0.6, "not of earlier versions"


def test_a_board_says_if_its_numbers_were_computed_by_different_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by = [PROVENANCE | more for more in ({"computed_by": "c0de"}, {"computed_by": "c0ffee"}, {})]
    records = [a_record(f"{i}a", seed=i, provenance=made) for i, made in enumerate(by)]
    path = tmp_path / "board.jsonl"
    told: list[bool] = []
    for some in (records, records[:1], records[2:]):
        path.write_text(Board(tuple(some)).text, encoding="utf-8")
        assert main(["leaderboard", "show", str(path)]) == 0
        told.append("1 by an earlier version, 1 by c0de, 1 by c0ffee" in capsys.readouterr().err)
    assert told == [True, False, False]


def test_a_record_of_other_data_is_refused() -> None:
    other = {"data": "x", "weights": "w"}
    board = merged(
        *lines_of(a_record("aa"), a_record("bb", seed=1), a_record("cc", provenance=other))
    )
    assert [line[:14] for line in board.refused] == ["f:3: record cc"]


def test_runs_that_trained_differently_are_other_settings() -> None:
    wide = SPEC | {"training": {"batch_size": 64}}
    (shown,) = boards([a_record("aa"), a_record("bb", seed=1, spec=wide)]).values()
    rows = shown.rows
    assert [row.setting.flat for row in rows] == [
        {"beta": 0.1, "training.batch_size": 32},
        {"beta": 0.1, "training.batch_size": 64},
    ]


def test_runs_of_other_code_or_with_other_hyper_parameters_are_other_settings() -> None:
    method: dict[str, Any] = SPEC["method"]
    code = SPEC | {"method": method | {"source": "0a1b"}}
    more = SPEC | {"method": method | {"hyperparameters": {"beta": 0.1, "gamma": 2.0}}}
    records = [a_record("aa"), a_record("bb", seed=1, spec=code), a_record("cc", seed=2, spec=more)]
    (shown,) = boards(records).values()
    rows = shown.rows
    assert len({row.method for row in rows if row.kind == "run"}) == 3


def test_a_sweep_is_exported_merged_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_record(a_record(), Path("runs/a"))
    failed = a_record("cd", status="failed", error="no memory", epochs=())
    write_record(failed, Path("runs/a"))
    assert main(["leaderboard", "export", "runs/a", "--out", "ours.jsonl"]) == 0
    assert main(["leaderboard", "merge", "ours.jsonl", "--out", "board.jsonl"]) == 0
    assert Path("board.jsonl").read_text() == Path("ours.jsonl").read_text()
    capsys.readouterr()
    assert main(["leaderboard", "show", "board.jsonl"]) == 0
    assert capsys.readouterr().out.startswith("best of each method, by ")
    Path("board.jsonl").write_text("{}\n")
    assert main(["leaderboard", "merge", "board.jsonl"]) == 2


def sequence(fractions: tuple[float, ...], seeds: tuple[int, ...] = (0, 1, 2)) -> list[Record]:
    """Records of a sweep of requests in sequence, with random numbers."""
    draw = random.Random(repr(fractions))
    config = load_config("quickstart").model_copy(
        update={"forget_fractions": fractions, "requests": "in-sequence", "seeds": seeds}
    )
    config = config.model_copy(update={"methods": config.methods[:2]})
    records: list[Record] = []
    for run in make_plan(config, "rows").runs:
        epochs = pointed(run.id, [(draw.random(), -9 * draw.random())]).epochs
        records.append(run_record(run, status="finished", epochs=epochs))
    return records


def numbers_of_settings(rows: Iterable[TableRow]) -> dict[Any, Any]:
    """What each setting is the mean of, and the mean."""
    return {
        (item.panel, item.method, item.learning_rate, item.epoch): (
            *(sorted(row.run_id for row in item.rows), item.kept, item.forgotten),
        )
        for item in average_seeds(rows)
    }


def test_a_board_averages_the_seeds_of_requests_in_sequence_as_the_page_does() -> None:
    records = sequence((0.05, 0.1, 0.2))
    board = merged(*lines_of(*records))
    assert board.refused == ()
    (shown,) = boards(board.records).values()
    rows = shown.rows
    assert numbers_of_settings(rows) == numbers_of_settings(table_of(records).rows)
    assert {len(setting.rows) for setting in average_seeds(rows)} == {3}
    assert not any("after" in row.method for row in rows)


@pytest.mark.parametrize("seed", range(8))
def test_a_board_has_the_settings_of_the_page(seed: int) -> None:
    """Of random sweeps: every number, and what it is the mean of."""
    draw = random.Random(seed)
    config = load_config("quickstart")
    changes: dict[str, Any] = {
        "forget_fractions": draw.choice(((0.1,), (0.05, 0.1))),
        "requests": draw.choice(("apart", "in-sequence")),
        "epochs_as": draw.choice(("checkpoints", "runs")),
        "epochs": draw.choice((1, 3)),
        "seeds": tuple(range(draw.choice((1, 3)))),
        "learning_rates": draw.choice(((1e-4,), (1e-4, 2e-4))),
        "methods": tuple(draw.sample(config.methods, 3)),
        "training": config.training.model_copy(update={"weight_decay": draw.choice((0.0, 0.1))}),
    }
    records: list[Record] = []
    for run in make_plan(config.model_copy(update=changes), "rows").runs:
        points = [(draw.random(), -9 * draw.random()) for _ in run.evaluate_at]
        found = pointed(run.id, points).epochs
        epochs = (replace(e, epoch=at) for e, at in zip(found, run.evaluate_at, strict=True))
        records.append(run_record(run, status="finished", epochs=tuple(epochs)))
    board = merged(*lines_of(*records))
    assert board.refused == ()
    (shown,) = boards(board.records).values()
    rows = shown.rows
    settings = numbers_of_settings(rows)
    assert settings == numbers_of_settings(table_of(records).rows)
    assert all(len(ids) == len(changes["seeds"]) for ids, _, _ in settings.values())


def test_runs_after_other_requests_are_other_settings() -> None:
    records = {record.id: record for record in sequence((0.05, 0.2)) + sequence((0.1, 0.2))}
    (shown,) = boards(records.values()).values()
    rows = shown.rows
    last = [setting for setting in average_seeds(rows) if setting.forget_fraction == 0.2]
    assert {len(setting.rows) for setting in last} == {3}
    for setting in last:
        assert len({row.setting.flat["after"] for row in setting.rows}) == 1
        before = {records[row.run_id].spec["after"] for row in setting.rows}
        assert len({records[id_].forget_fraction for id_ in before}) == 1


def test_settings_that_change_no_number_make_no_setting() -> None:
    """Another group may evaluate in other batches, with a version that stores fewer defaults."""
    first, second = sequence((0.1,), seeds=(0,)), sequence((0.1,), seeds=(1,))
    others: list[Record] = []
    for record in second:
        spec = json.loads(json.dumps(dict(record.spec)))
        spec["evaluation"] |= {"batch_tokens": 4096, "every": 3}
        del spec["training"]["optimizer"], spec["template_digest"]
        others.append(replace(record, spec=spec))
    (shown,) = boards(first + others).values()
    rows = shown.rows
    assert {len(setting.rows) for setting in average_seeds(rows)} == {2}
    assert numbers_of_settings(rows) == numbers_of_settings(table_of(first + second).rows)
