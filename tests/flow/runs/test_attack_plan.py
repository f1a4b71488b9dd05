"""Attacks that cannot be made on a benchmark or a model are refused by the plan."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.entries import attack_spec
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.runs.plan_checks import check_attacks
from unlearnbench.runs.plan_sweep import plan_sweep

DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)


def config(*names: str, **settings: Any) -> SweepConfig:
    specs = [attack_spec(n, registry.load("attacks", n)(**settings)) for n in names]
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="it", base="tiny"),),
        data=DATA,
        forget_fractions=(0.25,),
        methods=(MethodGrid(specs=(method_spec("npo", {}),)),),
        attacks=tuple(specs),
    )


def test_every_attack_by_prompts_is_planned_where_it_can_be_made(tmp_path: Path) -> None:
    names = ("paraphrase", "assistant-prefix", "second-turn", "combined", "in-context", "template")
    made = config(*names).model_copy(update={"output": str(tmp_path), "cache": str(tmp_path)})
    plan, _ = plan_sweep(made)
    assert {spec.name for spec in plan.runs[0].attacks} == {*names}


def test_an_attack_that_leaves_no_row_is_one_line() -> None:
    benchmark = load_benchmark(DATA, (0.25,))
    split = benchmark.splits[0.25]
    rows = tuple(replace(row, paraphrased_question=None) for row in split.sets["forget"])
    bare = replace(split, sets={**split.sets, "forget": rows})
    benchmark = replace(benchmark, splits={0.25: bare}, subject_rows=1)
    check_attacks(config("in-context"), benchmark)
    for name, settings in (("paraphrase", {}), ("in-context", {"of": "subject"})):
        with pytest.raises(
            ConfigError, match=rf"attacks\.{name} .*no row of .* role forget at split forget25"
        ):
            check_attacks(config(name, **settings), benchmark)
