"""Optimisers of 8 bits, with a stand-in for the package and the device that they need."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from unlearnbench.cli import main
from unlearnbench.data.benchmark import Question
from unlearnbench.errors import TrainingError
from unlearnbench.optimisation import Optimisation, check_optimizer, make_optimizers
from unlearnbench.plan import RunSpec, make_plan
from unlearnbench.trainers import optimisation

from .test_plan import config
from .test_training import objective_of, rows_of, trainer_of


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """bitsandbytes and a GPU as far as anyone asks; the names of the optimisers that were made."""
    made: list[str] = []

    def maker(name: str) -> Any:
        def make(parameters: Any, lr: float, weight_decay: float) -> torch.optim.Optimizer:
            made.append(name)
            return torch.optim.AdamW(parameters, lr, weight_decay=weight_decay)

        return make

    optim = SimpleNamespace(**{n: maker(n) for n in ("AdamW8bit", "PagedAdamW8bit")})
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(optim=optim))
    monkeypatch.setattr("unlearnbench.optimisation.torch.cuda.is_available", lambda: True)
    return made


@pytest.mark.parametrize(
    ("name", "made"), [("adamw-8bit", "AdamW8bit"), ("paged-adamw-8bit", "PagedAdamW8bit")]
)
def test_they_come_from_bitsandbytes(name: Any, made: str, stand_in: list[str]) -> None:
    how = Optimisation(1, 4, 3e-4, 0, optimizer=name, weight_decay=0.5)
    (optimizer,) = make_optimizers(torch.nn.Linear(3, 2), how)
    assert stand_in == [made]
    assert optimizer.param_groups[0]["lr"] == 3e-4
    assert optimizer.param_groups[0]["weight_decay"] == 0.5
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_without_the_package_or_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    check_optimizer("adamw")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        TrainingError, match=r"needs bitsandbytes.*pip install 'unlearnbench\[8bit\]'"
    ):
        check_optimizer("adamw-8bit")
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace())
    with pytest.raises(TrainingError, match="needs a CUDA device, and there is none here"):
        check_optimizer("paged-adamw-8bit")


def test_a_run_fails_where_it_cannot_have_one(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = rows_of(tokenizer, questions), objective_of("ce-u")
    with pytest.raises(TrainingError, match=r"training\.optimizer: adamw-8bit needs"):
        trainer_of(model, tokenizer, rows, objective, tmp_path, optimizer="adamw-8bit")


@pytest.mark.parametrize("command", [["run", "--select", "0"], ["sweep"]])
def test_a_command_says_so_before_anything_is_spent(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *options = command
    told = ["--set", "training.optimizer=paged-adamw-8bit", "--set", f"output={tmp_path}/runs"]
    assert main([verb, "quickstart", *options, *told]) == 2
    assert "paged-adamw-8bit needs bitsandbytes" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "cache").exists()


def test_the_optimizer_is_part_of_a_run_and_the_default_changes_no_id() -> None:
    run: RunSpec = make_plan(config(), "f").runs[0]
    eight = run.training.model_copy(update={"optimizer": "adamw-8bit"})
    other = run.model_copy(update={"training": eight})
    assert run.id != other.id
    assert "optimizer" not in json.dumps(run.identity["training"])
    assert other.identity["training"]["optimizer"] == "adamw-8bit"
    assert optimisation(other).optimizer == "adamw-8bit"


def test_muon_is_left_out_or_alone_where_there_are_no_or_only_matrices() -> None:
    how = Optimisation(1, 1, 1e-3, seed=0, optimizer="muon")

    def kinds(model: nn.Module) -> list[str]:
        return [type(optimizer).__name__ for optimizer in make_optimizers(model, how)]

    both = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4))
    assert kinds(both) == ["Muon", "AdamW"]
    assert kinds(nn.Linear(4, 4, bias=False)) == ["Muon"]
    assert kinds(nn.LayerNorm(4)) == ["AdamW"]
