"""TOFU's files: the real ones, small ones in their shape, and ones that are damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.models.rows_loading import load_benchmark

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


def test_holdout_rows(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    assert load(tmp_path).splits[0.1].sets["holdout"] == ()
    write(tmp_path, small_tables() | {"holdout10": UNSEEN})
    split = load(tmp_path).splits[0.1]
    assert split.sets["holdout"] == (Question("New 0?", "None 0."), Question("New 1?", "None 1."))
    assert split.sets["holdout"][1].place.endswith("holdout10.json:2")


def test_only_configured_fractions_are_read(tmp_path: Path) -> None:
    write(tmp_path, small_tables())
    (tmp_path / "forget05.json").write_text("not JSON", encoding="utf-8")
    assert list(load(tmp_path, 0.1).splits) == [0.1]
    with pytest.raises(
        DataError, match=r"lacks retain95\.json, forget05_perturbed\.json; download"
    ):
        load(tmp_path, 0.05, 0.1)


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


def test_a_fact_may_be_told_as_a_sentence_too(tmp_path: Path) -> None:
    """The tables of sail-sg/closer-look-LLM-unlearning have such a column; the hub's have none."""
    tables = small_tables()
    (fact,) = tables["real_authors_perturbed"]
    tables["real_authors_perturbed"] = [{**fact, "original_answer": "It was she."}]
    write(tmp_path, tables)
    told = load_benchmark(TOFU(path=str(tmp_path)), (0.1,))
    (row,) = told.splits[0.1].sets["real_authors"]
    assert (row.answer, row.sentence_answer) == ("She", "It was she.")
    assert told.splits[0.1].sets["world_facts"][0].sentence_answer == ""
    write(tmp_path, small_tables())
    plain = load_benchmark(TOFU(path=str(tmp_path)), (0.1,))
    assert told.fingerprint == plain.fingerprint, "it changes no run"


def test_the_first_authors_alone_are_a_small_study(tofu_folder: Path) -> None:
    small = TOFU(path=str(tofu_folder), retain_authors=8).load((0.01, 0.05))
    assert len(small.full) == 8 * 20 + 200
    for fraction, forgotten in ((0.01, 40), (0.05, 200)):
        split = small.splits[fraction]
        assert (len(split.forget), len(split.retain)) == (forgotten, len(small.full) - forgotten)
        assert len(split.sets["retain"]) == 160
        known = {(row.question, row.answer) for row in split.retain}
        assert {(row.question, row.answer) for row in split.sets["retain"]} <= known
