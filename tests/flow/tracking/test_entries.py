"""Entries of a run: names, moments, numbers as text, and which address `ui` prints."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.base.errors import RecordError
from unlearnbench.config.profiles import TOFU
from unlearnbench.report.answer_table import COLUMNS, AnswerTables
from unlearnbench.report.mlflow import show_in_mlflow
from unlearnbench.report.tracked_runs import RowsByRun, SweepFacts, run_name, tracked_run
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record

SWEEP = SweepFacts("small", Path("nowhere"), "tofu")


def entry(record: Record, *references: Record, sweep: SweepFacts = SWEEP) -> Any:
    rows = RowsByRun(table_of([record, *references])).of(record)
    return tracked_run(record, rows, sweep, references, AnswerTables())


def test_numbers_under_attacks_are_apart_from_plain_ones(kit: Any) -> None:
    plain = kit.record("aaaa")
    under = tuple(
        EpochResult(2, {"rouge_forget": value, "ks_n": None}, 0.0, 1.0, variant=variant)
        for variant, value in (("relearning@13", 0.25), ("own attack@a/b:c", 0.5))
    )
    points = entry(kit.record("aaaa", attacked=under)).points
    new = {one.name: one for one in points if one not in entry(plain).points}
    assert {name: (one.value, one.step) for name, one in new.items()} == {
        "under.relearning.13/rouge_forget": (0.25, 2),
        "under.own-attack.a-b-c/rouge_forget": (0.5, 2),
    }
    assert all(re.fullmatch(r"[/\w.-]+", name) for name in new), "which every store accepts"


def test_attackers_of_a_search_have_two_numbers_each(kit: Any) -> None:
    """Eight attackers at four steps would have a thousand metrics, and no page shows so many."""
    numbers = {"model_utility": 0.5, "rouge_forget": 0.3, "rouge_retain": 0.9}
    variants = ("relearning@0", "relearning@t2.13", "relearning@t2.13.choice")
    under = tuple(EpochResult(2, numbers, 0.0, 1.0, variant=variant) for variant in variants)
    points = entry(kit.record("aaaa", attacked=under)).points
    assert {one.name for one in points if one.name.startswith("under.")} == {
        *(f"under.relearning.0/{column}" for column in numbers),
        "under.relearning.t2.13/model_utility",
        "under.relearning.t2.13/rouge_forget",
    }


def test_numbers_sort_correctly_as_text(kit: Any) -> None:
    rates = [2e-6, 1e-5, 2e-5, 1e-4, 3e-3, 0.1]
    texts = [entry(kit.record("a", learning_rate=r)).parameters["learning_rate"] for r in rates]
    assert texts == sorted(texts) == ["0.000002", "0.00001", "0.00002", "0.0001", "0.003", "0.1"]


@pytest.mark.parametrize("store", ["", "sqlite:///other.db", "http://h:1/"])
def test_ui_serves_a_local_store_on_loopback_and_names_a_server(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, command, __: served.append(command))  # pyright: ignore
    shown: list[str] = []
    with pytest.raises(RecordError, match=r"is not logged; `unlearnbench track "):
        show_in_mlflow(tmp_path, 5077, print)
    (tmp_path / "mlflow.db").touch()
    (tmp_path / "links.json").write_text(f'{{"sweep": "{store}#/experiments/1/runs"}}')
    show_in_mlflow(tmp_path, 5077, shown.append)
    if store.startswith("http"):
        assert (shown, served) == ([f"{store}#/experiments/1/runs"], [])
        return
    assert shown == ["http://127.0.0.1:5077/#/experiments/1/runs  (Ctrl-C ends it)"]
    assert {store or f"sqlite:///{tmp_path}/mlflow.db", "127.0.0.1", "5077"} < {*served[0]}


@pytest.mark.parametrize(
    ("changes", "several", "name"),
    [
        ({}, False, "1e-4 s3 npo+nll"),
        ({"learning_rate": 2.5e-5, "seed": 12}, False, "2.5e-5 s12 npo+nll"),
        ({"learning_rate": 0.001, "method": "gradient-difference"}, False, "1e-3 s3 gradient-diff"),
        ({"learning_rate": None}, False, "s3 npo+nll"),
        ({}, True, "1e-4 s3 npo+nll tiny forget 0.1"),
        ({"kind": "fine-tuned", "method": "fine-tuned"}, False, "start model"),
        ({"kind": "retain", "method": "retain"}, True, "retain model tiny forget 0.1"),
    ],
)
def test_a_name_begins_with_what_differs_within_the_sweep(
    changes: dict[str, Any], several: bool, name: str, kit: Any
) -> None:
    """MLflow cuts names after about 25 characters."""
    sweep = replace(SWEEP, has_many_models=several, has_many_splits=several)
    assert run_name(kit.record("aaaa", **changes), sweep).startswith(name)


def test_the_name_of_a_baseline_under_attack_says_so(kit: Any) -> None:
    under = (EpochResult(0, {"ks_n": 1.0}, 0.0, 1.0, variant="relearning@13"),)
    attacked = kit.record("aaaa", kind="retain", method="retain", epochs=(), attacked=under)
    assert run_name(attacked, SWEEP) == "retain model under relearning"


def answered(kit: Any, id_: str, answers: Mapping[str, Sequence[str]], **more: Any) -> Record:
    """A record whose model gives these answers to the questions of each set."""
    one = np.ones(2)
    sets = {
        name: SetEvaluation(
            questions=tuple(f"{name} {i}?" for i in range(len(texts))),
            generated=tuple(texts),
            references=tuple(f"truth {i}" for i in range(len(texts))),
            answer_loss=one,
            answer_tokens=one.astype(int),
            base_loss=one,
            base_tokens=one.astype(int),
            perturbed_loss=np.ones((2, 1)),
            perturbed_tokens=np.ones((2, 1), int),
            rouge1_recall=one,
            rouge_l_recall=np.array([0.25, math.nan]),
        )
        for name, texts in answers.items()
    }
    evaluation = Evaluation(profile=TOFU.id, sets=sets)
    record: Record = kit.record(id_, evaluations={2: evaluation, 1: evaluation}, **more)
    return record


def test_a_run_has_its_answers_beside_those_of_the_start_and_the_retain_model(kit: Any) -> None:
    run = answered(kit, "aaaa", {"retain": ["r0", "r1"], "forget": ["f0", "f1"]})
    start = answered(
        kit, "bbbb", {"forget": ["s0", "s1"]}, kind="fine-tuned", method="fine-tuned", seed=0
    )
    retain = answered(
        kit,
        "cccc",
        {"forget": ["n0", "n1"], "retain": ["m0", "m1"]},
        kind="retain",
        method="retain",
    )
    other = answered(kit, "dddd", {"forget": ["x", "x"]}, kind="retain", model="another")
    made = entry(run, start, retain)
    assert made.answers().columns == COLUMNS
    assert (made.answers().forget_sets, made.answers().unit) == (("forget",), "epoch")
    assert made.answers().rows == [
        ("forget 0?", "f0", "truth 0", "s0", "n0", 0.25, "forget", 2),
        ("forget 1?", "f1", "truth 1", "s1", "n1", None, "forget", 2),
        ("retain 0?", "r0", "truth 0", None, "m0", 0.25, "retain", 2),
        ("retain 1?", "r1", "truth 1", None, "m1", None, "retain", 2),
    ]
    rows = RowsByRun(table_of([run, start])).of(run)
    with_other = tracked_run(run, rows, SWEEP, [start, other], AnswerTables())
    assert with_other.answers is not None
    assert {row[4] for row in with_other.answers().rows} == {None}, "of another model"
    assert with_other.digest != made.digest, "the retain model's answers are new"


def test_a_sweep_that_keeps_no_texts_has_no_table_and_says_so(kit: Any) -> None:
    run = answered(kit, "aaaa", {"forget": ["f0", "f1"]})
    made = entry(run, sweep=replace(SWEEP, keeps_texts=False))
    assert made.answers is None
    assert made.tags["answers"] == "none: keep_texts is false"
    assert "answers" not in entry(run).tags


def test_a_run_names_its_rows_without_their_texts(kit: Any) -> None:
    assert entry(kit.record("aaaa")).data == ("tofu forget 0.1", "d1d1", "tofu")
    assert entry(kit.record("aaaa", spec={}, provenance={})).data is None


def test_charts_open_on_utility_forgetting_and_loss(kit: Any) -> None:
    """MLflow sorts groups of metrics by the alphabet."""
    points = entry(kit.record("aaaa")).points
    groups = sorted({point.name.partition("/")[0] for point in points if "/" in point.name})
    assert groups[0] == "at_a_glance"
    first = {
        (one.name, one.step): one.value for one in points if one.name.startswith("at_a_glance/")
    }
    assert first == {
        ("at_a_glance/utility", 1): 0.7,
        ("at_a_glance/utility", 2): 0.6,
        ("at_a_glance/loss", 0): 2.0,
        ("at_a_glance/loss", 1): 1.0,
        ("at_a_glance/loss", 2): 0.0,
    }
