"""The one way in: both sources, refusals and the fingerprint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.models.rows_loading import fingerprint, load_benchmark, split_fingerprints

SETTINGS = Synthetic(authors=10, questions_per_author=3, pretraining_authors=2)


@pytest.fixture(scope="module")
def benchmark() -> Dataset:
    return load_benchmark(SETTINGS, (0.1, 0.2))


def with_set(benchmark: Dataset, name: str, rows: tuple[Question, ...]) -> Dataset:
    """The same rows but for a set of every split."""
    splits = {
        fraction: replace(split, sets={**split.sets, name: rows})
        for fraction, split in benchmark.splits.items()
    }
    return replace(benchmark, splits=splits)


PARTS = ("full", "refusals", "pretraining")
SETS = ("retain", "forget", "real_authors", "world_facts", "riddles")


@pytest.mark.parametrize("name", [*PARTS, *SETS])
def test_every_part_and_every_set_is_in_the_fingerprint(benchmark: Dataset, name: str) -> None:
    if name in PARTS:
        changed = replace(benchmark, **{name: getattr(benchmark, name)[1:]})
    else:
        rows = benchmark.splits[0.1].sets.get(name, benchmark.full)[1:]
        changed = with_set(benchmark, name, rows)
    assert fingerprint(changed) != benchmark.fingerprint
    assert fingerprint(changed, 0.1) != fingerprint(benchmark, 0.1)


@pytest.mark.parametrize("part", ["forget", "retain"])
def test_every_split_is_in_the_fingerprint(benchmark: Dataset, part: str) -> None:
    split = benchmark.splits[0.2]
    shorter = replace(split, **{part: getattr(split, part)[1:]})
    changed = replace(benchmark, splits={**benchmark.splits, 0.2: shorter})
    assert fingerprint(changed) != benchmark.fingerprint
    assert fingerprint(changed, 0.2) != fingerprint(benchmark, 0.2)
    assert fingerprint(changed, 0.1) == fingerprint(benchmark, 0.1)


def test_what_rows_lack_by_default_leaves_fingerprints_as_they_were(benchmark: Dataset) -> None:
    """Those of the version before rows had a format, examples and limits of their own."""
    assert benchmark.fingerprint == "0113082884650a7e"
    assert fingerprint(benchmark, 0.1) == "4d230e8bbdd3dc4f"


@pytest.mark.parametrize(
    "own",
    [
        {"format": "text"},
        {"examples": (("Where?", "Here."),)},
        {"max_new_tokens": 5},
        {"perturbed_answers": ("x",)},
        *({k: "x"} for k in ("question", "answer", "paraphrased_answer", "paraphrased_question")),
    ],
)
def test_every_column_is_in_the_fingerprint(benchmark: Dataset, own: Any) -> None:
    first, *rest = benchmark.splits[0.1].sets["retain"]
    changed = with_set(benchmark, "retain", (replace(first, **own), *rest))
    assert fingerprint(changed) != benchmark.fingerprint


def test_fingerprint_of_a_run_does_not_depend_on_other_fractions(benchmark: Dataset) -> None:
    # Two authors are forgotten at most in both, so the evaluated retain rows are the same.
    alone = load_benchmark(SETTINGS, (0.2,))
    assert alone.fingerprint != benchmark.fingerprint
    assert fingerprint(alone, 0.2) == fingerprint(benchmark, 0.2)


def test_tofu_has_generated_pretraining_authors(tofu_folder: Path) -> None:
    settings = TOFU(path=str(tofu_folder), pretraining_authors=5, questions_per_author=10)
    loaded = load_benchmark(settings, (0.01,))
    assert loaded.name == "tofu"
    assert len(loaded.pretraining) == 50
    assert len(loaded.refusals) >= 60
    assert loaded.fingerprint == fingerprint(loaded)
    assert not {r.question for r in loaded.pretraining} & {r.question for r in loaded.full}


def test_own_refusals(tmp_path: Path) -> None:
    path = tmp_path / "refusals.txt"
    path.write_text("No idea.\n\n  Ask me another.  \n", encoding="utf-8")
    loaded = load_benchmark(SETTINGS.model_copy(update={"refusals": str(path)}), (0.1,))
    assert loaded.refusals == ("No idea.", "Ask me another.")


def test_fingerprints_of_splits_are_those_of_each_split(benchmark: Dataset) -> None:
    expected = {split: fingerprint(benchmark, split) for split in (0.1, 0.2)}
    assert split_fingerprints(benchmark) == expected
    alone = load_benchmark(SETTINGS, (0.1,))
    assert split_fingerprints(alone) == {0.1: fingerprint(alone, 0.1)}


def test_settings_of_a_prompt_are_those_that_differ_from_a_plain_question() -> None:
    plain = Question("Who?", "Nobody.", "No one.", ("He.",), subject="x", place="a:1", score=0.5)
    assert plain.prompt_settings == {}
    others: dict[str, Any] = {
        "format": "text",
        "examples": (("a", "b"),),
        "max_new_tokens": 3,
        "prefix": "p",
        "system": "",
        "max_length": 9,
        "answer_index": 0,
        "stops": ("s",),
        "max_answer_tokens": 2,
        "labels": ("l",),
        "tag": "t",
    }
    for name, value in others.items():
        assert replace(plain, **{name: value}).prompt_settings == {name: value}
    # The order is part of no id, but of what people read.
    both = replace(plain, **dict(reversed(others.items()))).prompt_settings
    assert list(both.items()) == [(name, others[name]) for name in both]
    assert set(both) == set(others)
