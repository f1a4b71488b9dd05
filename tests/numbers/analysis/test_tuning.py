"""What trials are worth, and where in its ranges a choice is."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.analysis.tuning import summary, to_csv, tuned
from unlearnbench.config.plan import make_plan
from unlearnbench.config.search import Range, SearchSettings, SelectSettings
from unlearnbench.config.trial import position_in
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult
from unlearnbench.training.step_result import StepResult

from ...flow.sweep.test_follow_up_runs import a_config, a_record


def test_shares_are_in_the_logarithm_where_draws_are() -> None:
    axes = {"rate": Range(low=1e-6, high=1e-2, log=True), "beta": Range(low=0.0, high=2.0)}
    found = position_in({"rate": 1e-4, "beta": 0.5, "kind": "x"}, axes | {"kind": ("x", "y")})
    assert found == pytest.approx({"rate": 0.5, "beta": 0.25})


def test_a_trial_that_fails_or_keeps_too_little_is_worth_the_start(tmp_path: Path) -> None:
    config = a_config(
        tmp_path,
        methods=a_config(tmp_path).methods[:1],
        learning_rates=(1e-6, 1e-5, 1e-4, 1e-3),
        search=SearchSettings(),
    )
    runs = make_plan(config, "data").runs
    start = {"model_utility": 0.6, "log10_forget_quality": -9.0}
    records = [
        replace(
            a_record(runs[0]), id="start", kind="fine-tuned", epochs=(EpochResult(0, start, 0, 0),)
        ),
        a_record(runs[0], points=((0.6, -8.0), (0.5, -2.0))),
        a_record(runs[1], points=((0.3, -0.5),)),  # keeps too little
        a_record(runs[2], "failed", points=()),
        a_record(runs[3], points=((0.55, -4.0),)),
    ]
    step = StepResult(1, 1, 1e-4, 1.0, {}, 1.0, {"tokens_read": 30.0, "tokens_back": 20.0})
    records = [*records[:-1], replace(records[-1], steps=(step, step))]
    trials = [frozenset({run.id}) for run in runs]
    select = SelectSettings(utility=0.8)
    found = summary(trials, table_of(records).rows, records, select)
    assert (found["trials"], found["failed"]) == (4, 1)
    assert (found["tokens_read"], found["tokens_back"]) == (60, 40)
    assert found["best_of"] == pytest.approx([-6.0, -23 / 6, -2.5, -2.0])
    # One of several seeds has failed: no trial is whole.
    found = summary(
        trials, table_of(records).rows, records, select.model_copy(update={"seeds": (0, 1)})
    )
    assert found["best_of"] == pytest.approx([-9.0] * 4)


def test_the_table_of_trials_has_a_line_for_each_choice() -> None:
    reported = {"seeds": [1], "kept": {"mean": 0.5, "standard_deviation": 0.125}, "gone": {}}
    choice = {
        "method": "npo",
        "model": "tiny",
        "forget_fraction": 0.1,
        "setting": "npo (beta=0.2)",
        "learning_rate": 1e-4,
        "epoch": 3,
        "reported": reported,
        "untuned": None,
        "tuning": {"trials": 2, "failed": 1, "tokens_read": 7, "tokens_back": 5}
        | {"best_of": [-2.0, -1.5], "edges": {"beta": 0.25}},
    }
    assert tuned({"choices": [choice, {"method": "old"}]}) == [choice]
    (line,) = csv.DictReader(to_csv([choice], ["kept", "gone"]).splitlines())
    assert line["reported_kept_mean"] == "0.5"
    assert line["reported_kept_standard_deviation"] == "0.125"
    assert (line["reported_gone_mean"], line["untuned_kept_mean"]) == ("", "")
    assert (line["trials"], line["failed"], line["tokens_back"]) == ("2", "1", "5")
    assert (line["best_of_2"], line["edges"]) == ("-1.5", '{"beta": 0.25}')


@pytest.mark.parametrize("missing", ["model_utility", "log10_forget_quality"])
def test_trials_have_no_worth_if_the_start_model_lacks_a_number(
    tmp_path: Path, missing: str
) -> None:
    """Without them, trials that kept too little would count, or would be left out."""
    config = a_config(
        tmp_path,
        methods=a_config(tmp_path).methods[:1],
        learning_rates=(1e-6, 1e-5),
        search=SearchSettings(),
    )
    runs = make_plan(config, "data").runs
    start = {"model_utility": 0.6, "log10_forget_quality": -9.0} | {missing: None}
    records = [
        replace(
            a_record(runs[0]), id="start", kind="fine-tuned", epochs=(EpochResult(0, start, 0, 0),)
        ),
        a_record(runs[0], points=((0.5, -2.0),)),
        a_record(runs[1], points=((0.1, -0.5),)),
    ]
    trials = [frozenset({run.id}) for run in runs]
    found = summary(trials, table_of(records).rows, records, SelectSettings(utility=0.8))
    assert (found["trials"], found["best_of"]) == (2, [])
