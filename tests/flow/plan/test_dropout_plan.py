"""Which runs train without the dropout of their model's configuration, and under which ids."""

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api.method import Method
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.config.method_specs import method_from_spec, method_spec
from unlearnbench.config.plan import Plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, RetainSpec
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.dropout import ModelDropout
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.workspace import Workspace

from ..small_run import config_of

METHODS = {
    "npo": (method_spec("npo", {}), True),
    "gradient-ascent": (method_spec("gradient-ascent", {}), False),
    "gradient-ascent+nll": (method_spec("gradient-ascent", {}, RetainSpec(term="nll")), False),
    "gradient-ascent+kl": (method_spec("gradient-ascent", {}, RetainSpec(term="kl")), True),
    "rmu": (method_spec("rmu", {"layer": 1}), True),
    "grpo": (method_spec("grpo", {}), False),
    "grpo β": (method_spec("grpo", {"beta": 0.1}), True),
}
"""Spec, and whether its loss compares with the start model."""


def folder_of(place: Path, build: Any, tokenizer: Any, rate: float) -> str:
    rates = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), rate)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256, "vocab_size": 330}
    folder = place / f"gpt2-{rate}"
    build("gpt2", shape | rates).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def planned(tmp_path: Path, build: Any, tokenizer: Any) -> Any:
    def plan_of(rate: float, **training: Any) -> Plan:
        folder = folder_of(tmp_path, build, tokenizer, rate)
        model = ModelSettings(name="m", base=folder, fine_tuned=folder, template="plain")
        config = config_of(
            tmp_path,
            models=(model,),
            methods=tuple(MethodGrid(specs=(spec,)) for spec, _ in METHODS.values()),
            training=TrainingSettings(batch_size=4, **training),
        )
        return plan_sweep(config)[0]

    return plan_of


def ids_without(run: RunSpec) -> str:
    """The id that a run has with its dropout, with which it does not start exactly either."""
    return run.model_copy(update={"removes_dropout": False, "starts_exactly": False}).id


def test_dropout_is_removed_for_losses_that_compare_with_the_start_model(planned: Any) -> None:
    for run, (name, (_, compares)) in zip(planned(0.1).runs, METHODS.items(), strict=True):
        assert run.removes_dropout is compares, name
        assert (run.id == ids_without(run)) is not compares, "another id only for other numbers"


def test_a_setting_keeps_or_removes_it_for_all_methods(planned: Any) -> None:
    automatic = planned(0.1).runs
    for run, before in zip(planned(0.1, dropout="keep").runs, automatic, strict=True):
        assert not run.removes_dropout
        assert run.id == ids_without(before)
    for run, before in zip(planned(0.1, dropout="remove").runs, automatic, strict=True):
        assert run.removes_dropout
        assert (run.id == before.id) is before.removes_dropout


def test_nothing_changes_for_a_model_without_dropout(planned: Any) -> None:
    runs = planned(0.0).runs
    assert not any(run.removes_dropout for run in runs)
    ids = [run.id for run in runs]
    assert [run.id for run in planned(0.0, dropout="remove").runs] == ids


def test_a_run_does_as_it_is_planned_and_says_what_its_plan_missed(planned: Any) -> None:
    plan = planned(0.1)
    run = plan.runs[0]
    space = Workspace(plan.config, plan.folder)
    method = method_from_spec(run.method)
    assert isinstance(method, Method)
    drain()
    assert not ModelDropout(build_trainer(run, space, method).model)
    assert not drain()
    missed = run.model_copy(update={"removes_dropout": False})
    assert ModelDropout(build_trainer(missed, space, method).model)
    (warning,) = drain()
    assert warning.startswith("m trains with its dropout, and npo compares it with the start model")
