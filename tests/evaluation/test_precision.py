"""The precision of an evaluation: found, kept, and never compared across."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench import evaluate_model, get_profile, summarize
from unlearnbench.cli import main
from unlearnbench.errors import EvaluationError, RecordError
from unlearnbench.evaluation.log import read_log, write_log
from unlearnbench.evaluation.precision import precision_of_model
from unlearnbench.evaluation.profiles import TOFU
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.plan import make_plan
from unlearnbench.recipe import TrainingSettings
from unlearnbench.records import EpochResult, Record, read_record, run_record, write_record
from unlearnbench.report import make_report
from unlearnbench.settings import (
    DataSettings,
    MethodGrid,
    MethodSpec,
    ModelSettings,
    SweepConfig,
)
from unlearnbench.table import table

DATA = DataSettings(authors=4, questions_per_author=2, pretraining_authors=0)
PROFILE = get_profile("tofu", rows=2, max_length=200)


def evaluated(model: Any, tokenizer: Any) -> Evaluation:
    return evaluate_model(model, data=DATA, forget=0.25, profile=PROFILE, tokenizer=tokenizer)


def test_it_is_that_of_most_weights_and_of_autocast(model: Any) -> None:
    assert precision_of_model(model) == "float32"
    with torch.autocast("cpu", torch.bfloat16):
        assert precision_of_model(model) == "float32 under bfloat16"
    model.to(torch.bfloat16)
    model.model.norm.to(torch.float32)  # as adapters and norms are, around weights of bfloat16
    assert precision_of_model(model) == "bfloat16"


def test_an_evaluation_and_its_log_say_it(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    for precision in ("float32", "bfloat16"):
        found = evaluated(model.to(getattr(torch, precision)), tokenizer)
        assert found.precision == precision
        path = tmp_path / f"{precision}.json"
        write_log(found, path)
        assert read_log(path).precision == precision
    document = json.loads(path.read_text())
    first = next(iter(document.values()))
    first["precision"] = "float32"
    path.write_text(json.dumps(document))
    with pytest.raises(EvaluationError, match="sets of different precisions"):
        read_log(path)
    first["precision"] = 32
    path.write_text(json.dumps(document))
    with pytest.raises(EvaluationError, match=r"precision: expected text, got 32"):
        read_log(path)


def test_two_precisions_do_not_compare_and_an_unknown_one_does(model: Any, tokenizer: Any) -> None:
    one = evaluated(model, tokenizer)
    other = dataclasses.replace(one, precision="bfloat16")
    with pytest.raises(EvaluationError, match="in float32, the retain model in bfloat16"):
        summarize(one, other, PROFILE)
    unknown = dataclasses.replace(one, precision=None)  # a published log
    assert summarize(one, unknown, PROFILE)["ks_statistic"] == 0
    assert summarize(unknown, other, PROFILE)["ks_statistic"] == 0


def test_the_command_line_refuses_a_log_of_another_precision(
    model: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "retain.json"
    write_log(dataclasses.replace(evaluated(model, tokenizer), precision="bfloat16"), log)
    how = ["--rows", "2", "--max-length", "200"]
    assert main(["evaluate", "nowhere", "--retain", str(log), "--data", "synthetic", *how]) == 2
    assert f"{log} is evaluated in bfloat16, the model in float32" in capsys.readouterr().err
    own = tmp_path / "own.json"
    write_log(evaluated(model, tokenizer), own)
    assert main(["score", str(own), "--retain", str(log), *how]) == 2
    assert "numbers of different precisions do not compare" in capsys.readouterr().err
    assert main(["score", str(own), "--json", *how]) == 0
    assert json.loads(capsys.readouterr().out)["precision"] == "float32"


def config(**changes: Any) -> SweepConfig:
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny", **changes.pop("model", {})),),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        **changes,
    )


def record_of(**changes: Any) -> Record:
    """A run as it is planned, evaluated once."""
    (run,) = make_plan(config(**changes), "d1").runs
    found = EpochResult(1, {"model_utility": 0.5}, 1.0, 1.0)
    return run_record(run, status="finished", profile=TOFU.id, epochs=(found,))


def anchor_of(precision: str | None, record_id: str = "5a5a") -> Record:
    return dataclasses.replace(
        record_of(), id=record_id, kind="fine-tuned", spec={}, precision=precision
    )


def test_only_runs_that_were_judged_under_autocast_are_other_runs_now() -> None:
    (plain,) = make_plan(config(), "d1").runs
    assert "precision" not in plain.identity["evaluation"]
    (bf16,) = make_plan(config(training=TrainingSettings(precision="bf16")), "d1").runs
    assert bf16.identity["evaluation"]["precision"] == "float32"


def test_a_record_of_an_earlier_version_has_what_its_model_says(tmp_path: Path) -> None:
    record = record_of(model={"dtype": "bfloat16"})
    assert record.precision == "bfloat16"
    place = write_record(record, tmp_path)
    assert read_record(place).precision == "bfloat16"
    document = json.loads((place / "record.json").read_text())
    assert document.pop("precision") == "bfloat16"
    del document["sha256"]
    (place / "record.json").write_text(json.dumps(document))
    assert read_record(place).precision == "bfloat16"
    document["spec"] = {"target": "full"}  # an anchor of the very first versions
    (place / "record.json").write_text(json.dumps(document))
    assert read_record(place).precision == "float32"


def test_evaluations_of_an_earlier_version_have_the_records(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    found = dataclasses.replace(evaluated(model, tokenizer), precision=None)
    record = dataclasses.replace(record_of(model={"dtype": "bfloat16"}), evaluations={1: found})
    assert read_record(write_record(record, tmp_path)).evaluations[1].precision == "bfloat16"


def test_a_panel_holds_one_precision() -> None:
    run, other = record_of(), record_of(model={"dtype": "bfloat16"})
    with pytest.raises(RecordError, match=r"tiny, forget 10 %: records of different precisions"):
        table([run, other])
    named = dataclasses.replace(other, model="tiny-bf16")
    assert len(table([run, named])) == 2, "another model's panel"
    assert len(table([run, anchor_of(None)])) == 2, "not known"


def test_a_report_leaves_out_anchors_from_before_the_dtype_was_changed() -> None:
    old, new = anchor_of("float32"), anchor_of("bfloat16", "6b6b")
    run = record_of(model={"dtype": "bfloat16"})
    report = make_report([old, new, run], name="small", planned=[run.id])
    assert {record.id for record in report.records} == {"6b6b", run.id}
    assert report.strangers == 1
