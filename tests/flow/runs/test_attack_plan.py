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
from unlearnbench.runs.plan_sweep import check_attacks, plan_sweep

DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)


def config(*names: str, template: Any = "auto", base: str = "tiny", **settings: Any) -> SweepConfig:
    specs = [attack_spec(n, registry.load("attacks", n)(**settings)) for n in names]
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="it", base=base, template=template),),
        data=DATA,
        forget_fractions=(0.25,),
        methods=(MethodGrid(specs=(method_spec("npo", {}),)),),
        attacks=tuple(specs),
    )


def test_every_attack_by_prompts_is_planned_where_it_can_be_made(tmp_path: Path) -> None:
    names = ("paraphrase", "assistant-prefix", "second-turn", "combined", "in-context", "template")
    made = config(*names).model_copy(update={"output": str(tmp_path), "cache": str(tmp_path)})
    plan, benchmark = plan_sweep(made)
    assert {spec.name for spec in plan.runs[0].attacks} == {*names}
    check_attacks(config(*names, template="phi"), benchmark)
    check_attacks(config("system-prompt", template="llama-2"), benchmark)


def test_a_chat_template_is_read_from_the_models_folder(tmp_path: Path, tokenizer: Any) -> None:
    place = tmp_path / "model"
    benchmark = load_benchmark(DATA, (0.25,))
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    try:
        tokenizer.save_pretrained(place)
        (place / "config.json").write_text('{"model_type": "llama"}')
        check_attacks(config("system-prompt", base=str(place)), benchmark)
        tokenizer.chat_template = "[{{ messages[-1].content }}]"
        tokenizer.save_pretrained(place)
    finally:
        tokenizer.chat_template = None
    for name, lack in (("system-prompt", "has no system messages"), ("second-turn", "renders no")):
        with pytest.raises(ConfigError, match=rf"attacks\.{name} .*{lack}"):
            check_attacks(config(name, base=str(place)), benchmark)


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
