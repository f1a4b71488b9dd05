"""Texts of a user's own: where they are divided, and what is evaluated."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Dataset
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.texts import Texts, divided
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import UNLEARNBENCH
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.stats.words import unicode_words

FORGET = [f"The painter {i} was born in a small town and sold boats to the duke." for i in range(4)]
RETAIN = [f"The sculptor {i} lived in a large city and carved a horse of wood." for i in range(6)]


def write(file: Path, texts: Sequence[Any], column: str = "text") -> str:
    lines = [json.dumps({column: text}, ensure_ascii=False) for text in texts]
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


@pytest.fixture
def folder(working_folder: Path) -> Path:
    """Files forget.jsonl and retain.jsonl in the working directory."""
    write(working_folder / "forget.jsonl", FORGET)
    write(working_folder / "retain.jsonl", RETAIN)
    return working_folder


def loaded(**settings: Any) -> Dataset:
    return load_benchmark(Texts(**settings), ["all"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "one two three four five six seven eight",
            ("one two three four", " five six seven eight"),
        ),
        (
            "One, two; three.\n\nFour (five) six 7 8 9!",
            ("One, two; three.\n\nFour (", "five) six 7 8 9!"),
        ),
        ("一二三四五六七八九", ("一二三四", "五六七八九")),
        ("only seven words are in this text", None),
    ],
)
def test_a_text_is_divided_behind_half_of_its_words(
    text: str, expected: tuple[str, str] | None
) -> None:
    assert divided(text) == expected


@pytest.mark.parametrize("unit", ["word ", "字"])
def test_a_beginning_has_at_most_a_hundred_words(unit: str) -> None:
    parts = divided((unit * 1000).strip())
    assert parts is not None
    beginning, continuation = parts
    assert beginning + continuation == (unit * 1000).strip()
    assert len(unicode_words(beginning)) == 100


@pytest.mark.usefixtures("folder")
def test_texts_are_trained_whole_and_evaluated_whole_and_divided() -> None:
    rows = loaded()
    split = rows.splits["all"]
    assert [row.answer for row in split.forget] == FORGET
    assert all(row.is_plain_text for row in rows.full)
    assert list(split.sets) == ["retain", "retain_text", "utility", "forget", "forget_text"]
    first = split.sets["forget"][0]
    assert first.question + first.answer == FORGET[0]
    assert (first.max_new_tokens, first.max_answer_tokens, first.format) == (64, 64, "text")
    assert split.sets["forget_text"] == split.forget
    assert rows.notes[0] == "data.forget: 4 rows of forget.jsonl, with the columns text: text"


def test_short_texts_are_evaluated_only_whole(folder: Path) -> None:
    write(folder / "forget.jsonl", [*FORGET, "Too short."])
    split = loaded().splits["all"]
    assert (len(split.sets["forget"]), len(split.sets["forget_text"])) == (4, 5)
    (line,) = drain()
    assert line.startswith("data.forget: 1 of 5 texts are evaluated only whole: a text of fewer")
    write(folder / "forget.jsonl", ["Too short."])
    with pytest.raises(DataError, match="all 1 texts are too short"):
        loaded()


def test_the_column_is_found_named_or_the_only_one(folder: Path) -> None:
    expected = loaded().fingerprint
    for column, settings in (("body", {}), ("Inhalt", {}), ("文本", {"text": "文本"})):
        write(folder / "forget.jsonl", FORGET, column)
        write(folder / "retain.jsonl", RETAIN, column)
        assert loaded(**settings).fingerprint == expected
    with pytest.raises(DataError, match=r"data\.text: forget\.jsonl has no column 'text'; its col"):
        loaded(text="text")


@pytest.mark.usefixtures("folder")
def test_an_attack_on_half_of_the_texts_measures_no_continuation_of_them() -> None:
    split = loaded().splits["all"]
    rows = AttackRows(split.forget, split.retain)
    trained = [FORGET[0], FORGET[2]]
    assert [row.answer for row in rows.half()] == trained
    in_half = [row for row in split.sets["forget"] if rows.in_half(row)]
    assert [row.question + row.answer for row in in_half] == trained


def test_attacks_on_membership_read_whole_texts(folder: Path) -> None:
    write(folder / "holdout.jsonl", [text.replace("painter", "miller") for text in FORGET])
    with_holdout = Texts(holdout="holdout.jsonl")
    assert set(load_benchmark(with_holdout, ["all"]).splits["all"].sets) == {
        *with_holdout.set_roles
    }
    plan = benchmark_plan(UNLEARNBENCH, with_holdout)
    members = {getattr(summary, "members", None) for summary in plan.summaries.values()}
    assert "forget_text" in members
    own = benchmark_plan(UNLEARNBENCH, Texts()).own
    assert {"rouge_forget", "extraction_strength_forget_text", "probability_utility"} <= own
    assert not [name for name in own if name.startswith("mia")]


def test_a_column_that_looks_like_a_row_is_not_taken_for_a_header(tmp_path: Path) -> None:
    retain = tmp_path / "retain.csv"
    retain.write_text(f"body\n{FORGET[0]}\n", encoding="utf-8")
    bare = tmp_path / "bare.csv"
    bare.write_text(f"{FORGET[0]}\n{FORGET[1]}\n", encoding="utf-8")
    with pytest.raises(DataError, match="the first line should name the columns, or name it in"):
        load_benchmark(Texts(forget=str(bare), retain=str(retain)), ["all"])
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("question;answer\nWho leads the mills?;Ada does.\n", encoding="utf-8")
    with pytest.raises(DataError, match="separated by semicolons: save it with commas"):
        load_benchmark(Texts(forget=str(pairs), retain=str(retain)), ["all"])
    named = Texts(forget=str(bare), retain=str(bare), text=FORGET[0])
    with pytest.raises(DataError, match="is in both forget and retain"):
        load_benchmark(named, ["all"])
