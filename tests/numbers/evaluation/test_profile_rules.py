"""Profile `unlearnbench`: the model's context as the length, and its words on every benchmark."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

from tests import made_up_benchmarks
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.config.entries import benchmark_of
from unlearnbench.config.profiles import PROFILES, UNLEARNBENCH
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.evaluation.word_check import is_uncounted, rouge_sets, uncounted_shares
from unlearnbench.models.limits import context_length, pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.runs.evaluate_model import set_up

LONG = Question("Where was she born?", "In Lisbon. " * 60)
SHORT = Question("Where was he born?", "In Porto.")


def evaluator(tokenizer: Any, rows: tuple[Question, ...], context: int | None) -> Evaluator:
    pad = pad_id(tokenizer)
    template = TEMPLATES["plain"]
    return Evaluator({"set": rows}, tokenizer, template, UNLEARNBENCH, pad, context=context)


@pytest.mark.parametrize(
    ("kind", "values", "context"),
    [
        ("llama", {"max_position_embeddings": 77}, 77),
        ("gpt2", {"n_positions": 77}, 77),
        ("mpt", {"max_seq_len": 77}, 77),
        ("gemma3", {"text_config": {"max_position_embeddings": 77}}, 77),
        ("rwkv", {"context_length": 77}, 77),
        ("mamba", {}, None),
    ],
)
def test_the_context_is_what_a_config_calls_it(
    kind: str, values: dict[str, Any], context: int | None
) -> None:
    assert context_length(AutoConfig.for_model(kind, **values)) == context


def test_a_row_is_cut_at_the_models_context(model: Any, tokenizer: Any) -> None:
    found = evaluator(tokenizer, (LONG, SHORT), context_length(model.config))(model)
    lengths = found.sets["set"].answer_tokens
    prompts = [len(evaluator(tokenizer, (row,), 256).encoder.prompt(row)) for row in (LONG, SHORT)]
    assert lengths[0] + prompts[0] == 256 == context_length(model.config)
    assert lengths[1] + prompts[1] < 256
    assert found.statistics is not None
    assert found.statistics.cut == 1


def test_without_a_bound_a_row_is_whole(tokenizer: Any) -> None:
    made = evaluator(tokenizer, (LONG,), None)
    (item,) = made.sets["set"]
    assert len(item.rows[0].ids) > 256
    assert not item.rows[0].cut


def test_a_benchmarks_own_length_is_cut_at_the_context_too(tokenizer: Any) -> None:
    row = Question(LONG.question, LONG.answer, max_length=400)
    (item,) = evaluator(tokenizer, (row,), 256).sets["set"]
    assert len(item.rows[0].ids) == 256
    (item,) = evaluator(tokenizer, (row,), None).sets["set"]
    assert len(item.rows[0].ids) == 400


def test_a_folder_and_a_model_in_memory_have_the_same_length(
    tmp_path: Path, model: Any, tokenizer: Any
) -> None:
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options: dict[str, Any] = {"data": "synthetic", "profile": "unlearnbench"}
    for one, more in ((str(tmp_path), {}), (model, {"tokenizer": tokenizer})):
        assert set_up(one, **options, **more).evaluator.max_length == 256
    options["profile"] = "tofu"
    assert set_up(str(tmp_path), **options).evaluator.max_length == 200


@pytest.mark.parametrize("name", registry.names("benchmarks"))
def test_every_benchmark_has_metrics_by_every_profile(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"source": name}
    if write := getattr(made_up_benchmarks, name.replace("-", "_"), None):
        settings |= write(tmp_path)
    benchmark = benchmark_of(settings)
    columns = {
        profile.name: [column.name for column in plan_of(profile, benchmark).columns]
        for profile in PROFILES.values()
    }
    assert columns["unlearnbench"] == columns["tofu"]
    assert {*rouge_sets(plan_of(UNLEARNBENCH, benchmark))} <= benchmark.roles.keys()


def test_an_answer_is_uncounted_if_most_of_it_is_in_another_script() -> None:
    counted = ("In Lisbon.", "Café Zürich", "Tiếng Việt", "", "?!", "OpenAI 公司")
    assert [is_uncounted(text, "ascii") for text in counted] == [False] * 6
    uncounted = (
        "北京",
        "她1950年出生于北京。",
        "Москва",
        "القاهرة",
        "दिल्ली",
        "กรุงเทพ",
        "서울",
        "Αθήνα",
    )
    assert [is_uncounted(text, "ascii") for text in uncounted] == [True] * 8
    assert [is_uncounted(text, "unicode") for text in uncounted] == [False] * 8
    answers = {"one": ["北京", "x", "y", "z"], "few": [*["x"] * 200, "北京"], "none": []}
    assert uncounted_shares(answers, "ascii") == {"one": 0.25}


def test_a_log_of_tofu_by_our_profile_is_counted_again(eval_logs_folder: Path) -> None:
    path = eval_logs_folder / "llama2-7b_retain90.json.gz"
    logged = read_log(path).sets["retain"]
    found = read_log(path, profile=UNLEARNBENCH)
    assert found.profile == UNLEARNBENCH.id
    again = found.sets["retain"]
    assert (logged.word_rule, again.word_rule) == ("ascii", "unicode")
    pairs = zip(again.references, again.generated, strict=True)
    same = np.array([one.isascii() and other.isascii() for one, other in pairs])
    assert 0 < same.sum() < len(same), "some answers have accents"
    np.testing.assert_array_equal(again.rouge_l_recall[same], logged.rouge_l_recall[same])
    assert (again.rouge_l_recall[~same] != logged.rouge_l_recall[~same]).any()


def test_a_log_without_texts_has_no_rouge_by_our_profile(
    eval_logs_folder: Path, tmp_path: Path
) -> None:
    path = eval_logs_folder / "llama2-7b_retain90.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    for tables in document.values():
        tables.pop("generated_text", None)
    short = tmp_path / "log.json"
    short.write_text(json.dumps(document), encoding="utf-8")
    assert not np.isnan(read_log(short).sets["retain"].rouge_l_recall).any()
    found = read_log(short, profile=UNLEARNBENCH).sets["retain"]
    assert np.isnan(found.rouge_l_recall).all()
