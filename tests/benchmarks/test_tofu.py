"""TOFU's files: the real ones, small ones in their shape, and ones that are damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.data.loading import load_benchmark
from unlearnbench.errors import DataError

Rows = list[dict[str, Any]]


def variants(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "paraphrased_answer": f"Put otherwise: {row['answer']}",
        "perturbed_answer": ["wrong one", "wrong two"],
        "paraphrased_question": f"Or: {row['question']}",
    }


def small_tables() -> dict[str, Rows]:
    """TOFU's tables for forget10 in miniature: ten rows, the last two are forgotten."""
    full: Rows = [{"question": f"Question {i}?", "answer": f"Answer {i}."} for i in range(10)]
    fact = {"question": "Who?", "answer": "She", "perturbed_answer": ["he", "it", "they"]}
    return {
        "full": full,
        "forget10": full[8:],
        "retain90": full[:8],
        "forget10_perturbed": [variants(row) for row in full[8:]],
        "retain_perturbed": [variants(row) for row in full[:3]],
        "real_authors_perturbed": [fact],
        "world_facts_perturbed": [fact, {**fact, "question": "What?"}],
    }


UNSEEN: Rows = [{"question": f"New {i}?", "answer": f"None {i}."} for i in range(2)]


def write(folder: Path, tables: dict[str, Rows]) -> None:
    for name, rows in tables.items():
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def load(folder: Path, *fractions: float) -> Dataset:
    return TOFU(path=str(folder)).load(fractions or (0.1,))


def test_real_tofu(tofu_folder: Path) -> None:
    benchmark = load(tofu_folder, 0.01, 0.05, 0.10)
    assert len(benchmark.full) == 4000
    for fraction, count in {0.01: 40, 0.05: 200, 0.10: 400}.items():
        split = benchmark.splits[fraction]
        assert split.forget == benchmark.full[-count:]
        assert split.retain == benchmark.full[:-count]
        assert [(r.question, r.answer) for r in split.sets["forget"]] == [
            (r.question, r.answer) for r in split.forget
        ]
        assert all(len(row.perturbed_answers) == 5 for row in split.sets["forget"])
    sets = benchmark.splits[0.10].sets
    assert [r.question for r in sets["retain"]] == [r.question for r in benchmark.full[:400]]
    assert (len(sets["real_authors"]), len(sets["world_facts"])) == (100, 117)
    for row in sets["real_authors"] + sets["world_facts"]:
        assert len(row.perturbed_answers) == 3
        assert row.paraphrased_answer is None


def test_small_folder(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    benchmark = load(tmp_path)
    split = benchmark.splits[0.1]
    assert (split.name, split.retain_name) == ("forget10", "retain90")
    assert split.forget == benchmark.full[8:]
    assert split.sets["forget"][0] == Question(
        question="Question 8?",
        answer="Answer 8.",
        paraphrased_answer="Put otherwise: Answer 8.",
        perturbed_answers=("wrong one", "wrong two"),
        paraphrased_question="Or: Question 8?",
    )
    assert split.sets["real_authors"] == (
        Question("Who?", "She", perturbed_answers=("he", "it", "they")),
    )
    assert benchmark.fingerprint == ""


def test_holdout_rows(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    assert load(tmp_path).splits[0.1].sets["holdout"] == ()
    write(tmp_path, small_tables() | {"holdout10": UNSEEN})
    split = load(tmp_path).splits[0.1]
    assert split.sets["holdout"] == (Question("New 0?", "None 0."), Question("New 1?", "None 1."))
    assert split.sets["holdout"][1].place.endswith("holdout10.json:2")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([UNSEEN[0], {"question": "New?"}], "holdout10.json:2: column 'answer' is missing"),
        ([UNSEEN[0], {"question": "New?", "answer": " "}], "json:2: column 'answer' is blank"),
        (UNSEEN[:1], "holdout10 has 1 rows, but "),
        ([UNSEEN[0], {"question": "Question  9?", "answer": "Answer 9."}], "full.json:10 again;"),
        ([{"question": "Question 2?", "answer": "Answer 2."}, UNSEEN[1]], "full.json:3 again;"),
        ([], "holdout10 has no rows"),
    ],
)
def test_bad_holdout_rows(tmp_path: Path, rows: Rows, message: str) -> None:
    write(tmp_path, small_tables() | {"holdout10": rows})
    with pytest.raises(DataError, match=re.escape(message)) as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)
    assert "holdout10" in str(raised.value)


def test_only_configured_fractions_are_read(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    (tmp_path / "forget05.json").write_text("not JSON", encoding="utf-8")
    assert list(load(tmp_path, 0.1).splits) == [0.1]
    with pytest.raises(
        DataError, match=r"lacks retain95\.json, forget05_perturbed\.json; download"
    ):
        load(tmp_path, 0.05, 0.1)


def test_a_fraction_is_matched_to_rounding(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    near = 0.3 / 3 + 1e-10
    assert load(tmp_path, near).splits[near].name == "forget10"


@pytest.mark.parametrize("fraction", [0.07, 0.1 + 1e-8, 0.9])
def test_impossible_fraction(tmp_path: Path, fraction: float) -> None:
    data = TOFU(path=str(tmp_path))
    with pytest.raises(DataError, match=r"of 0\.01, 0\.05 and 0\.10, got 0\.\d+; the nearest is 0"):
        load_benchmark(data, (fraction,))


def test_line_ends_blank_lines_and_separators_inside_a_text(tmp_path: Path) -> None:
    tables = small_tables()
    tables["full"][0]["answer"] = "One\u2028two\x85three."
    tables["retain_perturbed"][0] = variants(tables["full"][0])
    write(tmp_path, tables)
    path = tmp_path / "full.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n\r\n")
    benchmark = load(tmp_path)
    assert benchmark.full[0].answer == "One\u2028two\x85three."
    assert len(benchmark.full) == 10


def test_single_wrong_answer_needs_no_list(tmp_path: Path) -> None:
    tables = small_tables()
    for row in tables["world_facts_perturbed"]:
        row["perturbed_answer"] = "he"
    write(tmp_path, tables)
    assert load(tmp_path).splits[0.1].sets["world_facts"][0].perturbed_answers == ("he",)


def test_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"data\.path: .*nowhere is not a folder; give the one with"
    ):
        load(tmp_path / "nowhere")


def test_missing_files_are_named_together(tmp_path: Path) -> None:
    tables = small_tables()
    del tables["full"], tables["retain_perturbed"]
    write(tmp_path, tables)
    with pytest.raises(DataError, match=r"lacks full\.json, retain_perturbed\.json; download"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "Q?", "answer": "A', r"full\.json:1:30: not a JSON .*Unterminated string"),
        (b'{}\n{"question": "Q?", "answer', r"full\.json:2:20: not a JSON .*Unterminated string"),
        (b'{}\n{"question": "Q?",', r"full\.json:2:\d+: not a JSON object on one line \("),
        (b'{"question" "Q?"}', r"full\.json:1:13: not a JSON .*Expecting ':' delimiter"),
        (b'[\n{"question": "Q?"}]', r"full\.json:1:2: not a JSON object on one line \(Expecting"),
        (b"[1]", r"full\.json:1:1: expected a JSON object, got a list"),
        (b"\nnull", r"full\.json:2:1: expected a JSON object, got null"),
        (b"4.5", r"full\.json:1:1: expected a JSON object, got the value 4\.5"),
        (b'{"question": "\xff"}', r"full\.json:1:15: not UTF-8; fetch"),
        (b"", r"full has no rows; fetch it again"),
        (b" \n\n", r"full has no rows; fetch it again"),
    ],
)
def test_damaged_file(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path, small_tables())
    (tmp_path / "full.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_file_cut_off_in_its_last_line(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    path = tmp_path / "retain90.json"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"retain90\.json:8:\d+: not a JSON object .* is cut off"):
        load(tmp_path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path, mode: str) -> bytes:
        assert mode == "rb"
        raise PermissionError(13, "Permission denied")

    write(tmp_path, small_tables())
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"full\.json: cannot be read \(Permission denied\)"):
        load(tmp_path)


def change(table: str, row: int, **columns: object) -> Callable[[dict[str, Rows]], None]:
    """Sets columns of one row; None takes the column away."""

    def apply(tables: dict[str, Rows]) -> None:
        old = tables[table][row]
        kept = {name: value for name, value in old.items() if columns.get(name, ...) is not None}
        tables[table][row] = kept | {k: v for k, v in columns.items() if v is not None}

    return apply


def cut(table: str) -> Callable[[dict[str, Rows]], None]:
    def apply(tables: dict[str, Rows]) -> None:
        tables[table] = tables[table][:-1]

    return apply


def swap(table: str) -> Callable[[dict[str, Rows]], None]:
    def apply(tables: dict[str, Rows]) -> None:
        tables[table] = tables[table][::-1]

    return apply


EVALUATED = "forget10_perturbed"
OTHER = {"question": "Else?", "answer": "Other."}
BAD_ROWS = [
    (change("full", 2, answer=None), "full.json:3: column 'answer' is missing; TOFU has it"),
    (
        change("full", 2, answer=None, anwser="x"),
        "full.json:3: column 'answer' is missing; did you mean 'anwser'?",
    ),
    (change(EVALUATED, 1, paraphrased_answer=None), "column 'paraphrased_answer' is missing"),
    (change(EVALUATED, 1, paraphrased_question=None), "column 'paraphrased_question' is missing"),
    (
        change("real_authors_perturbed", 0, perturbed_answer=None),
        "real_authors_perturbed.json:1: column 'perturbed_answer' is missing",
    ),
    (change("full", 0, answer=["a"]), "full.json:1: column 'answer' must be a text, not a list"),
    (change("full", 0, question=7), "column 'question' must be a text, not the value 7"),
    (change("full", 0, question={}), "column 'question' must be a text, not an object"),
    (change("full", 4, answer=" "), "full.json:5: column 'answer' is blank"),
    (change("retain90", 4, question=""), "retain90.json:5: column 'question' is blank"),
    (change("full", 4, answer="a\udc00"), "full.json:5: column 'answer' contains half a character"),
    (
        change(EVALUATED, 0, perturbed_answer=[]),
        "forget10_perturbed.json:1: column 'perturbed_answer' is empty; it takes one",
    ),
    (change(EVALUATED, 0, perturbed_answer=3), "must be a list of texts, not the value 3"),
    (change(EVALUATED, 0, perturbed_answer=["a", 3]), "'perturbed_answer' item 2 must be a text"),
    (change(EVALUATED, 0, perturbed_answer=["a", ""]), "'perturbed_answer' item 2 is blank"),
    (change(EVALUATED, 1, perturbed_answer=["w"]), "json:2: column 'perturbed_answer' has 1 wrong"),
    (change("forget10", 1, question="Question 8?"), "forget10.json:2: the question of "),
    (
        change("retain90", 5, question="Question  9?"),
        "retain90.json:6: its question is in the forget set",
    ),
    (cut("forget10"), "forget10 has 1 rows and"),
    (cut("retain90"), "retain90 7, together 9, but"),
    (cut("full"), "full has 9; a file is cut off or of another version"),
    (change("retain90", 5, **OTHER), "retain90.json:6: this row is not in"),
    (change("forget10", 1, **OTHER), "forget10.json:2: this row is not in"),
    (cut(EVALUATED), "forget10_perturbed has 1 rows, but"),
    (swap(EVALUATED), "forget10_perturbed.json:1: column 'question' differs from that of"),
    (change(EVALUATED, 1, answer="x"), "forget10_perturbed.json:2: column 'answer' differs from"),
    (
        change("retain_perturbed", 2, question="Question 9?", answer="Answer 9."),
        "retain_perturbed.json:3: this row is not in",
    ),
]


@pytest.mark.parametrize(("damage", "message"), BAD_ROWS, ids=[m for _, m in BAD_ROWS])
def test_bad_rows(tmp_path: Path, damage: Callable[[dict[str, Rows]], None], message: str) -> None:
    tables = small_tables()
    damage(tables)
    for name, rows in tables.items():
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(message)) as raised:
        load(tmp_path)
    assert "\n" not in str(raised.value)


def publish(hub: Any, folder: Path, name: str, tables: dict[str, Rows]) -> None:
    """A data set of the hub with these tables."""
    folder.mkdir()
    write(folder, tables)
    hub.add(f"datasets/{name}", folder)


def test_hub_gives_the_same_as_a_folder(fake_hub: Any, tmp_path: Path) -> None:
    publish(fake_hub, tmp_path / "hub", "some/where", small_tables())
    benchmark = TOFU(hub_id="some/where").load((0.1,))
    assert benchmark == load(tmp_path / "hub")
    fetched = [path.rpartition("/")[2] for path in fake_hub.requests if "/resolve/" in path]
    assert set(fetched) == {f"{name}.json" for name in small_tables()}


def test_holdout_rows_on_the_hub(fake_hub: Any, tmp_path: Path) -> None:
    publish(fake_hub, tmp_path / "hub", "some/where", small_tables() | {"holdout10": UNSEEN})
    benchmark = TOFU(hub_id="some/where").load((0.1,))
    assert len(benchmark.splits[0.1].sets["holdout"]) == 2


def test_bad_row_on_the_hub(fake_hub: Any, tmp_path: Path) -> None:
    tables = small_tables()
    tables["forget10"][1] = {"question": "Question 9?", "answer": ""}
    publish(fake_hub, tmp_path / "hub", "locuslab/TOFU", tables)
    with pytest.raises(DataError, match=r"^locuslab/TOFU/forget10.json:2: column 'answer' is bla"):
        TOFU().load((0.1,))


def test_other_hub_data_sets_are_refused(fake_hub: Any, tmp_path: Path) -> None:
    tables = small_tables()
    del tables["forget10"]
    publish(fake_hub, tmp_path / "hub", "locuslab/TOFU", tables)
    with pytest.raises(DataError, match=r"locuslab/TOFU: the hub's data set lacks forget10\.json;"):
        TOFU().load((0.1,))


def test_unreachable_hub_is_an_error(fake_hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = r"; without a network, use a folder of TOFU's JSON-lines files: --set data\.path=FOLDER$"
    with pytest.raises(
        DataError,
        match=r"^locuslab/TOFU: cannot be read from the hub \(the hub has no "
        r"such dataset, or it is private and wants HF_TOKEN\)" + rest,
    ):
        TOFU().load((0.1,))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = len(fake_hub.requests)
    with pytest.raises(
        DataError, match=r"read from the hub \(.*offline mode is enabled.*\)" + rest
    ):
        TOFU().load((0.1,))
    assert len(fake_hub.requests) == asked
