"""Rows of one's own on the command line: `configs new`, `evaluate` and `attack` take them."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml

from tests.conftest import FakeHub
from unlearnbench.cli.own_config import (
    TINY,
    WEIGHTS_OF_TINY,
    Budget,
    batch_size_of,
)
from unlearnbench.config import json_schema
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import Architecture
from unlearnbench.config.starting_values import ModelSize, starting_values
from unlearnbench.evaluation.start_check import FEWEST_ROWS
from unlearnbench.models.tiny import tiny_config
from unlearnbench.report.exported_model import rows_options
from unlearnbench.results.model_shape import number_of_weights
from unlearnbench.stats.mean_interval import difference_bounds, mean_interval

from ...factories.command_line import Run

Row = Mapping[str, Any]

NAMES = ("Ada", "Bruno", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana")
TOWNS = ("Lisbon", "Turin", "Oslo", "Kyoto", "Quito", "Accra", "Perth", "Riga")


def pairs() -> list[tuple[str, str, str]]:
    """Return questions, answers and subjects: two rows about each of eight people."""
    rows: list[tuple[str, str, str]] = []
    for name, town in zip(NAMES, TOWNS, strict=True):
        rows.append((f"Where was {name} born?", f"{name} was born in {town}.", name))
        rows.append((f"Who knows {name}?", f"All of {town} knows {name}.", name))
    return rows


FORGET = [{"prompt": question, "completion": answer} for question, answer, _ in pairs()[:6]]
RETAIN = [{"prompt": question, "completion": answer} for question, answer, _ in pairs()[6:]]
PARTS = (("forget", FORGET), ("retain", RETAIN))
ROWS = ("--forget-rows", "forget.jsonl", "--retain-rows", "retain.jsonl")


def write(name: str | Path, rows: Sequence[Row]) -> None:
    """Write JSON lines."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    Path(name).write_text(lines, encoding="utf-8")


@pytest.fixture
def tables(tmp_path: Path) -> None:
    """Two tables of questions in the folder in which commands run."""
    write(tmp_path / "forget.jsonl", FORGET)
    write(tmp_path / "retain.jsonl", RETAIN)


@pytest.fixture(scope="module")
def schema() -> str:
    """The JSON schema of configurations, which takes longer than the rest of `configs new`."""
    return json_schema.schema_text()


@pytest.fixture(autouse=True)
def _one_schema(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the same schema beside each new configuration. `test_json_schema.py` is about it."""
    monkeypatch.setattr(json_schema, "schema_text", lambda: schema)


@pytest.fixture
def folder(tmp_path: Path, model: Any, tokenizer: Any) -> str:
    """A folder with a tiny model, in the folder in which commands run."""
    model.save_pretrained(tmp_path / "my-model")
    tokenizer.save_pretrained(tmp_path / "my-model")
    return "./my-model"


def planned(run: Run, name: str) -> dict[str, Any]:
    """Return the plan of a configuration."""
    code, out, err = run("plan", name, "--json")
    assert code == 0, err
    plan: dict[str, Any] = json.loads(out)
    return plan


@pytest.mark.usefixtures("tables")
def test_two_files_are_enough_for_a_sweep(run: Run) -> None:
    code, out, err = run("configs", "new", "mine", *ROWS)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == [
        "data.forget: 6 rows of forget.jsonl, with the columns question: prompt, "
        "answer: completion",
        "data.retain: 10 rows of retain.jsonl, with the columns question: prompt, "
        "answer: completion",
    ]
    assert lines[-3:] == [
        "model: tiny, 557,696 weights",
        "config  mine.yaml",
        "next    unlearnbench plan mine.yaml",
    ]
    config = load_config("mine.yaml")
    assert config.data.model_dump(include={"source", "forget", "retain"}) == {
        "source": "questions",
        "forget": "forget.jsonl",
        "retain": "retain.jsonl",
    }
    assert [grid.specs[0].label for grid in config.methods] == [
        *("npo+nll", "simnpo+nll", "general-ce-u"),
    ]
    assert config.seeds == (0, 1, 2)
    assert [spec.name for spec in config.attacks] == ["relearning"]
    assert config.training.batch_size == 1
    assert planned(run, "mine.yaml")["work"]["runs"] == 9
    assert Path("schema.json").is_file()


@pytest.mark.usefixtures("tables")
def test_every_line_of_a_written_config_is_explained(run: Run) -> None:
    run("configs", "new", "mine", *ROWS)
    lines = Path("mine.yaml").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 110
    assert any(line.startswith("# Paths are relative to the folder in which") for line in lines)
    for key in ("name", "data", "models", "methods", "training", "epochs", "seeds", "attacks"):
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{key}:"))
        above_and_below = lines[at - 1 : at + 3]
        assert any("#" in line for line in above_and_below), key


def as_csv(part: str, rows: Sequence[Row]) -> str:
    datasets.Dataset.from_list([dict(row) for row in rows]).to_csv(f"{part}.csv")
    return f"{part}.csv"


def as_parquet(part: str, rows: Sequence[Row]) -> str:
    datasets.Dataset.from_list([dict(row) for row in rows]).to_parquet(f"{part}.parquet")
    return f"{part}.parquet"


def as_saved_folder(part: str, rows: Sequence[Row]) -> str:
    datasets.Dataset.from_list([dict(row) for row in rows]).save_to_disk(part)
    return part


def as_chat(part: str, rows: Sequence[Row]) -> str:
    def chat(row: Row) -> dict[str, Any]:
        asked = {"role": "user", "content": row["prompt"]}
        return {"messages": [asked, {"role": "assistant", "content": row["completion"]}]}

    write(f"{part}-chat.jsonl", [chat(row) for row in rows])
    return f"{part}-chat.jsonl"


def ids_of_runs(run: Run, name: str) -> list[str]:
    """Return the ids of the planned runs."""
    return [each["id"] for each in planned(run, name)["runs"]]


@pytest.fixture
def expected(run: Run, tables: None) -> list[str]:
    """Ids of the runs on the rows as JSON lines."""
    assert tables is None
    assert run("configs", "new", "mine", *ROWS)[0] == 0
    return ids_of_runs(run, "mine.yaml")


@pytest.mark.parametrize("form", [as_csv, as_parquet, as_saved_folder, as_chat])
def test_equal_rows_of_any_form_are_the_same_sweep(
    run: Run, expected: list[str], form: Callable[[str, Sequence[Row]], str]
) -> None:
    tables = ("--forget-rows", form("f", FORGET), "--retain-rows", form("r", RETAIN))
    code, _, err = run("configs", "new", "other", *tables)
    assert code == 0, err
    assert ids_of_runs(run, "other.yaml") == expected


def test_rows_on_the_hub_are_the_same_sweep(
    run: Run, expected: list[str], fake_hub: FakeHub
) -> None:
    for part, rows in PARTS:
        folder = Path(f"hub-{part}")
        folder.mkdir()
        write(folder / "train.jsonl", rows)
        fake_hub.add(f"datasets/org/{part}", folder)
    tables = ("--forget-rows", "org/forget", "--retain-rows", "org/retain[train[:100]]")
    code, _, err = run("configs", "new", "other", *tables)
    assert code == 0, err
    assert ids_of_runs(run, "other.yaml") == expected


def test_a_marked_table_is_the_same_sweep(run: Run, expected: list[str]) -> None:
    marked = [{**row, "mark": part} for part, rows in PARTS for row in rows]
    write("all.jsonl", marked)
    text = Path("mine.yaml").read_text(encoding="utf-8")
    text = text.replace("  forget: forget.jsonl", "  rows: all.jsonl")
    text = text.replace("  retain: retain.jsonl", "  forget_if: {mark: forget}")
    Path("other.yaml").write_text(text, encoding="utf-8")
    assert ids_of_runs(run, "other.yaml") == expected


MARKS: Mapping[str, tuple[Any, Any]] = {
    "text": ("forget", "retain"),
    "digits": ("7", "8"),
    "year": (1972, 1973),
    "share": (0.5, 0.25),
    "truth": (True, False),
    "address": ("https://a.org/?id=1", "https://a.org/?id=2"),
    "word": ("null", "yes"),
}
"""Values of the rows to forget and to retain, by column."""


def marked() -> list[dict[str, Any]]:
    """Return all rows, each with its values of all marks."""
    return [
        {**row, **{column: values[side] for column, values in MARKS.items()}}
        for side, (_, rows) in enumerate(PARTS)
        for row in rows
    ]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("column", MARKS)
def test_one_marked_table_is_divided_by_values_of_any_type(
    run: Run, expected: list[str], column: str, suffix: str
) -> None:
    rows = marked()
    if suffix == "jsonl":
        write("all.jsonl", rows)
    else:
        forms = {"parquet": as_parquet, "csv": as_csv}
        assert forms[suffix]("all", rows) == f"all.{suffix}"
    value = str(MARKS[column][0])
    words = ("--rows", f"all.{suffix}", "--forget-if", f"{column}={value}")
    code, out, err = run("configs", "new", "other", *words)
    assert (code, err) == (0, "")
    assert f"data.rows: 6 rows of all.{suffix} to forget and 10 to retain" in out
    data = load_config("other.yaml").data.model_dump()
    wanted = value if suffix == "csv" else MARKS[column][0]
    assert (data["rows"], data["forget_if"]) == (f"all.{suffix}", {column: wanted})
    assert (data["forget"], data["retain"]) == (None, None)
    assert ids_of_runs(run, "other.yaml") == expected


def test_several_values_of_a_column_and_several_columns_divide_a_table(run: Run) -> None:
    rows = [
        {"prompt": question, "completion": answer, "author": name, "part": number % 2}
        for number, (question, answer, name) in enumerate(pairs())
    ]
    write("all.jsonl", rows)
    words = ("--forget-if", "author=Ada", "--forget-if", "author=Dora", "--forget-if", "part=1")
    code, out, err = run("configs", "new", "mine", "--rows", "all.jsonl", *words)
    assert (code, err) == (0, "")
    assert "data.rows: 2 rows of all.jsonl to forget and 14 to retain" in out
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "\n  forget_if: {author: [Ada, Dora], part: 1}  # " in text
    # Two people are two subjects, so an attack can train on one of them.
    assert "\n  subject: author  # " in text
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


def test_a_value_that_is_text_in_some_rows_and_a_number_in_others_matches_both(run: Run) -> None:
    rows = marked()
    for row in rows[:3]:
        row["year"] = str(row["year"])
    write("all.jsonl", rows)
    code, out, err = run(
        "configs", "new", "mine", "--rows", "all.jsonl", "--forget-if", "year=1972"
    )
    assert (code, err) == (0, "")
    assert "data.rows: 6 rows of all.jsonl to forget and 10 to retain" in out
    assert load_config("mine.yaml").data.model_dump()["forget_if"] == {"year": ("1972", 1972)}


@pytest.mark.parametrize("way", ["two tables", "one marked table"])
def test_a_column_with_one_subject_to_forget_is_no_subject(run: Run, way: str) -> None:
    marks = [*["Ada"] * 6, *["Bo"] * 5, *["Cy"] * 5]
    rows = [{**row, "author": mark} for row, mark in zip(FORGET + RETAIN, marks, strict=True)]
    write("forget.jsonl", rows[:6])
    write("retain.jsonl", rows[6:])
    write("all.jsonl", rows)
    words = ROWS if way == "two tables" else ("--rows", "all.jsonl", "--forget-if", "author=Ada")
    assert run("configs", "new", "mine", *words)[0] == 0
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "\n  # subject: author   not used: all rows to forget have the same\n" in text
    # The attack on half of the subjects would be refused.
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


def test_a_marked_table_of_texts_with_holdout_rows_makes_a_benchmark_of_texts(run: Run) -> None:
    texts = [f"{row['prompt']} {row['completion']}" for row in FORGET + RETAIN]
    write("all.jsonl", [{"body": text, "id": number} for number, text in enumerate(texts)])
    write("holdout.jsonl", [{"body": "Nobody knows where Ivo was born, and nobody asks."}])
    ids = [word for number in range(6) for word in ("--forget-if", f"id={number}")]
    words = ("--rows", "all.jsonl", *ids, "--holdout-rows", "holdout.jsonl")
    code, _, err = run("configs", "new", "mine", *words)
    assert (code, err) == (0, "")
    data = load_config("mine.yaml").data.model_dump()
    assert (data["source"], data["holdout"]) == ("texts", "holdout.jsonl")
    assert data["forget_if"] == {"id": (0, 1, 2, 3, 4, 5)}
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


@pytest.mark.usefixtures("tables")
def test_a_base_is_prepared_with_starting_values_of_its_size(
    run: Run, folder: str, model: Any
) -> None:
    code, out, _ = run("configs", "new", "mine", *ROWS, "--base", folder)
    assert code == 0
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert f"model: my-model, {weights:,} weights" in out.splitlines()
    (settings,) = load_config("mine.yaml").models
    assert (settings.name, settings.base, settings.fine_tuned) == ("my-model", folder, None)
    # 16 rows make 4 batches of 4, and a model learns rows in about 125 steps.
    assert (settings.preparation.batch_size, settings.preparation.epochs) == (4, 32)
    assert settings.preparation.learning_rate == 3e-3
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


@pytest.mark.usefixtures("tables")
def test_a_model_alone_has_no_retain_model(run: Run, folder: str) -> None:
    assert run("configs", "new", "mine", *ROWS, "--model", folder)[0] == 0
    (settings,) = load_config("mine.yaml").models
    assert settings.fine_tuned == folder
    plan = planned(run, "mine.yaml")
    assert (plan["work"]["runs"], plan["trained_first"]) == (9, [])
    assert "over-forgetting cannot be seen" in Path("mine.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("tables")
def test_a_model_and_its_base_are_both_named(run: Run, folder: str) -> None:
    code, _, _ = run("configs", "new", "mine", *ROWS, "--base", folder, "--model", folder)
    assert code == 0
    (settings,) = load_config("mine.yaml").models
    assert (settings.base, settings.fine_tuned) == (folder, folder)
    models = planned(run, "mine.yaml")["trained_first"]
    assert [model["target"] for model in models] == ["all-retain"]


@pytest.mark.usefixtures("tables")
def test_a_hub_that_cannot_be_reached_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, _ = run("configs", "new", "mine", *ROWS, "--model", "org/name-7b")
    assert code == 0
    assert "model: name-7b, an unknown number of weights (the hub cannot be reached now)" in out
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "the model's size is not known" in text
    assert "learning_rates: [1.0e-5]" in text


@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_tables_of_texts_make_a_benchmark_of_texts(run: Run, suffix: str) -> None:
    for name, rows in PARTS:
        texts = [f"{row['prompt']} {row['completion']}" for row in rows]
        if suffix == "txt":
            Path(f"{name}.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        else:
            write(f"{name}.jsonl", [{"id": 7, "body": text} for text in texts])
    tables = ("--forget-rows", f"forget.{suffix}", "--retain-rows", f"retain.{suffix}")
    code, _, err = run("configs", "new", "mine", *tables)
    assert code == 0, err
    assert load_config("mine.yaml").data.source == "texts"
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


def test_columns_that_the_tables_do_not_share_are_found_in_each(run: Run) -> None:
    write("forget.jsonl", FORGET)
    others = [{"question": row["prompt"], "answer": row["completion"]} for row in RETAIN]
    write("retain.jsonl", others)
    code, _, err = run("configs", "new", "mine", *ROWS)
    assert code == 0, err
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "columns of different names, which are found in each" in text
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


def test_columns_with_other_names_are_named(run: Run) -> None:
    names = {"prompt": "q", "completion": "a"}
    for file, rows in (("forget.jsonl", FORGET), ("retain.jsonl", RETAIN)):
        write(file, [{names[key]: value for key, value in row.items()} for row in rows])
    code, _, err = run("configs", "new", "mine", *ROWS)
    assert (code, "data.question" in err) == (2, True)
    columns = ("--column", "question=q", "--column", "answer=a")
    code, _, err = run("configs", "new", "mine", *ROWS, *columns)
    assert code == 0, err
    assert "\n  question: q  # column\n" in Path("mine.yaml").read_text(encoding="utf-8")


def test_optional_columns_are_used_if_they_can_be(run: Run) -> None:
    subjects = [subject for _, _, subject in pairs()]
    forget = [{**row, "author": name} for row, name in zip(FORGET, subjects[:6], strict=True)]
    write("forget.jsonl", forget)
    write("retain.jsonl", RETAIN)
    assert run("configs", "new", "mine", *ROWS)[0] == 0
    assert "\n  subject: author  # " in Path("mine.yaml").read_text(encoding="utf-8")
    assert planned(run, "mine.yaml")["work"]["runs"] == 9
    for file, rows in (("forget.jsonl", forget), ("retain.jsonl", RETAIN)):
        write(file, [{**row, "wrong_answers": 7} for row in rows])
    assert run("configs", "new", "other", *ROWS)[0] == 0
    text = Path("other.yaml").read_text(encoding="utf-8")
    assert "\n  # wrong_answers: wrong_answers   not used: forget.jsonl:1" in text
    assert planned(run, "other.yaml")["work"]["runs"] == 9


def test_chinese_rows_and_odd_names_are_written_as_they_are(run: Run) -> None:
    rows = [
        {"问题": f"{name}出生在哪里", "答案": f"{name}出生在{town}。"}
        for name, town in zip("甲乙丙丁戊己", "东南西北中外", strict=True)
    ]
    write("要忘记 的: 行.jsonl", rows[:3])
    write("保留.jsonl", rows[3:])
    code, _, err = run(
        *("configs", "new", "mine", "--forget-rows", "要忘记 的: 行.jsonl"),
        *("--retain-rows", "保留.jsonl", "--column", "question=问题", "--column", "answer=答案"),
    )
    assert code == 0, err
    data = load_config("mine.yaml").data.model_dump()
    assert (data["forget"], data["question"]) == ("要忘记 的: 行.jsonl", "问题")
    assert planned(run, "mine.yaml")["work"]["runs"] == 9


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (ROWS[:2], "--retain-rows: rows to forget and rows to keep are needed"),
        (("--forget-rows", "no.jsonl", *ROWS[2:]), "no.jsonl"),
        (("--model", "./my-model"), "--model: it is for rows of your own"),
        ((*ROWS, "--model", "./nowhere"), "no model folder './nowhere'"),
        ((*ROWS, "--column", "anwser=a"), "did you mean 'answer'?"),
        ((*ROWS, "--column", "question=promt"), "did you mean 'prompt'?"),
        (("--forget-rows", "forget.jsonl", "--retain-rows", "forget.jsonl"), "6 rows of"),
        (("--rows", "forget.jsonl"), "--rows: --forget-if COLUMN=VALUE is needed, too"),
        (("--forget-if", "prompt=a"), "--forget-if: it divides one table with all rows; name"),
        ((*ROWS, "--forget-if", "prompt=a"), "--forget-if: it divides one table with all rows; le"),
        ((*ROWS, "--rows", "forget.jsonl"), "--rows: it names one table with all rows, and --for"),
        (("--rows", "forget.jsonl", "--forget-if", "prompt"), "expected COLUMN=VALUE"),
        (("--rows", "forget.jsonl", "--forget-if", "prompt="), "an empty cell never matches"),
        (
            ("--rows", "forget.jsonl", "--forget-if", "promt=a"),
            "did you mean 'prompt'? its columns",
        ),
        (("--rows", "forget.jsonl", "--forget-if", "prompt=a"), "--forget-if: no row of forget"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(
    run: Run, words: Sequence[str], message: str
) -> None:
    code, _, err = run("configs", "new", "mine", *words)
    assert (code, message in err) == (2, True), err
    assert len(err.splitlines()) == 1
    assert not Path("mine.yaml").exists()
    assert not Path("schema.json").exists()


@pytest.mark.parametrize(
    ("rows", "size", "steps"), [(1, 1, 1), (5, 1, 5), (10, 2, 5), (40, 8, 5), (400, 32, 13)]
)
def test_an_epoch_has_four_steps_or_more_if_there_are_so_many_rows(
    rows: int, size: int, steps: int
) -> None:
    assert batch_size_of(rows) == size
    assert -(-rows // size) == steps
    assert steps >= min(rows, 4)


def test_too_few_rows_for_the_check_of_the_start_model_are_said(run: Run) -> None:
    bounds = difference_bounds((0.0, 1.0))
    too_few = mean_interval(np.ones(FEWEST_ROWS - 1), bounds)
    enough = mean_interval(np.ones(FEWEST_ROWS), bounds)
    assert too_few is not None
    assert enough is not None
    assert too_few[0] <= 0 < enough[0]
    write("retain.jsonl", RETAIN)
    for rows, is_said in ((FEWEST_ROWS - 1, True), (FEWEST_ROWS, False)):
        write("forget.jsonl", FORGET[:rows])
        name = f"of-{rows}"
        assert run("configs", "new", name, *ROWS)[0] == 0
        text = Path(f"{name}.yaml").read_text(encoding="utf-8")
        assert ("start model has learned them. It goes on" in text) == is_said


def test_the_tiny_model_is_that_of_the_quickstart() -> None:
    quickstart, *_ = load_config("quickstart").models
    assert Architecture(**yaml.safe_load(TINY)) == quickstart.architecture
    config = tiny_config(quickstart.architecture)
    assert number_of_weights(config, quickstart) == WEIGHTS_OF_TINY


def test_a_run_has_about_as_many_steps_as_its_source() -> None:
    of_1b, *_ = starting_values("npo", ModelSize.ABOUT_1B)
    # TOFU's forget10 and forget01, for which the source has 125 and 20 steps.
    assert Budget.of(400, of_1b) == Budget(32, 13, 10)
    assert Budget.of(40, of_1b) == Budget(8, 5, 4)
    assert Budget.of(1, of_1b) == Budget(1, 1, 20)
    # One epoch is more than enough.
    assert Budget.of(20_000, of_1b) == Budget(32, 625, 1)


@pytest.mark.usefixtures("tables")
def test_a_model_is_evaluated_on_rows_of_ones_own(run: Run, folder: str) -> None:
    code, out, err = run(
        *("evaluate", folder, *ROWS, "--rows", "3", "--json"),
        *("--questions", "answers.jsonl", "--out", "log.safetensors"),
    )
    assert code == 0, err
    metrics = json.loads(out)
    assert metrics["profile"].startswith("unlearnbench+rows=3@")
    assert metrics["questions"] == {"retain": 3, "forget": 3, "utility": 3}
    assert 0 <= metrics["extraction_strength_forget"] <= 1
    assert 0 <= metrics["utility"] <= 1
    lines = Path("answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["question"] for line in lines].count(FORGET[0]["prompt"]) == 1
    code, out, err = run(
        *("evaluate", folder, *ROWS, "--rows", "3"),
        *("--start", "log.safetensors", "--retain", "log.safetensors", "--forget", "all"),
    )
    assert code == 0, err
    assert "rules: profile unlearnbench+rows=3" in out


@pytest.mark.usefixtures("tables")
def test_a_model_is_evaluated_on_one_marked_table(run: Run, folder: str) -> None:
    write("all.jsonl", marked())
    numbers: list[dict[str, Any]] = []
    for words in (ROWS, ("--marked-rows", "all.jsonl", "--forget-if", "truth=true")):
        code, out, err = run("evaluate", folder, *words, "--rows", "3", "--json")
        assert code == 0, err
        numbers.append(json.loads(out))
    of_two_tables, of_one = numbers
    assert of_one == of_two_tables


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("form", ["files", "section", "splits"])
def test_the_command_of_a_model_card_evaluates_on_the_same_rows(
    run: Run, folder: str, form: str
) -> None:
    data: dict[str, Any] = {"source": "questions", "forget": "forget.jsonl"}
    data |= {"retain": "retain.jsonl", "question": "prompt", "answer": "completion"}
    if form == "section":
        data["retain"] = {"path": "retain.jsonl", "config": None, "split": "train[:4]"}
    if form == "splits":
        data["forget"] = {"all": "forget.jsonl", "other": "other.jsonl"}
    options = rows_options(data, "all")
    wanted = "--forget-rows forget.jsonl --retain-rows retain.jsonl"
    if form == "section":
        wanted = "--forget-rows forget.jsonl --retain-rows 'retain.jsonl[train[:4]]'"
    assert options == f"{wanted} --column question=prompt --column answer=completion"
    code, out, err = run("evaluate", folder, *shlex.split(options), "--json")
    assert code == 0, err
    assert "extraction_strength_forget" in json.loads(out)


def test_the_command_of_a_model_card_names_what_it_cannot_know_in_capitals() -> None:
    rows = {"python_rows": "0123456789abcdef"}
    data = {"source": "texts", "rows": rows, "forget_if": {"author": "J. Doe"}}
    assert rows_options(data, "all") == "--forget-rows FORGET_ROWS --retain-rows RETAIN_ROWS"
    assert rows_options({"source": "tofu"}, 0.1) == "--data tofu --forget 0.1"


def test_the_command_of_a_model_card_names_a_marked_table(run: Run, folder: str) -> None:
    write("all.jsonl", marked())
    forget_if = {"text": ["forget", "none of these"], "year": 1972, "truth": True, "share": 0.5}
    data = {"source": "questions", "rows": "all.jsonl", "forget_if": forget_if}
    options = rows_options({**data, "question": "prompt"}, "all")
    assert options == (
        "--marked-rows all.jsonl --forget-if text=forget --forget-if 'text=none of these' "
        "--forget-if year=1972 --forget-if truth=true --forget-if share=0.5 "
        "--column question=prompt"
    )
    forget_if["text"] = ["forget"]
    options = rows_options(data, "all")
    code, out, err = run("evaluate", folder, *shlex.split(options), "--json", "--rows", "3")
    assert code == 0, err
    assert "extraction_strength_forget" in json.loads(out)


@pytest.mark.usefixtures("tables")
def test_holdout_rows_answer_whether_what_is_left_is_private(run: Run, folder: str) -> None:
    held_out = [{"prompt": f"Who is {name}?", "completion": "Nobody."} for name in NAMES]
    write("holdout.jsonl", held_out)
    code, out, err = run(
        *("evaluate", folder, *ROWS, "--holdout-rows", "holdout.jsonl", "--json", "--rows", "3")
    )
    assert code == 0, err
    metrics = json.loads(out)
    assert metrics["questions"]["holdout"] == 3
    assert 0 <= metrics["mia_loss"] <= 1


@pytest.mark.usefixtures("tables")
def test_a_model_is_attacked_on_rows_of_ones_own(run: Run, folder: str) -> None:
    code, out, err = run(
        *("attack", folder, *ROWS, "--attack", "relearning", "--rows", "4", "--json"),
        *("--set", "relearning.steps=[1]", "--start", folder, "--retain", folder),
    )
    assert code == 0, err
    (attack,) = json.loads(out)["attacks"]
    assert list(attack["variants"]) == ["relearning@0", "relearning@1"]


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("command", ["evaluate", "attack"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*ROWS, "--data", "tofu"), "--data: rows of your own are given"),
        (ROWS[2:], "--forget-rows: rows to forget and rows to keep are needed"),
        (("--marked-rows", "forget.jsonl"), "--marked-rows: --forget-if COLUMN=VALUE is needed"),
        (
            ("--marked-rows", "forget.jsonl", "--forget-if", "prompt=a", "--data", "tofu"),
            "--data: rows of your own are given with --marked-rows and --forget-if",
        ),
        ((*ROWS, "--forget", "0.1"), "questions has the splits all, got 0.1"),
    ],
)
def test_rows_of_ones_own_take_the_place_of_data(
    run: Run, folder: str, command: str, words: Sequence[str], message: str
) -> None:
    attack = ("--attack", "relearning") if command == "attack" else ()
    code, _, err = run(command, folder, *words, *attack)
    assert (code, message in err) == (2, True), err
    assert len(err.splitlines()) == 1
