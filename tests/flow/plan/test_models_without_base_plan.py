"""Plans of sweeps whose start model is given alone, without the base that it was trained from."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.families import FAMILIES
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan
from unlearnbench.models.named_models import source_of
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prepared_models import planned_models
from unlearnbench.runs.prerequisites import preparation_tasks

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> Planned:
    """Plans a sweep on own rows with a model, whose folders are `base` and `start`."""
    monkeypatch.chdir(tmp_path)
    for name in ("base", "start"):
        FAMILIES["llama"].build().save_pretrained(name)
        tokenizer.save_pretrained(name)
    for name in ("forget", "retain"):
        rows = [{"question": f"Who is {name} {i}?", "answer": f"number {i}"} for i in range(8)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def plan(**model: Any) -> Plan:
        document = {
            "name": "mine",
            "data": {"source": "questions", "forget": "forget.jsonl", "retain": "retain.jsonl"},
            "models": [{"name": "m", **model}],
            "methods": ["npo"],
            "learning_rates": [1e-5],
            "epochs": 1,
            "output": str(tmp_path / "runs"),
        }
        Path("mine.yaml").write_text(json.dumps(document))
        return plan_sweep(load_config("mine.yaml"))[0]

    return plan


def labels(plan: Plan) -> list[str]:
    return [task.label for task in preparation_tasks(plan.config, plan.runs, Path("runs") / "mine")]


def test_nothing_is_trained_before_the_runs(planned: Planned) -> None:
    plan = planned(fine_tuned="./start")
    assert labels(plan) == ["m: evaluate the start model on all"]
    _, rows = plan_sweep(plan.config)
    assert [*planned_models(plan, rows)] == []
    assert plan.references is not None
    assert len(plan.references) == 1, "the start model's record"


def test_with_a_base_the_retain_model_is_trained_from_it(planned: Planned) -> None:
    plan = planned(base="./base", fine_tuned="./start")
    assert labels(plan) == [
        "m: all-retain model",
        "m: evaluate all-retain",
        "m: evaluate the start model on all",
        "m: compare the start model with all-retain",
    ]


def test_with_a_base_alone_both_are_trained(planned: Planned) -> None:
    assert labels(planned(base="./base")) == [
        "m: start model",
        "m: all-retain model",
        "m: evaluate all-retain",
        "m: evaluate the start model on all",
        "m: compare the start model with all-retain",
    ]


def test_tokenizer_and_template_are_those_of_the_start_model(planned: Planned) -> None:
    settings = planned(fine_tuned="./start").config.models[0]
    assert source_of(settings).place == "./start"


def test_the_id_is_by_the_content_of_the_start_model(planned: Planned) -> None:
    first = planned(fine_tuned="./start")
    shutil.move("start", "moved")
    moved = planned(fine_tuned="./moved")
    assert [run.id for run in moved.runs] == [run.id for run in first.runs]
    assert moved.references == first.references
    config = Path("moved/config.json")
    config.write_text(config.read_text().replace("\n}", ',\n  "changed": true\n}'))
    changed = planned(fine_tuned="./moved")
    assert not {run.id for run in changed.runs} & {run.id for run in first.runs}
    assert not {*(changed.references or ())} & {*(first.references or ())}


def test_a_start_model_without_a_tokenizer_needs_a_base(planned: Planned) -> None:
    for file in Path("start").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(UnlearnbenchError, match="no tokenizer files"):
        planned(fine_tuned="./start")
    assert planned(base="./base", fine_tuned="./start")
