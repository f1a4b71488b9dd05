"""Descriptions of runs and sweeps, in which text from data is never markup."""

from __future__ import annotations

from typing import Any

import pytest

from unlearnbench.reporting.report import make_report
from unlearnbench.results.records import EpochResult
from unlearnbench.tracking.mlflow.descriptions import describe_run, describe_sweep, quoted


def test_description_of_a_failed_run(kit: Any) -> None:
    error = "CUDA out of memory, tried `x`\n\nTraceback (most recent call last):\n  File …"
    failed = kit.record("aaaa", status="failed", error=error)
    assert describe_run(failed, 0.75).splitlines()[0] == (
        "Failed after epoch 2: `CUDA out of memory, tried 'x'`  "
    )
    at_once = kit.record("aaaa", status="failed", error="boom", epochs=())
    first, second = describe_run(at_once, None).splitlines()
    assert first == "Failed before the first evaluation: `boom`  "
    assert second.startswith("0 s of training")


def test_description_of_runs_that_ended_early(kit: Any) -> None:
    epochs = (EpochResult(1, kit.metrics(0.1, -0.2), 1.0, 1.0),)
    collapsed = kit.record("aaaa", status="collapsed", epochs=epochs)
    assert describe_run(collapsed, 0.75).splitlines()[0] == (
        "Collapsed at epoch 1: no epoch keeps 80% of the start's Model Utility; at epoch 1 Model "
        "Utility 0.100 (13% of the start's), log10 Forget Quality -0.20.  "
    )
    stopped = kit.record("aaaa", status="stopped")
    assert describe_run(stopped, None).startswith("Stopped by the search after epoch 2: at epoch 2")
    undefined = kit.record("aaaa", epochs=(EpochResult(1, {"model_utility": None}, 1.0, 1.0),))
    assert describe_run(undefined, 0.75).startswith("No epoch keeps 80% of the start's")


def test_description_of_an_interrupted_run(kit: Any) -> None:
    record = kit.record("aaaa", provenance={"interruptions": ["then", "then again"]})
    assert describe_run(record, None).endswith(
        "2 s of training and 4 s of evaluation, interrupted 2 times."
    )


def test_description_of_a_sweep(kit: Any) -> None:
    good = (EpochResult(1, kit.metrics(0.7, -2.0), 30.0, 30.0),)
    better = (EpochResult(1, kit.metrics(0.7, -1.0), 30.0, 30.0),)
    records = [
        kit.start_model(0.75),
        kit.record("aaaa", epochs=good),
        kit.record("bbbb", method="ce-u", epochs=better),
        kit.record("cccc", method="idk", status="failed", error="boom", epochs=()),
    ]
    report = make_report(records, name="small", planned=["aaaa", "bbbb", "cccc", "dddd"])
    assert describe_sweep(report).splitlines() == [
        "2 of 4 runs finished; 1 failed; 2 min 00 s of work in all.  ",
        "`tiny`, forget 10 %: `ce-u` at rate 0.0001, best at epoch 1: Model Utility 0.700, log10 "
        "Forget Quality -1.00 (of 1 seed).",
    ]
    none = make_report(records[:1], name="small", description="What for.", planned=[])
    assert describe_sweep(none) == "What for.  \n  \n0 of 0 runs finished; 0 s of work in all."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("![x](http://evil.example/a.png)", "`![x](http://evil.example/a.png)`"),
        ("`<b>` twice\n\nhere", "`'<b>' twice here`"),
        ("  ", "` `"),
        ("x" * 500, f"`{'x' * 240}`"),
    ],
)
def test_text_from_data_is_code(text: str, expected: str) -> None:
    assert quoted(text) == expected


def test_description_of_a_reference_model_under_an_attack(kit: Any) -> None:
    under = (EpochResult(0, {}, 0.0, 3.0, variant="relearning@13"),)
    retain = kit.record("aaaa", kind="retain", epochs=(), evaluations={}, attacked=under)
    first, second = describe_run(retain, None).splitlines()
    assert first == "The retain model under `relearning`.  "
    assert second.startswith("0 s of training and 3 s of evaluation")
