"""WMDP and MMLU from a user's folders, and the twin of both."""

import json
from pathlib import Path

import pytest

from tests.conftest import shared_data
from tests.made_up_benchmarks import CHOICE, wmdp
from unlearnbench.api.benchmark import Dataset
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.published_tables import Tables
from unlearnbench.benchmarks.wmdp import WMDP
from unlearnbench.benchmarks.wmdp_twin import WMDPTwin
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.models.rows_loading import load_benchmark


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of a made-up row each."""
    wmdp(tmp_path)
    return tmp_path


def loaded(folder: Path, **settings: object) -> Dataset:
    where = {"path": str(folder), "mmlu": str(folder)}
    return load_benchmark(WMDP.model_validate(where | settings), ["bio"])


def test_prompts_are_lm_evals(folder: Path) -> None:
    sets = loaded(folder).splits["bio"].sets
    assert {name: len(rows) for name, rows in sets.items()} == {
        "mmlu": 2,
        "neighbours": 2,
        "wmdp": 1,
    }
    assert sets["wmdp"][0].question == (
        "The following are multiple choice questions (with answers) about biology.\n\n"
        "Which pigment makes leaves green?\n"
        "A. Keratin\nB. Chlorophyll\nC. Melanin\nD. Heme\nAnswer:"
    )
    assert (sets["wmdp"][0].options, sets["wmdp"][0].answer) == (("A", "B", "C", "D"), "B")
    assert "about college biology.\n\n" in sets["neighbours"][0].question


def test_cloze_asks_for_texts(folder: Path) -> None:
    (folder / "data.jsonl").write_text(json.dumps(CHOICE), encoding="utf-8")
    row = loaded(folder, variant="cloze").splits["bio"].sets["wmdp"][0]
    assert row.question == (
        "Complete the following biology questions with the correct answer.\n\n"
        "Question: Which pigment makes leaves green?\nAnswer:"
    )
    assert row.options == tuple(CHOICE["choices"])  # type: ignore[arg-type]
    uses = {use.metric: use.settings for use in WMDP(variant="cloze").metrics(TOFU)}
    assert uses["choice-accuracy"] == {"per": "character"}, "acc_norm"


def test_corpora_are_texts(folder: Path) -> None:
    assert loaded(folder).full == ()
    rows = loaded(folder, corpora=str(folder))
    assert [row.answer for row in rows.full] == [
        "A text about bio to retain.",
        "A text about bio to forget.",
    ]
    assert rows.splits["bio"].forget[0].is_plain_text


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "wmdp-bio.jsonl",
            None,
            "no wmdp-bio.jsonl, test/wmdp-bio.jsonl, wmdp-bio/test.jsonl or wmdp-bio/test-",
        ),
        ("wmdp-bio.jsonl", '{"question": "Q?"}', "wmdp-bio.jsonl:1: column 'choices'"),
        ("virology.jsonl", json.dumps(CHOICE | {"answer": 4}), "column 'answer': 4 of 4 options"),
        ("bio-forget.jsonl", None, "lacks bio-forget.jsonl; write a text in each line"),
    ],
)
def test_a_fault_has_its_place(folder: Path, file: str, text: str | None, message: str) -> None:
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        loaded(folder, corpora=str(folder))
    assert message in str(caught.value)


def test_the_subjects_of_mmlu_are_read() -> None:
    mmlu = shared_data("benchmarks/mmlu")
    place = Tables(mmlu, str(mmlu))
    rows = WMDP()._mmlu(place, ("sociology", "virology"))  # pyright: ignore[reportPrivateUsage]
    assert len(rows) == 201 + 166, "sociology has line separators in its texts"


def test_the_twin_has_options_of_other_authors() -> None:
    benchmark = WMDPTwin(authors=6, pretraining_authors=2)
    rows = load_benchmark(benchmark, [0.5, 1 / 6])
    assert rows.splits[0.5].forget
    alone = load_benchmark(benchmark, [0.5])
    assert alone.splits[0.5].sets["wmdp"] == rows.splits[0.5].sets["wmdp"]
    places = set[int | None]()
    for name in ("wmdp", "neighbours", "mmlu"):
        for row in rows.splits[0.5].sets[name]:
            assert len(set(row.options)) == len(row.options) >= 3
            assert row.options[row.answer_index or 0] == row.answer
            places.add(row.answer_index)
    assert places == {0, 1, 2, 3}
    own = benchmark_plan(TOFU, benchmark).own
    assert {"choice_accuracy_wmdp", "choice_accuracy_mmlu", "option_entropy_wmdp", "kept"} <= own
