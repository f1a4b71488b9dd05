"""MUSE's rows, prompts and rules, on made-up texts in its layout."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from tests.conftest import shared_data
from tests.made_up_benchmarks import muse, write_lines
from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import EvaluatedModel
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.muse import MUSE, MUSEScalability, MUSESustainability
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.metrics.rouge_f1 import RougeF1
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES


def test_rows_and_prompts(tmp_path: Path) -> None:
    split = load_benchmark(MUSE.model_validate(muse(tmp_path)), ["all"]).splits["all"]
    assert len(split.forget) == 3, "the empty text is left out"
    assert all(row.is_plain_text for row in (*split.forget, *split.retain))
    asked = split.sets["knowmem"][2]
    assert asked.question.startswith("Question: Who is shown forget 0?\nAnswer: shown forget 0\n\n")
    assert asked.question.endswith("\n\nQuestion: Who is forget 2?\nAnswer: ")
    assert asked.question.count("Question: ") == 11
    continued = split.sets["verbmem"][0]
    assert (continued.question, continued.answer) == (
        "The council met on Tuesday",
        " and agreed to wait.",
    )
    assert (continued.max_new_tokens, continued.max_answer_tokens) == (128, 127)


def test_a_passage_goes_on_as_its_text_does(tmp_path: Path, tokenizer: Any) -> None:
    settings = muse(tmp_path)
    text = "The council met on Tuesday and agreed to wait until spring."
    write_lines(tmp_path / "raw/forget.jsonl", [{"text": "Another text."}, {"text": text}])
    # Decoding loses the space in front of a first word.
    cuts = [(text[:i], text[i:].strip()) for i in (21, 26, 34, 45)]
    passages = [{"prompt": prompt, "gt": continuation} for prompt, continuation in cuts]
    write_lines(tmp_path / "verbmem/forget.jsonl", passages)
    rows = load_benchmark(MUSE.model_validate(settings), ["all"]).splits["all"].sets["verbmem"]
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 4096)
    for row in rows:
        encoded = encoder.row(row)
        assert tokenizer.decode(list(encoded.ids)) == f"<s>{text}</s>"
        assert encoder.reference(encoded, row) == row.answer, "the continuation alone"
    assert [row.tag for row in rows] == ["", " ", "", " "]


def test_texts_are_cut_into_pieces(tmp_path: Path, tokenizer: Any) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    settings = muse(tmp_path) | {"tokenizer": str(tmp_path / "tokenizer")}
    rows = load_benchmark(MUSE.model_validate(settings | {"piece": 16}), ["all"]).splits["all"]
    # The source joins an empty text, too.
    joined = "\n\n".join([*(f"A text of raw/forget, number {i}." for i in range(3)), ""])
    ids = tokenizer(joined, add_special_tokens=False)["input_ids"]
    ids += ids[: -len(ids) % 16]  # the last piece goes on with the first
    expected = [tokenizer.decode(ids[i : i + 16]) for i in range(0, len(ids), 16)]
    assert [row.answer for row in rows.forget] == expected


def test_a_tokenizer_that_cannot_be_had_is_a_users_error(tmp_path: Path) -> None:
    settings = muse(tmp_path) | {"tokenizer": str(tmp_path)}
    with pytest.raises(DataError, match=r"data\.tokenizer: no tokenizer .*; name a folder"):
        load_benchmark(MUSE.model_validate(settings), ["all"])


def test_the_reference_is_cut(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    row = Question("The author", " was born in a small town.", format="text", max_answer_tokens=3)
    cut = encoder.row(row)
    assert (cut.scored, cut.cut) == (3, False), "its own limit is no cut"
    assert "was born in a small town.".startswith(encoder.reference(cut, row))


def test_answers_end_at_the_stops(sharp: Any, tokenizer: Any) -> None:
    row = Question("Where was Ada born?", "In Rome.", max_new_tokens=20)

    def generated(*stops: str) -> str:
        sets = {"set": [Question(row.question, row.answer, max_new_tokens=20, stops=stops)]}
        parts = sets, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer)
        return Evaluator(*parts)(sharp).sets["set"].generated[0]

    whole = generated()
    middle = whole[len(whole) // 2]
    assert generated(middle, "absent") == whole.partition(middle)[0].strip()


def test_answers_of_a_log_are_drafts_also_behind_a_prompt_of_its_own_length(
    sharp: Any, tokenizer: Any
) -> None:
    asked = "Where was Ada born? " * 31
    rows = [Question(asked, "In Rome.", format="text", max_new_tokens=20, max_length=256)]
    parts = tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer)
    evaluator = Evaluator({"set": rows}, *parts)
    assert len(evaluator.sets["set"][0].prompt) > TOFU.max_length
    plain = evaluator(sharp)
    again = evaluator(sharp, replace(plain, answers=None))  # as read from a file
    assert again.sets["set"].generated == plain.sets["set"].generated


@pytest.mark.parametrize("stemmer", [False, True])
def test_f1_is_rouge_scores(stemmer: bool) -> None:
    seen = made_up_set(n=20, seed=3)
    scorer = RougeScorer(["rougeL"], use_stemmer=stemmer)
    expected = [
        scorer.score(true, given)["rougeL"].fmeasure
        for true, given in zip(seen.references, seen.generated, strict=True)
    ]
    np.testing.assert_allclose(RougeF1(stemmer=stemmer).per_example(seen), expected, atol=1e-12)


def test_columns_by_profile() -> None:
    assert {"rouge_f1_verbmem", "rouge_f1_knowmem", "privleak"} <= benchmark_plan(TOFU, MUSE()).own
    for profile, stemmer in ((TOFU, False), (OPEN_UNLEARNING, True)):
        assert MUSE().metrics(profile)[0].settings == {"stemmer": stemmer}


@pytest.mark.parametrize(
    ("kind", "counts"), [(MUSEScalability, [2, 3, 4, 5]), (MUSESustainability, [2, 2, 2, 2])]
)
def test_requests_are_tables_of_the_hub(
    kind: type[MUSE], counts: list[int], tmp_path: Path
) -> None:
    benchmark = kind.model_validate(muse(tmp_path))
    rows = load_benchmark(benchmark, benchmark.splits)
    assert [len(split.forget) for split in rows.splits.values()] == counts
    texts = {row.answer for split in rows.splits.values() for row in split.forget}
    assert len(rows.full) == len(texts) + len(rows.splits["forget1"].retain)
    assert not {use.metric for use in benchmark.metrics(TOFU)} & {"privleak"}


# Of the hub's models, by MUSE's rules: recomputed from open-unlearning's logs of them.
PUBLISHED = {
    "news": (-99.81108310247457, {"knowmem": 0.6414, "verbmem": 0.5776, "knowmem_retain": 0.5530}),
    "books": (-57.34097632075796, {"knowmem": 0.4693, "verbmem": 0.9970, "knowmem_retain": 0.6887}),
}


@pytest.mark.parametrize("part", PUBLISHED)
def test_the_hubs_models_have_their_published_values(part: str) -> None:
    folder = shared_data("benchmarks") / "muse_numbers"

    def sets(checkpoint: str) -> dict[str, SetEvaluation]:
        text = (folder / f"{part}_{checkpoint}.json").read_text(encoding="utf-8")
        rows = json.loads(text)
        scores = {"privleak": "forget", "holdout": "holdout"}
        known = {s: {"mia_min_k": rows["mia_min_k"][side]} for s, side in scores.items()}
        logged = {"knowmem": "forget_knowmem", "verbmem": "forget_verbmem"}
        for name, key in (logged | {"knowmem_retain": "retain_knowmem"}).items():
            known[name] = {"rouge_f1": rows[f"{key}_ROUGE"]["rougeL_f1_no_stemmer"]}
        return {
            name: replace(
                made_up_set(n=100, seed=0), values={k: np.array(v) for k, v in values.items()}
            )
            for name, values in known.items()
        }

    plan = benchmark_plan(TOFU, MUSE())
    retrained = EvaluatedModel(sets("retrain"), plan.values(sets("retrain")))
    values = plan.values(sets("target"), retrained)
    privleak, rouge = PUBLISHED[part]
    assert values["privleak"] == pytest.approx(privleak, abs=1e-9)
    for name, value in rouge.items():
        assert values[f"rouge_f1_{name}"] == pytest.approx(value, abs=5e-5)
