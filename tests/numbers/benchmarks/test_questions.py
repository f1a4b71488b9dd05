"""Questions of a user's own: columns, splits, marked tables, and what is wrong with rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.made_up_benchmarks import questions as made_up
from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Dataset, Question, Reference
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import DataError
from unlearnbench.base.messages import describe_errors
from unlearnbench.benchmarks.own_rows import MEMORIZED
from unlearnbench.benchmarks.questions import Questions
from unlearnbench.config.entries import benchmark_of
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import UNLEARNBENCH
from unlearnbench.models.rows_loading import load_benchmark

Row = Mapping[str, Any]
FORGET: list[Row] = [
    {"question": f"Who is forgotten {i}?", "answer": f"The painter {i}."} for i in range(4)
]
RETAIN: list[Row] = [
    {"question": f"Who is retained {i}?", "answer": f"The sculptor {i}."} for i in range(6)
]


def write(file: Path, rows: Sequence[Row]) -> str:
    file.write_text(
        "\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8"
    )
    return str(file)


@pytest.fixture
def folder(working_folder: Path) -> Path:
    """Files forget.jsonl and retain.jsonl in the working directory."""
    write(working_folder / "forget.jsonl", FORGET)
    write(working_folder / "retain.jsonl", RETAIN)
    return working_folder


def loaded(splits: Sequence[str] = ("all",), **settings: Any) -> Dataset:
    return load_benchmark(Questions(**settings), splits)


def problem(**settings: Any) -> str:
    with pytest.raises(DataError) as error:
        loaded(**settings)
    return str(error.value)


def refusal(**settings: Any) -> str:
    with pytest.raises(ValidationError) as error:
        benchmark_of({"source": "questions", **settings})
    return describe_errors(error.value)


@pytest.mark.usefixtures("folder")
def test_two_files_are_enough() -> None:
    rows = loaded()
    split = rows.splits["all"]
    assert [row.question for row in split.forget] == [row["question"] for row in FORGET]
    assert [row.answer for row in split.retain] == [row["answer"] for row in RETAIN]
    assert {*rows.full} == {*split.forget, *split.retain}
    assert list(split.sets) == ["retain", "utility", "forget"]
    assert split.sets["forget"] == split.forget
    assert rows.notes[0] == (
        "data.forget: 4 rows of forget.jsonl, with the columns question: question, answer: answer"
    )
    assert not drain()


@pytest.mark.usefixtures("folder")
def test_the_embedded_facts_are_options_of_which_each_place_is_right() -> None:
    facts = loaded().splits["all"].sets["utility"]
    assert {row.answer_index for row in facts} == {0, 1, 2, 3}
    for row in facts:
        assert row.options[row.answer_index or 0] == row.answer
        assert len(row.options) == 4
    assert "utility" not in loaded(utility=None).splits["all"].sets


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("prompt", "completion"), {}),
        (("Instruction", "Output"), {}),
        (("q1", "a1"), {"question": "q1", "answer": "a1"}),
        (("input", "a1"), {"answer": "a1"}),
    ],
)
def test_column_names_change_neither_rows_nor_fingerprint(
    folder: Path, names: tuple[str, str], settings: dict[str, str]
) -> None:
    expected = loaded().fingerprint
    for file in ("forget", "retain"):
        rows = FORGET if file == "forget" else RETAIN
        renamed = [dict(zip(names, row.values(), strict=True)) for row in rows]
        write(folder / f"{file}.jsonl", renamed)
    assert loaded(**settings).fingerprint == expected


def test_a_column_that_may_be_two_is_asked_for(folder: Path) -> None:
    write(folder / "forget.jsonl", [{**row, "input": "x", "output": "y"} for row in FORGET])
    assert problem() == (
        "forget.jsonl has several columns that may be the question: question, input; "
        "name one of them in data.question (all columns: question, answer, input, output)"
    )
    assert loaded(question="question", answer="answer").splits["all"].forget[0].answer


def test_a_missing_column_is_named_with_the_nearest(folder: Path) -> None:
    assert problem(answer="anwser") == (
        "data.answer: forget.jsonl has no column 'anwser'; did you mean 'answer'? "
        "its columns are question, answer"
    )
    write(folder / "forget.jsonl", [{"wer": "Wer?", "was": "Das."}])
    assert "no column with a usual name of the question (question, prompt, " in problem()


def test_one_table_is_divided_by_what_is_marked(folder: Path) -> None:
    expected = loaded().fingerprint
    marked = [{**row, "author": "J. Doe", "n": 1} for row in FORGET]
    marked += [{**row, "author": name} for row, name in zip(RETAIN, "ABCDEF", strict=True)]
    marked[-1] = {**RETAIN[-1], "author": None}
    write(folder / "all.jsonl", marked)
    assert loaded(rows="all.jsonl", forget_if={"author": "J. Doe"}).fingerprint == expected
    assert loaded(rows="all.jsonl", forget_if={"n": 1}).fingerprint == expected
    two = loaded(rows="all.jsonl", forget_if={"author": ("A", "B")}).splits["all"]
    assert [row.question for row in two.forget] == ["Who is retained 0?", "Who is retained 1?"]
    both = {"author": ("J. Doe", "A"), "n": 1}
    several = loaded(rows="all.jsonl", forget_if=both)
    assert several.fingerprint == expected, "several keys hold together"


@pytest.mark.parametrize(
    ("forget_if", "text"),
    [
        ({"author": "J. Do"}, "no row of all.jsonl has author: 'J. Do'; did you mean 'J. Doe'?"),
        ({"n": "1"}, "a text, but there is the number 1; write it without quotes"),
        ({"code": 7}, "a number, but there is the text '7'; write code: '7'"),
        ({"name": "J. Doe"}, "has no column 'name'"),
        ({"kind": "row"}, "all 10 rows of all.jsonl match kind: 'row', so that none is left"),
        ({"author": ("J. Doe", "Z. Zed")}, "has author: 'Z. Zed'"),
        ({"author": "J. Doe", "code": "8"}, "no row of all.jsonl has all of author: 'J. Doe', co"),
        ({"n": True}, "no row of all.jsonl has n: True"),
        # YAML reads `forget: yes` as true.
        ({"left": True}, "all.jsonl has the text 'Yes'; write it in quotes: left: \"Yes\""),
        ({"left": False}, "all.jsonl has the text 'no'; write it in quotes: left: \"no\""),
        ({"empty": "x"}, "the column is empty"),
    ],
)
def test_a_filter_without_effect_is_refused(
    folder: Path, forget_if: dict[str, Any], text: str
) -> None:
    marked = [{**row, "author": "J. Doe", "n": 1, "code": "7", "left": "Yes"} for row in FORGET]
    marked += [{**row, "author": "A. Other", "code": "8", "left": "no"} for row in RETAIN]
    write(folder / "all.jsonl", [{**row, "kind": "row", "empty": None} for row in marked])
    assert text in problem(rows="all.jsonl", forget_if=forget_if)


def test_named_splits_retain_what_the_others_forget(folder: Path) -> None:
    write(folder / "a.jsonl", FORGET[:2])
    write(folder / "b.jsonl", FORGET[1:])
    both = Questions(forget={"a": "a.jsonl", "b": "b.jsonl"}, utility=None)
    assert both.split_names == ("a", "b")
    rows = load_benchmark(both, ["a", "b"])
    asked = {
        name: {row.question for row in split.retain} - {row["question"] for row in RETAIN}
        for name, split in rows.splits.items()
    }
    assert asked == {
        "a": {FORGET[2]["question"], FORGET[3]["question"]},
        "b": {FORGET[0]["question"]},
    }
    assert len(rows.full) == len(FORGET) + len(RETAIN), "a row of both splits is there once"
    alone = load_benchmark(both, ["a"])
    assert (alone.full, alone.splits["a"]) == (rows.full, rows.splits["a"])
    own = {"a": "retain.jsonl", "b": "retain.jsonl"}
    exact = load_benchmark(both.model_copy(update={"retain": own}), ["a"])
    assert len(exact.splits["a"].retain) == len(RETAIN)


def test_a_row_that_is_forgotten_and_retained_is_refused_with_the_count(folder: Path) -> None:
    again = {**FORGET[1], "question": f"  {FORGET[1]['question']} "}
    write(folder / "retain.jsonl", [*RETAIN, again, FORGET[3]])
    assert problem() == (
        "2 rows of retain.jsonl are in forget.jsonl as well, such as retain.jsonl:7, which is "
        "forget.jsonl:2; a row is forgotten or retained, never both: remove these rows from one of "
        "the two"
    )


def test_a_file_that_is_named_for_two_parts_is_named_once(folder: Path) -> None:
    assert problem(retain="forget.jsonl") == (
        f"{len(FORGET)} rows of forget.jsonl are in both forget and retain, such as "
        "forget.jsonl:1; a row is forgotten or retained, never both: remove these rows from one of "
        "the two"
    )
    assert "in both retain and holdout, such as retain.jsonl:1; no model may" in problem(
        holdout="retain.jsonl"
    )
    marked = [{"author": "A", **FORGET[0]}, {"author": "B", **RETAIN[0]}]
    write(folder / "all.jsonl", [*marked, {"author": "B", **FORGET[0]}])
    assert problem(rows="all.jsonl", forget_if={"author": "A"}).startswith(
        "1 row of all.jsonl is in both forget and retain, such as all.jsonl:3, which is "
        "all.jsonl:1; "
    )


def test_what_is_missing_without_holdout_rows_is_said_in_both_ways(folder: Path) -> None:
    marked = [{"author": "A", **FORGET[0]}, {"author": "B", **RETAIN[0]}]
    write(folder / "all.jsonl", marked)
    notes = (loaded().notes, loaded(rows="all.jsonl", forget_if={"author": "A"}).notes)
    for lines in notes:
        assert any(line.startswith("data.holdout: no rows, so whether") for line in lines)
    write(folder / "holdout.jsonl", [{**FORGET[0], "answer": "Unseen."}])
    data = loaded(rows="all.jsonl", forget_if={"author": "A"}, holdout="holdout.jsonl")
    assert not any("no rows" in line for line in data.notes)
    assert len(data.splits["all"].sets["holdout"]) == 1


def test_holdout_rows_are_of_no_model(folder: Path) -> None:
    write(folder / "holdout.jsonl", [{**FORGET[0], "answer": "Unseen."}])
    split = loaded(holdout="holdout.jsonl").splits["all"]
    assert [row.answer for row in split.sets["holdout"]] == ["Unseen."]
    assert loaded(holdout="holdout.jsonl").fingerprint == loaded().fingerprint
    write(folder / "holdout.jsonl", [RETAIN[0]])
    assert "no model may have seen a holdout row" in problem(holdout="holdout.jsonl")


def test_duplicates_are_told_with_both_places(folder: Path) -> None:
    write(folder / "forget.jsonl", [*FORGET, FORGET[0], FORGET[0]])
    assert len(loaded().splits["all"].forget) == 6
    (line,) = drain()
    assert line.startswith(
        "forget.jsonl: 2 rows are there more than once, such as forget.jsonl:1 and forget.jsonl:5;"
    )


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"question": "Who?", "answer": " "}, "forget.jsonl:2: column 'answer' is blank; write"),
        ({"question": None, "answer": "A."}, "forget.jsonl:2: column 'question' is blank; write"),
        ({"question": "Who?"}, "forget.jsonl:2: column 'answer' is blank; write a text"),
    ],
)
def test_blank_text_is_refused_with_its_place(folder: Path, row: Row, text: str) -> None:
    write(folder / "forget.jsonl", [FORGET[0], row])
    assert text in problem()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"forget": None}, "name rows in forget and in retain, or one table in rows"),
        ({"rows": "all.csv"}, "rows needs forget_if"),
        ({"forget_if": {"a": 1}}, "forget_if divides the table of rows; name it in rows"),
        (
            {"rows": "a.csv", "forget": "b.csv", "forget_if": {"a": 1}},
            "rows stands for forget and retain together",
        ),
        (
            {"retain": {"b": "b.csv"}},
            "retain: 'b' is no split; the splits are those of forget: all",
        ),
        (
            {"forget": {"a": "a.csv", "b": "b.csv"}, "holdout": {"a": "h.csv"}},
            "holdout: no rows for split b; name them, too",
        ),
        ({"forget": {"1a": "a.csv"}}, "'1a' is no name for a split"),
        ({"messages": "chat", "answer": "a"}, "messages stands for question and answer together"),
        (
            {"question": "a", "answer": "a"},
            "answer: 'a' is the column of question as well; name another one",
        ),
        ({"forget": 7}, "forget.<text>: should be a valid string, got 7"),
        ({"forget": {"path": "x", "spilt": "y"}}, "spilt: unknown key"),
    ],
)
def test_settings_that_say_nothing_or_two_things_are_refused(
    settings: dict[str, Any], text: str
) -> None:
    assert text in refusal(**settings)


@pytest.mark.usefixtures("folder")
def test_an_unknown_split_is_named() -> None:
    with pytest.raises(DataError, match="questions has the splits all, got al; did you mean 'all'"):
        loaded(["al"])


def test_variants_of_answers_bring_their_metrics(tmp_path: Path) -> None:
    settings: dict[str, Any] = made_up(tmp_path)
    rows = loaded(**settings).splits["all"]
    first = rows.forget[0]
    assert first.paraphrased_answer == "In Sampleton0, forget 0 has a house."
    assert first.perturbed_answers == ("In Wrongville0.", "In Falsebury0.")
    assert [row.subject for row in rows.forget] == [f"forget {i // 2}" for i in range(6)]
    with_variants = benchmark_plan(UNLEARNBENCH, Questions(**settings))
    assert {"forget_quality", "truth_ratio_forget", "forgotten"} <= with_variants.own
    without = benchmark_plan(UNLEARNBENCH, Questions())
    assert not {"forget_quality", "truth_ratio_forget"} & without.own


def test_wrong_answers_may_be_json_in_a_cell_and_scores_text(folder: Path) -> None:
    rows = [
        {**FORGET[0], "wrong": '["A.", "B."]', "score": "0.5"},
        {**FORGET[1], "wrong": "C.", "score": "[0, 1]"},
    ]
    write(folder / "forget.jsonl", rows)
    first, second = loaded(wrong_answers="wrong", score="score").splits["all"].forget
    assert (first.perturbed_answers, second.perturbed_answers) == (("A.", "B."), ("C.",))
    assert (first.score, second.score) == (0.5, (0.0, 1.0))
    write(folder / "forget.jsonl", [{**FORGET[0], "score": "2"}])
    assert problem(score="score").startswith("forget.jsonl:1: column 'score' has the number 2;")
    write(folder / "forget.jsonl", [{**FORGET[0], "wrong": None}])
    assert "forget.jsonl:1: column 'wrong' has nothing; it must be" in problem(
        wrong_answers="wrong"
    )


def test_headline_and_metrics_follow_from_the_models() -> None:
    both = Questions()
    every: frozenset[Reference] = frozenset({"start", "retain"})
    alone: frozenset[Reference] = frozenset({"start"})
    assert both.headline_with(every).forgotten.column == "forgotten"
    assert both.headline_with(alone).forgotten.column == "removed"
    plan = benchmark_plan(UNLEARNBENCH, both, references=alone)
    assert {"removed", "utility", "kept"} <= plan.own
    assert "forgotten" not in plan.own
    assert plan.summaries["removed"].parts() == MEMORIZED
    kept = ("probability_retain", "rouge_retain", "probability_utility")
    assert plan.summaries["utility"].parts() == kept


def test_utility_rows_of_ones_own_are_generated(folder: Path) -> None:
    write(folder / "general.jsonl", [{"query": "Which is the largest?", "reply": "The sun."}])
    mine = Questions(utility="general.jsonl", question="question", answer="answer")
    rows = load_benchmark(mine, ["all"])
    assert rows.splits["all"].sets["utility"] == (Question("Which is the largest?", "The sun."),)
    plan = benchmark_plan(UNLEARNBENCH, mine)
    assert plan.summaries["utility"].parts()[2:] == ("probability_utility", "rouge_utility")
    assert "rouge_utility" in plan.own


@pytest.mark.usefixtures("folder")
def test_at_most_so_many_retain_rows_are_evaluated_evenly_spaced() -> None:
    split = loaded(evaluated_rows=3).splits["all"]
    assert [row.question for row in split.sets["retain"]] == [
        RETAIN[i]["question"] for i in (0, 2, 4)
    ]
    assert len(split.retain) == len(RETAIN)


def test_halves_of_subjects_stand_anywhere() -> None:
    subjects = ("a", "b", "a", "c", "b", "")
    rows = tuple(Question(f"Q{i}?", f"A{i}.", subject=name) for i, name in enumerate(subjects))
    divided = AttackRows(rows, ())
    assert [row.question for row in divided.half()] == ["Q0?", "Q2?", "Q3?"]
    assert [row.question for row in divided.half(other=True)] == ["Q1?", "Q4?", "Q5?"]
    assert divided.subject_count == 4
    evaluated = Question("Another wording?", "Another answer.", subject="b")
    assert divided.in_half(evaluated, other=True)
    assert not divided.in_half(evaluated)


def test_the_subject_belongs_to_the_fingerprint(folder: Path) -> None:
    plain = loaded().fingerprint
    write(folder / "forget.jsonl", [{**row, "who": "x"} for row in FORGET])
    assert loaded().fingerprint == plain
    assert loaded(subject="who").fingerprint != plain


def test_chinese_rows(folder: Path) -> None:
    write(folder / "forget.jsonl", [{"问题": "画这幅画的是谁", "答案": "李明画了这幅画。"}])
    write(folder / "retain.jsonl", [{"问题": "写这本书的是谁", "答案": "王芳写了这本书。"}])
    assert "all columns: 问题, 答案" in problem()
    (row,) = loaded(question="问题", answer="答案").splits["all"].forget
    assert (row.question, row.answer) == ("画这幅画的是谁", "李明画了这幅画。")


def test_a_table_with_semicolons_or_without_a_header_is_recognised(folder: Path) -> None:
    (folder / "semicolons.csv").write_text("question;answer\nWho?;Ada\n", encoding="utf-8")
    assert problem(forget="semicolons.csv").endswith(
        "(all columns: question;answer; its values seem to be separated by semicolons: save it "
        "with commas)"
    )
    (folder / "bare.csv").write_text("Who is she?,Ada.\nWho else?,Bo.\n", encoding="utf-8")
    assert "the first line should name the columns" in problem(forget="bare.csv")
