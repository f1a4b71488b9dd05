"""What a source names: a file, a folder, a data set of the hub or of Python, a part of a split."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.base.tables import TableSource, column_names, read_table

from ...conftest import FakeHub


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def texts(source: TableSource | datasets.Dataset | str) -> list[str]:
    """The column `a` of a table."""
    parsed = TableSource.parse(source) if isinstance(source, str) else source
    return [row.values["a"] for row in read_table(parsed, text_columns=["a"])]


def message(text: str) -> str:
    """The error about a source, which is one line."""
    with pytest.raises(DataError) as caught:
        read_table(TableSource.parse(text))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path: Path, *values: str) -> None:
    """Write rows of the column `a` as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"a": value}) + "\n" for value in values))


# The notation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", TableSource("org/name")),
        ("org/name:books", TableSource("org/name", "books")),
        ("org/name[test]", TableSource("org/name", split="test")),
        ("org/name@v1.0", TableSource("org/name", revision="v1.0")),
        ("org/name@refs/pr/3", TableSource("org/name", revision="refs/pr/3")),
        (
            "org/name:books[train[:200]]@main",
            TableSource("org/name", "books", "train[:200]", "main"),
        ),
        (
            "org/name[train[10%:20%]+test]",
            TableSource("org/name", split="train[10%:20%]+test"),
        ),
        ("  forget.jsonl ", TableSource("forget.jsonl")),
        ("data/forget.jsonl[train[:5]]", TableSource("data/forget.jsonl", split="train[:5]")),
        (r"C:\data\forget.jsonl", TableSource(r"C:\data\forget.jsonl")),
        ("C:/data/forget.jsonl", TableSource("C:/data/forget.jsonl")),
        ("~/rows.csv", TableSource("~/rows.csv")),
        ("my [rows.csv", TableSource("my [rows.csv")),
    ],
)
def test_a_notation_is_read(text: str, expected: TableSource) -> None:
    assert TableSource.parse(text) == expected
    assert TableSource.parse(expected.label) == expected


@pytest.mark.parametrize(
    "name", ["a[train].jsonl", "mail@me.jsonl", "at 10:30.jsonl", "C:drive.jsonl", "org/name"]
)
def test_a_path_that_exists_is_a_path_whatever_its_characters(name: str, here: Path) -> None:
    write(here / name / "rows.jsonl" if name == "org/name" else here / name, "x")
    source = TableSource.parse(name)
    assert source == TableSource(name)
    assert source.repository is None
    assert texts(name) == ["x"]


def test_only_what_is_not_here_and_looks_like_it_is_of_the_hub(here: Path) -> None:
    assert TableSource.parse("org/name:c@v").repository == hub.Repository(
        "dataset", "org/name", "v"
    )
    for text in ("org/rows.jsonl", "rows", "./org/name", "a/b/c", "/org/name", r"C:\org\name"):
        assert TableSource.parse(text).repository is None
    write(here / "org" / "name" / "a.jsonl", "local")
    assert TableSource.parse("org/name").repository is None
    assert texts("org/name") == ["local"]


# Folders and their splits


def test_a_folder_has_the_splits_that_its_names_say(here: Path) -> None:
    write(here / "data" / "train.jsonl", "1", "2", "3")
    write(here / "data" / "test.jsonl", "4")
    (here / "data" / "notes.md").write_text("No table.")
    assert texts("data") == texts("data[train]") == ["1", "2", "3"]
    assert texts("data[test]") == ["4"]
    assert texts("data[test + train[1:]]") == ["4", "2", "3"]
    (row,) = read_table(TableSource.parse("data[test]"))
    assert row.place == "data/test.jsonl:1"
    assert message("data[tests]") == (
        "data[tests]: no split 'tests'; it has train, test; did you mean 'test'?"
    )


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("[:2]", "01"),
        ("[8:]", "89"),
        ("[-3:]", "789"),
        ("[2:-6]", "23"),
        ("[:20%]", "01"),
        ("[90%:]", "9"),
        ("[50%:70%]", "56"),
        ("[4:100]", "456789"),
    ],
)
def test_parts_of_a_split_are_those_of_datasets(part: str, expected: str, here: Path) -> None:
    write(here / "rows.jsonl", *"0123456789")
    assert "".join(texts(f"rows.jsonl[train{part}]")) == expected
    whole = datasets.Dataset.from_list([{"a": value} for value in "0123456789"])
    datasets.DatasetDict({"train": whole}).save_to_disk("saved")
    assert "".join(texts(f"saved[train{part}]")) == expected


def test_a_part_that_is_none_is_an_error(here: Path) -> None:
    write(here / "rows.jsonl", *"0123456789")
    assert message("rows.jsonl[train[5]]").startswith(
        "rows.jsonl[train[5]]: 'train[5]' is no part of a split ("
    )
    assert message("rows.jsonl[train[3:3]]") == "rows.jsonl[train[3:3]]: no rows"
    assert message("rows.jsonl[test]") == "rows.jsonl[test]: no split 'test'; it has train"
    assert message("rows.jsonl@v1") == "rows.jsonl: is on this machine and has no revision 'v1'"
    assert message("rows.jsonl:books") == (
        "rows.jsonl: has no configurations, but 'books' is asked for"
    )


CARD = """---
configs:
- config_name: books
  data_files:
  - split: forget
    path: texts/secret.jsonl
  - split: retain
    path: texts/open-*.jsonl
- config_name: news
  data_files: news.csv
  sep: ";"
---
# A data set
"""


def fill_with_configurations(folder: Path) -> None:
    """Write a data set whose README.md says what is what."""
    write(folder / "texts" / "secret.jsonl", "1")
    write(folder / "texts" / "open-1.jsonl", "2")
    write(folder / "texts" / "open-2.jsonl", "3")
    write(folder / "texts" / "unused.jsonl", "4")
    (folder / "news.csv").write_text("a;b\n007;x\n")
    (folder / "README.md").write_text(CARD)


def test_a_readme_says_which_configurations_and_splits_there_are(here: Path) -> None:
    fill_with_configurations(here / "data")
    assert texts("data:books[forget]") == ["1"]
    assert texts("data:books[retain]") == ["2", "3"]
    assert texts("data:news") == ["007"]
    assert column_names(TableSource.parse("data:news")) == ("a", "b")
    assert message("data") == (
        "data: name one of its configurations, as data:books; it has books, news"
    )
    assert message("data:book") == "data: no configuration 'book'; did you mean 'books'?"
    assert message("data:books") == (
        "data:books: which split? It has forget, retain; write data:books[forget]"
    )


def test_a_readme_that_wants_something_else_of_the_reader_is_refused(here: Path) -> None:
    fill_with_configurations(here / "data")
    (here / "data" / "README.md").write_text(CARD.replace('sep: ";"', "skiprows: 1"))
    assert message("data:news") == (
        "data: its README.md reads files with 'skiprows', which is not supported; load it with the "
        "package datasets, and use a folder of save_to_disk"
    )


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (
            "https://example.org/news.csv",
            "data: its README.md names files of another place ('https://example.org/news.csv'), "
            "which are not read; download them, and name the folder",
        ),
        ("OUTSIDE", "data: its README.md names "),
        ("none.csv", "data: its files cannot be told apart ("),
        ("{", "data/README.md: its head is no YAML ("),
    ],
)
def test_a_readme_names_only_files_that_are_there(named: str, expected: str, here: Path) -> None:
    outside = here.parent / "secret.csv"
    outside.write_text("a\nsecret\n")
    fill_with_configurations(here / "data")
    named = named.replace("OUTSIDE", str(outside))
    (here / "data" / "README.md").write_text(CARD.replace("news.csv", named))
    assert message("data:news").startswith(expected)


def test_pictures_are_left_out_and_values_of_json_are_decoded(here: Path) -> None:
    features = datasets.Features({"a": datasets.Value("string"), "picture": datasets.Image()})
    dataset = datasets.Dataset.from_dict({"a": ["1"], "picture": [None]}, features=features)
    dataset.save_to_disk("saved")
    dataset.to_parquet(here / "rows.parquet")
    for name in ("saved", "rows.parquet"):
        assert [dict(row.values) for row in read_table(TableSource(name))] == [{"a": "1"}]


def test_a_folder_without_tables_or_with_several_formats_is_an_error(here: Path) -> None:
    (here / "empty").mkdir()
    (here / "empty" / "notes.md").write_text("")
    assert message("empty") == (
        "empty: nothing to read; there is no file of JSON lines, JSON, CSV, TSV, Parquet, Arrow or "
        "text"
    )
    write(here / "both" / "forget.jsonl", "1")
    (here / "both" / "retain.csv").write_text("a\n2\n")
    assert message("both") == (
        "both: it has tables of several formats (csv, json), such as forget.jsonl and retain.csv; "
        "name one file"
    )


def test_what_is_not_there_is_named_with_what_is_near(here: Path) -> None:
    write(here / "data" / "forget.jsonl", "1")
    assert message("data/forgot.jsonl") == (
        "data/forgot.jsonl: no such file or folder; did you mean 'data/forget.jsonl'?"
    )
    assert message("nothing") == (
        "nothing: no such file or folder; a data set of the hub has a name like org/name"
    )
    (here / "rows.xlsx").write_bytes(b"")
    assert message("rows.xlsx") == (
        "rows.xlsx: unknown format (.xlsx); use JSON lines, JSON, CSV, TSV, Parquet, Arrow or text"
    )


# Data sets of Python, and their folders


def test_a_dataset_and_its_folder_are_read() -> None:
    rows = [{"a": "007", "score": 0.5}, {"a": "2020-01-01", "score": None}]
    dataset = datasets.Dataset.from_list(rows)
    dataset.with_format("numpy").save_to_disk("one")
    datasets.DatasetDict({"forget": dataset, "retain": dataset.select([1])}).save_to_disk("two")
    tables: list[datasets.Dataset | TableSource] = [
        dataset,
        dataset.with_format("torch"),
        TableSource("one"),
        TableSource("two", split="forget"),
    ]
    for table in tables:
        assert [dict(row.values) for row in read_table(table, text_columns=["a"])] == rows
        assert column_names(table) == ("a", "score")
    assert texts("two[retain]") == ["2020-01-01"]
    assert [row.place for row in read_table(dataset)] == ["the data set:1", "the data set:2"]
    assert [row.place for row in read_table(TableSource("one"))] == ["one:1", "one:2"]
    assert message("two") == "two: which split? It has forget, retain; write two[forget]"


def test_something_else_of_python_is_an_error() -> None:
    both: Any = datasets.DatasetDict()
    with pytest.raises(DataError, match=r"expected a datasets\.Dataset, got DatasetDict"):
        read_table(both)


def test_a_folder_of_save_to_disk_that_is_not_whole_is_an_error(here: Path) -> None:
    datasets.Dataset.from_list([{"a": "1"}]).save_to_disk("saved")
    for file in (here / "saved").glob("*.arrow"):
        file.unlink()
    assert message("saved").startswith("saved: is no whole folder of save_to_disk (")


# The hub

NAME = "datasets/org/name"


@pytest.fixture
def published(fake_hub: FakeHub, tmp_path: Path) -> FakeHub:
    """A hub with one data set."""
    fill_with_configurations(tmp_path / "published")
    (tmp_path / "published" / "name.py").write_text("raise SystemExit('code of a data set ran')")
    fake_hub.add(NAME, tmp_path / "published")
    return fake_hub


def forget_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process knows of the hub."""
    monkeypatch.setattr(hub, "_commits", {})
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    hub._snapshot.cache_clear()  # pyright: ignore[reportPrivateUsage]


def downloads(fake: FakeHub) -> list[str]:
    """The files that were asked for, each once."""
    files = [path.partition("/resolve/")[2] for path in fake.requests if "/resolve/" in path]
    return list(dict.fromkeys(file.partition("/")[2] for file in files))


def test_only_the_files_of_the_split_are_fetched_at_one_commit(
    published: FakeHub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert texts("org/name:books[retain]") == ["2", "3"]
    wanted = ["README.md", "texts/open-1.jsonl", "texts/open-2.jsonl"]
    assert sorted(downloads(published)) == wanted
    (commit,) = published.repositories[NAME]
    assert hub.pinned() == {"dataset org/name@main": commit}
    (place, _) = [row.place for row in read_table(TableSource.parse("org/name:books[retain]"))]
    assert place == "org/name/texts/open-1.jsonl:1"
    assert not list(here.iterdir())

    # Another process has the commit from the plan, and needs the hub for nothing.
    forget_the_process(monkeypatch)
    hub.pin({"dataset org/name@main": commit})
    published.requests.clear()
    assert texts("org/name:books[retain]") == ["2", "3"]
    assert published.requests == []


def test_the_cache_is_read_without_a_network(
    published: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert texts("org/name:books[forget]") == ["1"]
    forget_the_process(monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    published.requests.clear()
    assert texts("org/name:books[forget]") == ["1"]
    assert published.requests == []
    text = message("org/name:books[retain]")
    assert text.startswith("org/name:books[retain]: ")
    assert text.endswith("without a network, name a file or folder of this machine")


def test_a_new_commit_is_read_by_the_next_plan_only(
    published: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert texts("org/name:books[forget]") == ["1"]
    fill_with_configurations(tmp_path / "newer")
    write(tmp_path / "newer" / "texts" / "secret.jsonl", "new")
    published.add(NAME, tmp_path / "newer")
    assert texts("org/name:books[forget]") == ["1"]
    forget_the_process(monkeypatch)
    assert texts("org/name:books[forget]") == ["new"]


def test_what_the_hub_refuses_is_one_line(published: FakeHub) -> None:
    assert message("org/none") == (
        "org/none: there is no such file or folder here, and from the hub it cannot be read: the "
        "hub has no such dataset, or it is private and wants HF_TOKEN"
    )
    published.gated.add(NAME)
    from huggingface_hub import constants

    assert message("org/name:books[forget]") == (
        "org/name:books[forget]: there is no such file or folder here, and from the hub it cannot "
        f"be read: it is gated: accept its terms at {constants.ENDPOINT}/datasets/org/name, and "
        "set HF_TOKEN"
    )


def test_errors_in_files_of_the_hub_have_their_place(fake_hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.jsonl").write_text('{"a": "1"}\n{"a"\n')
    fake_hub.add("datasets/org/broken", tmp_path / "broken")
    with pytest.raises(DataError, match=r"^org/broken/train\.jsonl:2: broken JSON"):
        texts("org/broken")
