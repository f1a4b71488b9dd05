"""`unlearnbench evaluate` and `score` print the metrics of a model and of a log."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import evaluate_model
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import PluginError
from unlearnbench.cli.options import template_arguments
from unlearnbench.evaluation import harness_tasks
from unlearnbench.evaluation.observation_file import read_observations

from ...chat_models import fitted
from ...factories.command_line import Run
from ...factories.text_models import add_pooling, save_encoder, save_judge, word_tokenizer
from ...families import FAMILIES

pytestmark = pytest.mark.usefixtures("wide_terminal")

SMALL_EVALUATION = ("--data", "synthetic", "--rows", "1", "--max-length", "120")


def test_evaluate_writes_metrics_log_and_questions(run: Run, model_path: str) -> None:
    code, out, err = run(
        *("evaluate", model_path, *SMALL_EVALUATION),
        *("--out", "log.safetensors", "--questions", "q.jsonl", "--json"),
    )
    assert code == 0
    metrics = json.loads(out)
    assert metrics["questions"] == {
        "retain": 1, "forget": 1, "real_authors": 1, "world_facts": 1, "holdout": 1,
    }  # fmt: skip
    assert 0 <= metrics["model_utility"] <= 1
    lines = err.splitlines()
    assert "observations: log.safetensors" in lines
    assert "questions: q.jsonl" in lines
    _, again, _ = run("score", "log.safetensors", "--json")
    assert json.loads(again)["model_utility"] == metrics["model_utility"]
    assert len(Path("q.jsonl").read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.long
def test_tasks_of_lm_evaluation_harness(run: Run, model_path: str) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    rows = [{"q": f"What is the job of {name}?", "a": ["poet", "baker"]} for name in "ABC"]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = {
        "task": "jobs",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(Path("rows.jsonl").resolve())}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{a}}",
        "doc_to_target": 0,
    }
    Path("jobs.yaml").write_text(json.dumps(task), encoding="utf-8")
    asked = ("evaluate", model_path, *SMALL_EVALUATION, "--task")
    code, out, _ = run(*asked, "jobs.yaml")
    assert code == 0
    (cells,) = (line.split() for line in out.splitlines() if line.split()[:2] == ["jobs", "acc"])
    # Of one row there is no standard error, and the exact interval is nearly everything.
    assert cells[2:] in (["0", "1", "[0.000,", "0.975]"], ["1", "1", "[0.025,", "1.000]"])
    code, _, err = run(*asked, "hellaswga")
    assert (code, "did you mean 'hellaswag'?" in err) == (2, True)


def test_tasks_are_part_of_the_json(
    run: Run, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(*_: Any, rows: int | None) -> harness_tasks.TaskScores:
        assert rows == 1
        return {"jobs": {"acc": harness_tasks.TaskScore(0.5, None, 2, (0.1, 0.9))}}

    monkeypatch.setattr(harness_tasks, "task_scores", scores)
    code, out, _ = run("evaluate", model_path, *SMALL_EVALUATION, "--task", "jobs", "--json")
    score = {"value": 0.5, "standard_error": None, "rows": 2, "interval": [0.1, 0.9]}
    assert (code, json.loads(out)["tasks"]) == (0, {"jobs": {"acc": score}})


def test_few_questions_have_their_number_and_a_wide_interval(run: Run, model_path: str) -> None:
    code, out, _ = run("evaluate", model_path, "--data", "synthetic", "--rows", "2")
    assert code == 0
    (heading,) = (line for line in out.splitlines() if line.startswith("metric, ± 95 %"))
    assert "retain (n=2)" in heading
    assert "forget (n=2)" in heading
    cells = next(line for line in out.splitlines() if line.startswith("ROUGE-L"))
    # Two equal values leave much open, and two unlike ones everything.
    assert "±0.000" not in cells
    assert "0.000]" not in cells


def metrics_of(run: Run, *arguments: str) -> tuple[dict[str, Any], str]:
    """Metrics that `--json` prints, and what else is printed."""
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out), err


def test_the_profile_closer_look_reports_token_entropy(run: Run, model_path: str) -> None:
    """Its tokens are observed only because a metric reads them. They were not, once."""
    asked = ("evaluate", model_path, *SMALL_EVALUATION, "--profile", "closer-look")
    metrics, err = metrics_of(run, *asked)
    for name in ("retain", "forget", "real_authors", "world_facts"):
        assert 0 <= metrics[f"token_entropy_{name}"] <= 1
    assert "six_metric_utility" not in metrics
    assert "--metric does not name sentence-similarity and answer-entailment" in err


def test_named_metrics_give_the_scores_of_closer_look(
    run: Run, model_path: str, tmp_path: Path
) -> None:
    texts = ["who wrote this book ?", "the author was born in a town", "Paris is a city"]
    words = word_tokenizer(texts)
    save_encoder(tmp_path / "encoder", words)
    add_pooling(tmp_path / "encoder", {"pooling_mode_mean_tokens": True})
    save_judge(tmp_path / "judge", words, texts, texts[::-1])
    named = (
        *("--metric", "sentence-similarity"),
        *("--set", f"sentence-similarity.model={tmp_path / 'encoder'}"),
        *("--metric", "answer-entailment"),
        *("--set", f"answer-entailment.model={tmp_path / 'judge'}"),
        *("--set", "answer-entailment.least_rouge=0.0"),
    )
    log = ("--out", "log.safetensors", "--questions", "q.jsonl")
    rules = ("--profile", "closer-look", *SMALL_EVALUATION)
    metrics, err = metrics_of(run, "evaluate", model_path, *rules, *named, *log)
    assert "left out" not in err
    high_if_known = [
        metrics["rouge_forget"],
        metrics["probability_forget"],
        1 - metrics["truth_ratio_forget"],
        metrics["sentence_similarity_forget"],
        metrics["answer_entailment_forget"],
    ]
    assert metrics["forget_efficacy"] == pytest.approx(1 - sum(high_if_known) / 5, rel=1e-12)
    assert 0 <= metrics["six_metric_utility"] <= 1
    first, *_ = Path("q.jsonl").read_text(encoding="utf-8").splitlines()
    assert {"sentence_similarity", "answer_entailment", "token_entropy"} <= json.loads(first).keys()

    from_log, _ = metrics_of(run, "score", "log.safetensors", *rules, *named)
    scores = ("six_metric_utility", "forget_efficacy", "token_entropy_forget")
    assert {name: from_log[name] for name in scores} == {name: metrics[name] for name in scores}


def test_a_benchmark_without_the_sets_of_closer_look(run: Run, model_path: str) -> None:
    for name in ("forget", "retain"):
        rows = [{"question": f"{name} {n}?", "answer": f"the answer {n}"} for n in range(2)]
        lines = [json.dumps(row) + "\n" for row in rows]
        Path(f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    rows_of_files = ("--forget-rows", "forget.jsonl", "--retain-rows", "retain.jsonl")
    asked = ("evaluate", model_path, "--profile", "closer-look", *rows_of_files)
    warning = (
        "warning: profile closer-look: its scores are of TOFU's sets, so it adds none to the "
        "benchmark 'questions'; name single metrics in --metric, such as token-entropy"
    )
    _, err = metrics_of(run, *asked)
    assert warning in err.splitlines()
    metrics, err = metrics_of(run, *asked, "--metric", "token-entropy")
    assert "adds none" not in err
    assert 0 <= metrics["token_entropy_forget"] <= 1


def test_settings_of_a_metric_in_another_form(run: Run, model_path: str) -> None:
    asked = ("evaluate", model_path, *SMALL_EVALUATION, "--metric", "sentence-similarity")
    code, _, err = run(*asked, "--set", "sentence-similarity")
    assert (code, err) == (2, "--set sentence-similarity: expected NAME.KEY=VALUE\n")
    code, _, err = run(*asked, "--set", "sentence-similarity.model=./no-such-folder")
    assert code == 2
    assert "'./no-such-folder' cannot be loaded (there is no such folder)" in err


def test_metrics_of_python_have_settings(model_path: str) -> None:
    names: Any = ["token-entropy"]
    with pytest.raises(PluginError, match=r"metrics: expected the settings .* got \['token-ent"):
        evaluate_model(model_path, metrics=names)


def test_a_metric_that_reads_the_start_model(run: Run, model_path: str) -> None:
    asked = ("evaluate", model_path, *SMALL_EVALUATION, "--metric", "fluency")
    code, _, err = run(*asked)
    assert (code, "--metric fluency: it reads how likely the start model" in err) == (2, True)
    metrics, _ = metrics_of(run, *asked, "--start", model_path, "--out", "log.safetensors")
    assert 0 < metrics["fluency_forget"] <= 1
    code, _, err = run(*asked, "--start", "log.safetensors")
    assert (code, "its log is not enough" in err) == (2, True)


def test_the_log_is_kept_if_the_retain_model_cannot_be_loaded(run: Run, model_path: str) -> None:
    shutil.copytree(model_path, "broken")
    config = json.loads(Path("broken/config.json").read_text())
    config["intermediate_size"] += 8
    Path("broken/config.json").write_text(json.dumps(config))
    others = ("--retain", "broken", "--out", "log.safetensors")
    code, out, err = run("evaluate", model_path, *SMALL_EVALUATION, *others)
    assert (code, out) == (2, "")
    assert "broken" in err
    assert read_observations(Path("log.safetensors")).sets["forget"].questions


def test_a_log_that_lacks_what_a_metric_reads(run: Run, model_path: str) -> None:
    run("evaluate", model_path, *SMALL_EVALUATION, "--out", "log.safetensors")
    score = ("score", "log.safetensors", "--data", "synthetic", "--metric")
    _, err = metrics_of(run, *score, "token-entropy")
    assert "warning: token-entropy has no value, because the log lacks what it reads" in err
    metrics, err = metrics_of(run, *score, "mia-min-k", "--set", "mia-min-k.share=0.5")
    assert metrics["mia_min_k"] is not None
    assert "no value" not in err


def test_a_folder_of_a_benchmark_that_reads_none_is_named(run: Run, model_path: str) -> None:
    code, _, err = run("evaluate", model_path, "--data", "questions=rows")
    assert code == 2
    assert err.splitlines()[-1] == (
        "data: questions reads its rows from no folder, got 'rows'; name questions only"
    )


def test_template_arguments_are_text_or_truth_values() -> None:
    assert template_arguments(["a=true", "b=false", "c=26 Jul", "d=x=y"]) == {
        **{"a": True, "b": False, "c": "26 Jul", "d": "x=y"}
    }


def test_tasks_need_their_package(
    run: Run, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    code, _, err = run("evaluate", model_path, *SMALL_EVALUATION, "--task", "piqa")
    assert (code, "pip install 'unlearnbench[lm-eval]'" in err) == (2, True)


def test_no_table_is_printed_without_a_line(run: Run, model_path: str) -> None:
    """Multiple choice about passages has no number but those of sets.

    Scores need a retain or a start model. Without both, their table would have only dashes.
    """
    options = ("--data", "wmdp-twin", "--forget", "0.25", "--rows", "2", "--max-length", "120")
    code, out, err = run("evaluate", model_path, *options)
    assert code == 0
    headings = [part.split()[0] for part in out.split("\n\n")]
    assert headings[:2] == ["rules:", "metric,"]
    assert "not measured: " in err
    assert "Kept" in err


def test_a_retain_model_and_its_log_give_the_same(run: Run, model_path: str) -> None:
    run("evaluate", model_path, *SMALL_EVALUATION, "--out", "retain.safetensors")
    for retain in (model_path, "retain.safetensors"):
        code, out, _ = run("evaluate", model_path, *SMALL_EVALUATION, "--retain", retain, "--json")
        assert code == 0
        metrics = json.loads(out)
        assert (metrics["forget_quality"], metrics["ks_n"]) == (1.0, 1)


def test_a_model_is_compared_with_its_retain_and_start_models(run: Run, model_path: str) -> None:
    code, out, err = run(
        *("evaluate", model_path, *SMALL_EVALUATION, "--retain", model_path, "--start", model_path)
    )
    assert code == 0
    title, scores, *_, verdict = out.split("\n\n")
    assert "(not comparable with numbers by tofu)" in title
    assert [line.split()[0] for line in scores.splitlines()] == [
        *("score", "Forgotten", "Private", "Kept"),
    ]
    assert scores.splitlines()[1].endswith("retain and start")
    assert verdict.startswith("Forgotten? Perhaps: Forget Quality p = 1 does not distinguish it")
    # The model is its own retain model, so that nothing but the reference attack is missing.
    assert "--retain" not in err
    assert "--start" not in err
    code, out, _ = run(
        *(
            "evaluate",
            model_path,
            *SMALL_EVALUATION,
            "--retain",
            model_path,
            "--start",
            model_path,
            "--json",
        )
    )
    metrics = json.loads(out)
    assert metrics["forgotten"] in (None, 0.0, 1.0)
    assert metrics["private"] == 1.0


def test_score_prints_the_numbers_of_the_sweep_that_a_log_is_from(run: Run) -> None:
    """Of the model, and of the retain and start model beside it, in every column."""
    folder = Path(__file__).parents[2] / "data" / "small_sweep"
    row_of_kind = {row.kind: row for row in Results.read(folder).rows}
    place = {
        kind: folder / "records" / row.run_id / f"epoch-{row.epoch}.safetensors"
        for kind, row in row_of_kind.items()
    }
    code, out, _ = run(
        *("score", str(place["run"]), "--data", "synthetic", "--json"),
        *("--retain", str(place["retain"]), "--start", str(place["fine-tuned"])),
    )
    assert code == 0
    printed = json.loads(out)
    numbers_of_kind = {
        "run": printed,
        "retain": printed["models"]["retain"],
        "fine-tuned": printed["models"]["start"],
    }
    for kind, numbers in numbers_of_kind.items():
        row = row_of_kind[kind]
        assert len(row.metrics) > 20
        assert {name: numbers[name] for name in row.metrics} == row.metrics, kind


def test_score_takes_the_profile_from_the_log(
    run: Run, model_path: str, open_unlearning_numbers: Path
) -> None:
    full, retain = (
        str(open_unlearning_numbers / f"{name}.json.gz") for name in ("full_forget01", "retain99")
    )
    code, out, _ = run("score", full, "--retain", retain, "--start", full, "--json")
    metrics = json.loads(out)
    assert code == 0
    assert metrics["profile"].startswith("open-unlearning@")
    assert metrics["model_utility"] == pytest.approx(0.5991534707368931, abs=1e-6)
    assert metrics["memorization_score_ou"] == 0
    code, out, err = run("score", retain)
    assert "not measured: Forget Quality; log10 Forget Quality; KS D" in err
    assert "Not known: pass --retain to answer" in out
    run("evaluate", model_path, *SMALL_EVALUATION, "--out", "log.safetensors")
    _, out, _ = run("score", "log.safetensors", "--json")
    assert json.loads(out)["profile"].startswith("tofu+rows=1+max_length=120@")


def test_outputs_that_are_not_finite_are_reported(run: Run, model_path: str, model: Any) -> None:
    model.model.norm.weight.data.fill_(float("nan"))
    model.save_pretrained(model_path)
    code, out, err = run("evaluate", model_path, *SMALL_EVALUATION, "--json")
    assert code == 0
    assert json.loads(out)["model_utility"] is None
    assert "the model's outputs are not finite, first at '" in err


def test_a_model_without_sdpa_is_evaluated(run: Run, tmp_path: Path, tokenizer: Any) -> None:
    place = str(tmp_path / "gemma2")
    FAMILIES["gemma2"].build().save_pretrained(place)
    tokenizer.save_pretrained(place)
    results: list[dict[str, Any]] = []
    for option in ((), ("--attention", "eager")):
        code, out, err = run("evaluate", place, *SMALL_EVALUATION, "--json", *option)
        assert code == 0, err
        results.append(json.loads(out))
    assert results[0] == results[1]


def test_what_makes_numbers_other_than_they_seem_is_said(
    run: Run, tmp_path: Path, questions: tuple[Question, ...]
) -> None:
    one = fitted("qwen-3", questions, epochs=0)
    place = str(tmp_path / "qwen")
    one.model.generation_config.repetition_penalty = 1.05
    one.model.save_pretrained(place)
    one.tokenizer.save_pretrained(place)
    words = ("evaluate", place, "--data", "synthetic", "--rows", "1", "--max-length", "240")
    think = "the chat template writes '<think>\\n\\n</think>' in front of every answer"
    penalty = "the model's generation_config has repetition_penalty: 1.05, which profile"
    off = ("--template-arg", "enable_thinking=false")
    for options, is_scored, is_left_out in (
        ((), True, True),
        (off, False, True),
        (("--profile", "open-unlearning", *off), False, False),
    ):
        code, _, err = run(*words, *options, "--json")
        assert code == 0, err
        assert (think in err, penalty in err) == (is_scored, is_left_out)


CUSTOM = """\
from transformers import LlamaConfig, LlamaForCausalLM

class CustomConfig(LlamaConfig):
    model_type = "custom-of-a-test"

class CustomForCausalLM(LlamaForCausalLM):
    config_class = CustomConfig
"""


def test_code_of_a_model_runs_if_it_is_asked_for(
    run: Run, tmp_path: Path, model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    plain = run("evaluate", model_path, *SMALL_EVALUATION, "--json")[1]
    Path(model_path, "custom.py").write_text(CUSTOM, encoding="utf-8")
    path = Path(model_path, "config.json")
    names = {
        "AutoConfig": "custom.CustomConfig",
        "AutoModelForCausalLM": "custom.CustomForCausalLM",
    }
    config = json.loads(path.read_text()) | {"model_type": "custom-of-a-test", "auto_map": names}
    path.write_text(json.dumps(config))
    code, _, err = run("evaluate", model_path, *SMALL_EVALUATION)
    assert (code, "--trust-remote-code" in err) == (2, True)
    assert "custom code" in err
    code, out, err = run("evaluate", model_path, *SMALL_EVALUATION, "--json", "--trust-remote-code")
    assert code == 0, err
    assert json.loads(out) == json.loads(plain)
