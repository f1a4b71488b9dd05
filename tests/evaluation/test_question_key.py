"""Metrics on paraphrased questions: another profile, of the same answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.observations import SetName
from unlearnbench.benchmarks import tofu
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import (
    TOFU,
    get_profile,
    profile_named,
    profile_of,
    profile_of_id,
)
from unlearnbench.config.schema import (
    EvaluationSettings,
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.data.loading import load_benchmark
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.tofu_log import read_log
from unlearnbench.plan.plan import make_plan

PARAPHRASED = get_profile("tofu", question_key="paraphrased_question")
DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)


def test_the_override_shows_in_the_id_which_can_be_read_back() -> None:
    assert PARAPHRASED.id.startswith("tofu+question_key=paraphrased_question@")
    assert PARAPHRASED.hash != TOFU.hash
    assert profile_of_id(PARAPHRASED.id) == PARAPHRASED
    assert profile_named("tofu+rows=5+question_key=paraphrased_question").rows == 5
    assert get_profile("tofu", question_key="question") is TOFU
    with pytest.raises(EvaluationError, match="did you mean 'paraphrased_question'"):
        get_profile("tofu", question_key="paraphrased_questions")
    for name in ("tofu+rows=0", "tofu+template=chat", "tofu+rows", "tofu+question_key=x"):
        with pytest.raises(EvaluationError):
            profile_named(name)


def config(**evaluation: Any) -> SweepConfig:
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        evaluation=EvaluationSettings(**evaluation),
    )


def test_runs_are_the_same_ones_unless_it_is_set() -> None:
    (plain,) = make_plan(config(), "d1").runs
    assert "question_key" not in plain.identity["evaluation"]
    (other,) = make_plan(config(question_key="paraphrased_question"), "d1").runs
    assert other.id != plain.id
    assert profile_of(other.evaluation) == PARAPHRASED


def test_forget_and_retain_are_asked_in_other_words_and_facts_as_ever() -> None:
    benchmark = load_benchmark(DATA, (0.25,))
    plain = evaluation_sets(benchmark, 0.25, TOFU)
    found = evaluation_sets(benchmark, 0.25, PARAPHRASED)
    paraphrased: tuple[SetName, ...] = ("retain", "forget")
    same: tuple[SetName, ...] = ("real_authors", "world_facts", "holdout")
    for name in paraphrased:
        assert [q.question for q in found[name]] == [q.paraphrased_question for q in plain[name]]
        assert [q.paraphrased_question for q in found[name]] == [q.question for q in plain[name]]
        assert [q.scored_answers for q in found[name]] == [q.scored_answers for q in plain[name]]
    for name in same:
        assert found[name] == plain[name] != ()
    assert list(found) == ["retain", "forget", *same]
    few = evaluation_sets(benchmark, 0.25, get_profile("tofu", rows=1))
    assert [len(rows) for rows in few.values()] == [1] * 5
    split = benchmark.splits[0.25]
    without = replace(split, sets={**split.sets, "holdout": ()})
    bare = replace(benchmark, splits={0.25: without})
    assert "holdout" not in evaluation_sets(bare, 0.25, PARAPHRASED)


def test_tofus_own_files_have_the_column(tofu_folder: Path) -> None:
    benchmark = load_benchmark(tofu.TOFU(path=str(tofu_folder)), (0.01,))
    found = evaluation_sets(benchmark, 0.01, PARAPHRASED)
    texts = {name: {q.question for q in rows} for name, rows in found.items()}
    written = {q.question for q in benchmark.full}
    assert not texts["forget"] & written
    assert len(texts["retain"] - written) > 290  # TOFU repeats a few questions as they are


def test_a_row_without_the_column_is_one_message() -> None:
    benchmark = load_benchmark(DATA, (0.25,))
    split = benchmark.splits[0.25]
    first, second, *_ = split.sets["retain"]
    rows = (first, replace(second, paraphrased_question=None))
    odd = replace(benchmark, splits={0.25: replace(split, sets={**split.sets, "retain": rows})})
    assert len(evaluation_sets(odd, 0.25, TOFU)["retain"]) == 2
    with pytest.raises(EvaluationError, match=r"^set retain \(retain_perturbed\): row 2 has no"):
        evaluation_sets(odd, 0.25, PARAPHRASED)


def test_the_command_line_asks_them(
    tmp_path: Path, model: Any, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    place, log = tmp_path / "model", tmp_path / "log.json"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    capsys.readouterr()
    how = ["--rows", "2", "--question-key", "paraphrased_question", "--json"]
    named = ["evaluate", str(place), "--data", "synthetic", "--out", str(log), *how]
    assert main(named) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["profile"].startswith("tofu+rows=2+question_key=paraphrased_question@")
    benchmark = load_benchmark(Synthetic(), (0.1,))
    chosen = benchmark.splits[0.1].sets["forget"][:2]
    assert read_log(log).sets["forget"].questions == tuple(q.paraphrased_question for q in chosen)
    assert main(["score", str(log), *how]) == 0
    assert json.loads(capsys.readouterr().out)["model_utility"] == printed["model_utility"]
    assert main(["score", str(log), "--rows", "2"]) == 2, "another profile's numbers"


def test_profiles_show_and_diff_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    name = "tofu+question_key=paraphrased_question"
    assert main(["profiles", "show", name]) == 0
    out = capsys.readouterr().out
    assert PARAPHRASED.id in out
    assert any(
        line.split()[:2] == ["question_key", "paraphrased_question"] for line in out.splitlines()
    )
    assert main(["profiles", "diff", "tofu", name]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.split()[:3] == ["question_key", "question", "paraphrased_question"]
