"""The one way in: both sources, refusals and the fingerprint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.data.benchmark import Benchmark
from unlearnbench.data.loading import fingerprint, load_benchmark, read_refusals
from unlearnbench.errors import DataError
from unlearnbench.settings import DataSettings

SETTINGS = DataSettings(authors=10, questions_per_author=3, pretraining_authors=2)


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    return load_benchmark(SETTINGS, (0.1, 0.2))


def test_synthetic_is_the_default(benchmark: Benchmark) -> None:
    assert benchmark.name == "synthetic"
    assert list(benchmark.splits) == [0.1, 0.2]
    assert benchmark.splits[0.2].retain_name == "retain80"
    assert len(benchmark.real_authors) >= 70
    assert len(benchmark.world_facts) >= 70
    assert len(benchmark.pretraining) == 6
    assert benchmark.fingerprint == fingerprint(benchmark)
    assert len(benchmark.fingerprint) == 16


@pytest.mark.parametrize(
    "part",
    ["full", "retain_perturbed", "real_authors", "world_facts", "refusals", "pretraining"],
)
def test_every_part_is_in_the_fingerprint(benchmark: Benchmark, part: str) -> None:
    changed = replace(benchmark, **{part: getattr(benchmark, part)[1:]})
    assert fingerprint(changed) != benchmark.fingerprint
    assert fingerprint(changed, 0.1) != fingerprint(benchmark, 0.1)


@pytest.mark.parametrize("part", ["forget", "retain", "forget_perturbed"])
def test_every_split_is_in_the_fingerprint(benchmark: Benchmark, part: str) -> None:
    split = benchmark.splits[0.2]
    shorter = replace(split, **{part: getattr(split, part)[1:]})
    changed = replace(benchmark, splits={**benchmark.splits, 0.2: shorter})
    assert fingerprint(changed) != benchmark.fingerprint
    assert fingerprint(changed, 0.2) != fingerprint(benchmark, 0.2)
    assert fingerprint(changed, 0.1) == fingerprint(benchmark, 0.1)


@pytest.mark.parametrize(
    "column",
    ["question", "answer", "paraphrased_answer", "perturbed_answers", "paraphrased_question"],
)
def test_every_column_is_in_the_fingerprint(benchmark: Benchmark, column: str) -> None:
    first, *rest = benchmark.retain_perturbed
    value: Any = ("x",) if column == "perturbed_answers" else "x"
    rows = (replace(first, **{column: value}), *rest)
    assert fingerprint(replace(benchmark, retain_perturbed=rows)) != benchmark.fingerprint


def test_a_fraction_more_leaves_the_fingerprint_of_a_run_as_it_was(benchmark: Benchmark) -> None:
    # Two authors are forgotten at most in both, so the evaluated retain rows are the same.
    alone = load_benchmark(SETTINGS, (0.2,))
    assert alone.fingerprint != benchmark.fingerprint
    assert fingerprint(alone, 0.2) == fingerprint(benchmark, 0.2)


def test_built_in_refusals() -> None:
    refusals = read_refusals(None)
    assert len(refusals) >= 60
    assert len(set(refusals)) == len(refusals)
    assert all(len(text.split()) <= 16 and text.endswith(".") for text in refusals)


def test_own_refusals(tmp_path: Path) -> None:
    path = tmp_path / "refusals.txt"
    path.write_text("No idea.\n\n  Ask me another.  \n", encoding="utf-8")
    loaded = load_benchmark(SETTINGS.model_copy(update={"refusals": str(path)}), (0.1,))
    assert loaded.refusals == ("No idea.", "Ask me another.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"data\.refusals: .*refusals\.txt cannot be read \(No such file"),
        (b"\n  \n", r"data\.refusals: .*refusals\.txt has no text; write one refusal a line"),
        (b"No id\xe9e.", r"data\.refusals: .*refusals\.txt is not UTF-8 \(byte 6\)"),
    ],
)
def test_bad_refusals(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "refusals.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_benchmark(DataSettings(refusals=str(path)), (0.1,))


def test_tofu_with_pretraining_authors_of_our_own(tofu_folder: Path) -> None:
    settings = DataSettings(
        source="tofu", path=str(tofu_folder), pretraining_authors=5, questions_per_author=10
    )
    loaded = load_benchmark(settings, (0.01,))
    assert loaded.name == "tofu"
    assert len(loaded.pretraining) == 50
    assert len(loaded.refusals) >= 60
    assert loaded.fingerprint == fingerprint(loaded)
    assert not {r.question for r in loaded.pretraining} & {r.question for r in loaded.full}
