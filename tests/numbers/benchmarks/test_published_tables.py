"""Published benchmarks from the hub's layouts and from folders: the same rows, at one commit."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import hub_layouts
from tests.made_up_benchmarks import write_lines
from unlearnbench.api.benchmark import Benchmark, SplitKey
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.published_tables import Columns, Table, Tables, Words, rows_of_file
from unlearnbench.config.entries import benchmark_of
from unlearnbench.models.rows_loading import fingerprint, load_benchmark

from ...conftest import FakeHub

SEMEVAL = "llmunlearningsemeval2025organization/semeval25-unlearning-dataset-public"
Settings = dict[str, Any]
CASES: dict[str, tuple[Settings, Settings, tuple[SplitKey, ...]]] = {
    "tofu": ({}, {"path": ""}, (0.01, 0.05, 0.1)),
    "muse": ({}, {"path": ""}, ("all",)),
    "muse-scalability": ({}, {"path": ""}, ("forget1", "forget4")),
    "muse-sustainability": ({}, {"path": ""}, ("forget1", "forget2", "forget3", "forget4")),
    "wmdp": (
        {"corpora": "cais/wmdp-corpora"},
        {"path": "", "mmlu": "", "corpora": ""},
        ("bio", "cyber"),
    ),
    "wmdp robust": ({"variant": "robust"}, {"path": "", "mmlu": ""}, ("bio",)),
    "wmdp cloze": ({"variant": "cloze"}, {"path": "", "mmlu": ""}, ("bio",)),
    "rwku": ({}, {"path": ""}, ("target1", "target200")),
    "knowundo": ({}, {"path": ""}, ("privacy",)),
    "lume": ({"hub_id": SEMEVAL, "part": "train"}, {"path": ""}, ("all",)),
}
"""By benchmark, its settings with the hub; those with a folder, which stands for ""; its splits."""


def written(name: str, hub_: FakeHub, place: Path) -> Path:
    """Write a benchmark to a folder, which is returned, and to repositories of the hub."""
    write: Callable[[Path, Path], dict[str, Path]] = getattr(
        hub_layouts, name.split(maxsplit=1)[0].replace("-", "_")
    )
    folder = place / "folder"
    folder.mkdir(exist_ok=True)
    for repository, held in write(folder, place / "repositories").items():
        hub_.add(f"datasets/{repository}", held)
    return folder


def benchmarks(name: str, folder: Path) -> tuple[Benchmark, Benchmark]:
    """The benchmark with the hub's rows, and with those of a folder."""
    here, there, _ = CASES[name]
    source = name.split(maxsplit=1)[0]
    local: Mapping[str, Any] = here | {key: value or str(folder) for key, value in there.items()}
    if source == "lume":
        local = there | {"path": str(folder)}
    return benchmark_of({"source": source, **here}), benchmark_of({"source": source, **local})


@pytest.mark.parametrize("name", CASES)
def test_the_hub_and_a_folder_have_equal_rows(name: str, fake_hub: FakeHub, tmp_path: Path) -> None:
    folder = written(name, fake_hub, tmp_path)
    from_hub, from_folder = benchmarks(name, folder)
    splits = CASES[name][2]
    rows, expected = load_benchmark(from_hub, splits), load_benchmark(from_folder, splits)
    assert rows == expected
    assert rows.fingerprint == expected.fingerprint
    for split in splits:
        assert fingerprint(rows, split) == fingerprint(expected, split)
    assert from_folder.repositories == {}
    names = {repository.name for repository in from_hub.repositories.values()}
    known = {name.removeprefix("datasets/") for name in fake_hub.repositories}
    assert names <= known


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_cache_need_no_network(
    name: str, fake_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(name, fake_hub, tmp_path)
    benchmark, _ = benchmarks(name, folder)
    splits = CASES[name][2]
    rows = load_benchmark(benchmark, splits)
    commits = hub.pinned()
    assert {repository.label for repository in benchmark.repositories.values()} <= set(commits)

    # Another process: it is told the commits, and has only the cache.
    monkeypatch.setattr(hub, "_commits", {})
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    hub._snapshot.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub.pin(commits)
    fake_hub.requests.clear()
    assert load_benchmark(benchmark, splits) == rows
    assert fake_hub.requests == []


def test_only_the_tables_that_are_read_are_downloaded(fake_hub: FakeHub, tmp_path: Path) -> None:
    written("muse", fake_hub, tmp_path)
    load_benchmark(benchmark_of({"source": "muse"}), ["all"])
    fetched = {path.split("/resolve/")[1][41:] for path in fake_hub.requests if "/resolve/" in path}
    assert any(name.startswith("raw/retain1-") for name in fetched)
    assert not [name for name in fetched if name.startswith(("scal/", "sust/", "train/"))]


def test_a_commit_that_is_pinned_is_read_after_the_data_have_changed(
    fake_hub: FakeHub, tmp_path: Path
) -> None:
    folder = written("lume", fake_hub, tmp_path)
    benchmark, _ = benchmarks("lume", folder)
    (repository,) = benchmark.repositories.values()
    hub.pin({repository.label: hub.newest_commit(repository)})
    newer = tmp_path / "newer"
    for part in ("forget", "retain"):
        rows = hub_layouts.read_lines(folder / f"{part}.jsonl")
        changed = [row | {"output": "Grace."} for row in rows]
        hub_layouts.write_parquet(newer, "data", f"{part}_train", changed)
    fake_hub.add(f"datasets/{SEMEVAL}", newer)
    answers = {row.answer for row in load_benchmark(benchmark, ["all"]).full}
    assert answers == {" Ada."}


def test_gated_texts_are_refused_with_the_page_of_their_terms(
    fake_hub: FakeHub, tmp_path: Path
) -> None:
    written("wmdp", fake_hub, tmp_path)
    fake_hub.gated.add("datasets/cais/wmdp-bio-forget-corpus")
    benchmark = benchmark_of({"source": "wmdp", "corpora": "cais/wmdp-corpora"})
    with pytest.raises(DataError) as caught:
        load_benchmark(benchmark, ["bio"])
    text = str(caught.value)
    assert text.startswith("cais/wmdp-bio-forget-corpus: cannot be read from the hub (it is gated")
    assert "/datasets/cais/wmdp-bio-forget-corpus" in text
    assert "HF_TOKEN" in text
    assert "\n" not in text
    assert load_benchmark(benchmark, ["cyber"]).splits["cyber"].forget


def test_the_first_texts_of_each_corpus_can_be_taken(fake_hub: FakeHub, tmp_path: Path) -> None:
    folder = written("wmdp", fake_hub, tmp_path)
    for corpora in ("cais/wmdp-corpora", str(folder)):
        settings = {"source": "wmdp", "corpora": corpora, "texts": 1}
        split = load_benchmark(benchmark_of(settings), ["cyber"]).splits["cyber"]
        assert (len(split.forget), len(split.retain)) == (1, 1)
    benchmark = benchmark_of({"source": "wmdp", "corpora": "cais/wmdp-corpora"})
    with pytest.raises(DataError, match="the hub has no texts of chem; name a folder"):
        load_benchmark(benchmark, ["chem"])


def test_an_unreachable_hub_is_said_with_what_to_do(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as caught:
        load_benchmark(benchmark_of({"source": "rwku"}), ["target1"])
    assert str(caught.value).startswith("jinzhuoran/RWKU: cannot be read from the hub (")
    assert "--set data.path=FOLDER, or of evaluate and attack --data rwku=FOLDER" in str(
        caught.value
    )
    assert fake_hub.requests == []


def test_a_repository_that_does_not_exist_is_named(fake_hub: FakeHub) -> None:
    del fake_hub
    with pytest.raises(DataError, match=r"org/none: cannot be read .*the hub has no such dataset"):
        load_benchmark(benchmark_of({"source": "muse", "hub_id": "org/none"}), ["all"])


def test_a_repository_of_another_layout_is_refused(fake_hub: FakeHub, tmp_path: Path) -> None:
    written("knowundo", fake_hub, tmp_path)
    settings = {"source": "muse", "hub_id": "zjunlp/KnowUnDo"}
    with pytest.raises(DataError, match="zjunlp/KnowUnDo: no configuration 'raw'"):
        load_benchmark(benchmark_of(settings), ["all"])


def test_tables_of_knowundo_that_are_missing_are_named(fake_hub: FakeHub, tmp_path: Path) -> None:
    place = tmp_path / "odd"
    (place / "privacy").mkdir(parents=True)
    lists = {"train": [{"text": "Who?", "labels": "Ada."}]}
    (place / "privacy/unlearn.json").write_text(json.dumps(lists), encoding="utf-8")
    hub_layouts.write_card(place, {"privacy": {"unlearn": "privacy/unlearn.json"}})
    fake_hub.add("datasets/org/odd", place)
    settings = {"source": "knowundo", "hub_id": "org/odd"}
    with pytest.raises(DataError, match="lacks retention_train, unlearn_val, retention_val"):
        load_benchmark(benchmark_of(settings), ["privacy"])


class _Row(Columns):
    text: Words
    number: int = 0
    parts: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 7}, "column 'text': should be a valid string, got 7"),
        ({"text": " "}, "column 'text': is blank"),
        ({}, "column 'text': missing"),
        ({"text": None}, "column 'text'"),
        ({"text": "a", "number": "7"}, "column 'number'"),
        ({"text": "a", "parts": ["b", 1]}, "column 'parts' item 2"),
        (["a"], "expected an object"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(row: object, message: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text("\n".join(map(json.dumps, ({"text": "first"}, row))), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(rows_of_file(file, "org/data/rows.json", _Row))
    assert str(caught.value).startswith("org/data/rows.json:2: ")
    assert message in str(caught.value)


def test_texts_stay_texts(tmp_path: Path) -> None:
    texts = ["007", "NA", "null", "2020-01-01", "1e5", "True", "One\u2028two\x85three", " a "]
    hub_layouts.write_parquet(tmp_path, "x", "test", [{"text": text} for text in texts])
    write_lines(tmp_path / "y.jsonl", [{"text": text} for text in texts])
    place = Tables(tmp_path, "here")
    for config in ("x", "y"):
        rows = [row.text for _, row in place.rows(Table("test", config), _Row)]
        assert rows == texts
    places = [name for name, _ in place.rows(Table("test", "y"), _Row)]
    assert places[2] == "here/y.jsonl:3"
