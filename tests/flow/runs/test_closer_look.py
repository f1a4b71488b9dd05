"""The profile `closer-look` from a configuration to the table, with models of texts made here."""

from pathlib import Path
from statistics import harmonic_mean, mean
from typing import Any

import pytest

from tests.factories.text_models import add_pooling, save_encoder, save_judge, word_tokenizer
from unlearnbench.base import deferred_warnings as notices
from unlearnbench.config.evaluation_settings import EvaluationSettings
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import read_records
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.run import run_single

from ..small_run import config_of, runs_of

METRICS = ("rouge", "probability", "truth_ratio", "token_entropy")
METRICS_OF_MEANING = ("sentence_similarity", "answer_entailment")
KEPT = ("retain", "real_authors", "world_facts")


def profile_of(**changes: Any) -> EvaluationSettings:
    return EvaluationSettings(profile="closer-look", rows=4, max_length=96, **changes)


def test_scores_are_the_means_of_the_columns_beside_them(place: Path, tmp_path: Path) -> None:
    texts = ["who wrote this book ?", "the author was born in a town", "Paris is a city"]
    words = word_tokenizer(texts)
    save_encoder(tmp_path / "encoder", words)
    add_pooling(tmp_path / "encoder", {"pooling_mode_mean_tokens": True})
    save_judge(tmp_path / "judge", words, texts, texts[::-1])
    chosen: Any = {
        "sentence-similarity": {"model": str(tmp_path / "encoder")},
        "answer-entailment": {"model": str(tmp_path / "judge"), "least_rouge": 0.0},
    }
    plain = config_of(place, epochs=1, evaluation=profile_of())
    config = config_of(
        place,
        epochs=1,
        evaluation=profile_of(metrics=chosen),
        output=str(place / "closer"),
    )
    (spec,) = runs_of(config)
    assert [spec.id] == [run.id for run in runs_of(plain)]
    folder = place / "closer" / "small"
    for task in preparation_tasks(config, [spec], folder):
        execute_task(task, config, folder)
    record = run_single(spec, config, folder, lambda _: None)

    rows = table_of(read_records(folder), chosen).rows
    assert {row.kind for row in rows} == {"run", "retain", "fine-tuned"}
    for row in rows:
        known = {name: value for name, value in row.metrics.items() if value is not None}
        parts = [known[f"{m}_{s}"] for m in (*METRICS, *METRICS_OF_MEANING) for s in KEPT]
        wanted = harmonic_mean(parts) if min(parts) > 0 else 0
        assert known["six_metric_utility"] == pytest.approx(wanted, rel=1e-12)
        high_if_known = [
            known["rouge_forget"],
            known["probability_forget"],
            1 - known["truth_ratio_forget"],
            *(known[f"{name}_forget"] for name in METRICS_OF_MEANING),
        ]
        assert known["forget_efficacy"] == pytest.approx(1 - mean(high_if_known), rel=1e-12)
    stated = record.epochs[-1].metrics
    (run,) = [row for row in rows if row.kind == "run"]
    assert {name: run.metrics[name] for name in stated} == stated
    assert record.evaluations[1].sets["world_facts"].token_entropy is not None


def test_a_plan_says_which_scores_are_left_out(place: Path) -> None:
    notices.drain()
    plan_sweep(config_of(place, evaluation=profile_of()))
    left_out = [line for line in notices.drain() if "left out" in line]
    assert left_out == [
        "profile closer-look: six-metric-utility and forget-efficacy are left out, because "
        "evaluation.metrics does not name sentence-similarity and answer-entailment; name each of "
        "these with its `model` to get them"
    ]
    plan_sweep(config_of(place))
    assert not [line for line in notices.drain() if "left out" in line], "another profile"
