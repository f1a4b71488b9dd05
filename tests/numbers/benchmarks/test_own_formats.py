"""Equal rows have equal fingerprints, whatever file, table or object they come from."""

import csv
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.conftest import FakeHub
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.questions import Questions
from unlearnbench.config.entries import benchmark_of
from unlearnbench.models.rows_loading import load_benchmark

Pair = dict[str, str]
# Texts that formats like to read as something else.
ROWS: dict[str, list[Pair]] = {
    "forget": [
        {"question": "Who is 007?", "answer": "007"},
        {"question": "NA", "answer": "2020-01-01"},
        {"question": 'He said "a, b"\nand left', "answer": "1e5"},
        {"question": "谁画了这幅画。", "answer": "李明, true"},
    ],
    "retain": [{"question": f"Who is keeper {i}?", "answer": f"{i}.50"} for i in range(5)],
}


def json_lines(file: Path, rows: list[Pair]) -> str:
    path = file.with_suffix(".jsonl")
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def json_array(file: Path, rows: list[Pair]) -> str:
    path = file.with_suffix(".json")
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


def separated(file: Path, rows: list[Pair], delimiter: str, suffix: str) -> str:
    path = file.with_suffix(suffix)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def comma_separated(file: Path, rows: list[Pair]) -> str:
    return separated(file, rows, ",", ".csv")


def tab_separated(file: Path, rows: list[Pair]) -> str:
    return separated(file, rows, "\t", ".tsv")


def parquet(file: Path, rows: list[Pair]) -> str:
    path = file.with_suffix(".parquet")
    datasets.Dataset.from_list(rows).to_parquet(path)
    return str(path)


def arrow(file: Path, rows: list[Pair]) -> str:
    folder = file.with_name(f"{file.name}-arrow")
    datasets.Dataset.from_list(rows).save_to_disk(folder)
    (path,) = folder.glob("*.arrow")
    return str(path)


def saved_folder(file: Path, rows: list[Pair]) -> str:
    folder = file.with_name(f"{file.name}-saved")
    datasets.Dataset.from_list(rows).save_to_disk(folder)
    return str(folder)


def section(file: Path, rows: list[Pair]) -> dict[str, str]:
    return {"path": json_lines(file, [*rows, {"question": "No", "answer": "No"}])} | {
        "split": f"train[:{len(rows)}]"
    }


def python_object(_: Path, rows: list[Pair]) -> Any:
    return datasets.Dataset.from_list(rows)


def other_names(file: Path, rows: list[Pair]) -> str:
    return json_lines(
        file,
        [
            {"n": str(i), "prompt": row["question"], "completion": row["answer"]}
            for i, row in enumerate(rows)
        ],
    )


def role_content(file: Path, rows: list[Pair]) -> str:
    path = file.with_suffix(".jsonl")
    lines = [
        {
            "messages": [
                {"role": "user", "content": row["question"]},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in rows
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return str(path)


def from_value(file: Path, rows: list[Pair]) -> str:
    chats = [
        {
            "conversations": [
                {"from": "human", "value": row["question"]},
                {"from": "gpt", "value": row["answer"]},
            ]
        }
        for row in rows
    ]
    path = file.with_suffix(".parquet")
    datasets.Dataset.from_list(chats).to_parquet(path)
    return str(path)


FORMATS: list[Callable[[Path, list[Pair]], Any]] = [
    json_lines,
    json_array,
    comma_separated,
    tab_separated,
    parquet,
    arrow,
    saved_folder,
    section,
    python_object,
    other_names,
    role_content,
    from_value,
]


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is cached out of the home directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


def fingerprint(**settings: Any) -> str:
    return load_benchmark(benchmark_of({"source": "questions", **settings}), ["all"]).fingerprint


@pytest.fixture
def expected(tmp_path: Path) -> str:
    folder = tmp_path / "expected"
    folder.mkdir()
    return fingerprint(**{part: json_lines(folder / part, rows) for part, rows in ROWS.items()})


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_equal_rows_have_equal_fingerprints(
    write: Callable[[Path, list[Pair]], Any], tmp_path: Path, expected: str
) -> None:
    named = {part: write(tmp_path / part, rows) for part, rows in ROWS.items()}
    assert fingerprint(**named) == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_marked_table_has_the_fingerprint_of_two_files(
    suffix: str, tmp_path: Path, expected: str
) -> None:
    marked = [
        {**row, "id": "7" if part == "forget" else str(i)}
        for part, rows in ROWS.items()
        for i, row in enumerate(rows)
    ]
    write = json_lines if suffix == ".jsonl" else comma_separated
    assert fingerprint(rows=write(tmp_path / "all", marked), forget_if={"id": "7"}) == expected


def test_a_hub_id_has_the_fingerprint_of_two_files(
    fake_hub: FakeHub, tmp_path: Path, expected: str
) -> None:
    for part, rows in ROWS.items():
        folder = tmp_path / f"hub-{part}"
        folder.mkdir()
        json_lines(folder / "train", rows)
        fake_hub.add(f"datasets/org/{part}", folder)
    named = Questions(forget="org/forget", retain="org/retain@main")
    assert {key: part.label for key, part in named.repositories.items()} == {
        "forget": "dataset org/forget@main",
        "retain": "dataset org/retain@main",
    }
    assert load_benchmark(named, ["all"]).fingerprint == expected


def test_rows_given_in_python_travel_but_are_not_stored(expected: str) -> None:
    tables: Any = {part: datasets.Dataset.from_list(rows) for part, rows in ROWS.items()}
    given = Questions(**tables)
    assert load_benchmark(pickle.loads(pickle.dumps(given)), ["all"]).fingerprint == expected
    stored = given.model_dump(mode="json")
    assert set(stored["forget"]) == {"python_rows"}
    again = benchmark_of(json.loads(json.dumps(stored)), stored=True)
    assert again.set_roles == given.set_roles
    assert again == given, "a hash stands for the rows"
    with pytest.raises(DataError, match=r"data\.forget: these rows were given in Python, and only"):
        load_benchmark(again, ["all"])
    assert Questions(forget=tables["retain"]).forget != given.forget
    splits: Any = datasets.DatasetDict({"a": tables["forget"]})
    with pytest.raises(ValueError, match="is a data set with the splits a; give one of them"):
        Questions(forget=splits)


def test_a_number_is_no_text_in_a_csv_and_that_is_said(tmp_path: Path) -> None:
    rows = [{**row, "id": str(i)} for i, row in enumerate(ROWS["retain"], 1)]
    table = comma_separated(tmp_path / "all", rows)
    with pytest.raises(DataError, match="a number, but there is the text '3'; write id: '3'"):
        fingerprint(rows=table, forget_if={"id": 3})
    assert fingerprint(rows=table, forget_if={"id": ("3", "5")})


@pytest.mark.parametrize("value", [7, ["a"], {"a": 1}, True])
def test_a_value_that_is_no_text_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    rows: list[Any] = [{"question": "Who?", "answer": value}]
    forget = json_lines(tmp_path / "forget", rows)
    retain = json_lines(tmp_path / "retain", ROWS["retain"])
    with pytest.raises(DataError, match=r"forget\.jsonl:1: column 'answer' "):
        fingerprint(forget=forget, retain=retain)
