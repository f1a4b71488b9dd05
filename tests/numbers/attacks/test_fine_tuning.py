"""Fine-tuning on other rows: where they come from, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.attacks.fine_tuning import UnrelatedFineTuning
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.passages import Passages
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.entries import attack_from_spec, attack_spec

from .conftest import PlainTools

Made = Callable[..., PlainTools]


def test_rows_of_a_benchmark_with_settings(model: Any, tools: Made) -> None:
    made = tools()
    attack = UnrelatedFineTuning(data={"source": "passages", "authors": 10, "seed": 3}, steps=(1,))
    assert [*attack.change(model, made)] == ["0", "1"]
    assert made.trained[0][0] == Passages(authors=10, seed=3).load([0.1]).full
    assert all(attack.selects(row, made.rows) for row in made.rows.forget)
    assert attack_from_spec(attack_spec("fine-tuning", attack)) == attack


def test_rows_are_generated_by_default(model: Any, tools: Made) -> None:
    made = tools()
    attack = UnrelatedFineTuning(steps=(1,), optimizer="muon", lora_rank=2, seed=7)
    [*_] = attack.change(model, made)
    (rows, how) = made.trained[0]
    assert set(rows) == {*Synthetic(seed=1).load([0.1]).full}
    assert not set(rows) & {*Synthetic().load([0.1]).full}
    assert how["learning_rate"] == 2e-5
    assert (how["optimizer"], how["lora_rank"], how["seed"]) == ("muon", 2, 7)


def test_rows_of_a_file_are_part_of_the_identity(model: Any, tools: Made, tmp_path: Path) -> None:
    path, made = tmp_path / "rows.jsonl", tools()
    path.write_text(json.dumps({"question": "What is new?", "answer": "Nothing."}))
    attack = UnrelatedFineTuning(file=str(path), steps=(1,))
    first = attack_spec("fine-tuning", attack)
    [*_] = attack.change(model, made)
    assert made.trained[0][0] == (Question("What is new?", "Nothing."),)
    path.write_text("{}")
    assert attack_spec("fine-tuning", attack).identity != first.identity
    assert attack_spec("fine-tuning", UnrelatedFineTuning()).content == ""
    tofu = UnrelatedFineTuning(data={"source": "tofu", "path": str(tmp_path)})
    before = attack_spec("fine-tuning", tofu).identity
    path.write_text("{} ")
    assert attack_spec("fine-tuning", tofu).identity != before, "what lies in a folder"


def test_rows_to_forget_are_not_unrelated(model: Any, tools: Made, tmp_path: Path) -> None:
    made, path = tools(), tmp_path / "rows.jsonl"
    row = made.rows.forget[3]
    path.write_text(json.dumps({"question": row.question, "answer": row.answer}))
    with pytest.raises(DataError, match=r"'Birthplace of .* is a row to forget; name another"):
        next(UnrelatedFineTuning(file=str(path)).change(model, made))
