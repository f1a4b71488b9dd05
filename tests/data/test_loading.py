"""The one way in: both sources, refusals and the fingerprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from unlearnbench.api.benchmark import Benchmark, Dataset, Headline, MetricUse, Question, Split
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.benchmarks.tofu import TOFU
from unlearnbench.data.loading import fingerprint, load_benchmark, read_refusals
from unlearnbench.errors import DataError

SETTINGS = Synthetic(authors=10, questions_per_author=3, pretraining_authors=2)


@pytest.fixture(scope="module")
def benchmark() -> Dataset:
    return load_benchmark(SETTINGS, (0.1, 0.2))


def test_synthetic_is_the_default(benchmark: Dataset) -> None:
    assert benchmark.name == "synthetic"
    assert list(benchmark.splits) == [0.1, 0.2]
    assert benchmark.splits[0.2].retain_name == "retain80"
    sets = benchmark.splits[0.2].sets
    assert list(sets) == ["retain", "forget", "real_authors", "world_facts", "holdout"]
    assert len(sets["real_authors"]) >= 70
    assert len(sets["world_facts"]) >= 70
    assert benchmark.facts == sets["real_authors"] + sets["world_facts"]
    assert len(benchmark.pretraining) == 6
    assert benchmark.fingerprint == fingerprint(benchmark)
    assert len(benchmark.fingerprint) == 16


def with_set(benchmark: Dataset, name: str, rows: tuple[Question, ...]) -> Dataset:
    """The same rows but for a set of every split."""
    splits = {
        fraction: replace(split, sets={**split.sets, name: rows})
        for fraction, split in benchmark.splits.items()
    }
    return replace(benchmark, splits=splits)


@pytest.mark.parametrize("part", ["full", "refusals", "pretraining"])
def test_every_part_is_in_the_fingerprint(benchmark: Dataset, part: str) -> None:
    changed = replace(benchmark, **{part: getattr(benchmark, part)[1:]})
    assert fingerprint(changed) != benchmark.fingerprint
    assert fingerprint(changed, 0.1) != fingerprint(benchmark, 0.1)


@pytest.mark.parametrize("name", ["retain", "forget", "real_authors", "world_facts", "riddles"])
def test_every_set_is_in_the_fingerprint(benchmark: Dataset, name: str) -> None:
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


@pytest.mark.parametrize(
    "column",
    ["question", "answer", "paraphrased_answer", "perturbed_answers", "paraphrased_question"],
)
def test_every_column_is_in_the_fingerprint(benchmark: Dataset, column: str) -> None:
    first, *rest = benchmark.splits[0.1].sets["retain"]
    value: Any = ("x",) if column == "perturbed_answers" else "x"
    rows = (replace(first, **{column: value}), *rest)
    assert fingerprint(with_set(benchmark, "retain", rows)) != benchmark.fingerprint


def test_what_rows_lack_by_default_leaves_fingerprints_as_they_were(benchmark: Dataset) -> None:
    """Those of the version before rows had a format, examples and limits of their own."""
    assert benchmark.fingerprint == "0113082884650a7e"
    assert fingerprint(benchmark, 0.1) == "4d230e8bbdd3dc4f"


@pytest.mark.parametrize(
    "own", [{"format": "text"}, {"examples": (("Where?", "Here."),)}, {"max_new_tokens": 5}]
)
def test_what_a_row_sets_itself_is_in_the_fingerprint(benchmark: Dataset, own: Any) -> None:
    first, *rest = benchmark.splits[0.1].sets["retain"]
    changed = with_set(benchmark, "retain", (replace(first, **own), *rest))
    assert fingerprint(changed) != benchmark.fingerprint


class Riddles(Benchmark):
    """Rows by hand, as the evaluation set of one split; the second one is in order."""

    rows: tuple[Any, ...] = ()
    roles: ClassVar[Mapping[str, Role]] = {"forget": "forget"}
    headline: ClassVar[Headline] = Synthetic.headline

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """None."""
        del profile
        return ()

    def load(self, fractions: Sequence[float]) -> Dataset:
        """The rows, without any to train on."""
        del fractions
        every: tuple[dict[str, Any], ...] = (*self.rows, {"question": "Why?", "answer": "So."})
        rows = tuple(Question(**row) for row in every)
        split = Split(0.5, rows[:0], rows[:0], {"forget": rows})
        return Dataset("riddles", (), {0.5: split})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": " "}, "the answer is empty, so there is nothing to score"),
        ({"question": "", "answer": "", "format": "text"}, "the text is empty"),
        ({"question": ""}, "the question is blank; a row of plain text has format='text'"),
        ({"format": "prose"}, "format 'prose': must be chat or text"),
        ({"perturbed_answers": ("No.", "")}, "a paraphrased or wrong answer is empty"),
        ({"examples": (("Where?", ""),)}, "an example has an empty question or answer"),
        ({"max_new_tokens": 0}, "max_new_tokens 0: must be at least 1"),
        ({"score": float("nan")}, r"score nan: must be from 0 \(unlearn\) to 1 \(learn\)"),
        ({"score": (0.5, 2.0)}, r"score .*2.0.*: must be from 0"),
        (
            {"question": "", "format": "text", "examples": (("Where?", "Here."),)},
            "examples in front of plain text",
        ),
        ({"question": "", "format": "text"}, "no question, but set forget of forget50, row 2 has"),
        ({"perturbed_answers": ("No.",)}, ""),
    ],
)
def test_a_faulty_row_is_one_line_with_its_place(row: dict[str, Any], message: str) -> None:
    riddles = Riddles(rows=({"question": "Where?", "answer": "Here.", **row},))
    where = (
        "set forget of forget50, row 1: "
        if message
        else (
            "set forget of forget50, row 2: no wrong answers, but set forget of forget50, row 1 has"
        )
    )
    with pytest.raises(DataError, match=where + message):
        load_benchmark(riddles, (0.5,))


def test_a_row_that_was_read_from_a_file_is_named_by_its_line() -> None:
    rows = ({"question": "Where?", "answer": "", "place": "rows.json:7"},)
    with pytest.raises(DataError, match=r"^rows\.json:7: the answer is empty"):
        load_benchmark(Riddles(rows=rows), (0.5,))


def test_fingerprint_of_a_run_does_not_depend_on_other_fractions(benchmark: Dataset) -> None:
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
        load_benchmark(Synthetic(refusals=str(path)), (0.1,))


def test_tofu_has_generated_pretraining_authors(tofu_folder: Path) -> None:
    settings = TOFU(path=str(tofu_folder), pretraining_authors=5, questions_per_author=10)
    loaded = load_benchmark(settings, (0.01,))
    assert loaded.name == "tofu"
    assert len(loaded.pretraining) == 50
    assert len(loaded.refusals) >= 60
    assert loaded.fingerprint == fingerprint(loaded)
    assert not {r.question for r in loaded.pretraining} & {r.question for r in loaded.full}
