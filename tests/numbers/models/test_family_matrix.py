"""Every use of every family gives the numbers of plain transformers and PEFT.

`make test` has the families that are used most, `make test-long` has all. The table of the
differences is printed by `python -m tests.family_matrix`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.factories.marks import diagonals_in_make_test
from tests.families import FAMILIES
from tests.family_matrix import TINY_FAMILIES, USES, Refused, limit, lora_on_experts
from unlearnbench.base import deferred_warnings
from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import LoRA
from unlearnbench.models.lora import add_lora

REFUSED = {("mamba", "LoRA, all linear layers"): "peft: 'out_proj' is incompatible with Mamba"}
"""Cells that peft refuses as well."""
MIXTURES = ("mixtral", "gpt-oss", "llama4", "qwen3-moe", "olmoe", "deepseek-v3")


def marked(names: Iterator[str] | tuple[str, ...]) -> list[Any]:
    """Families as parameters; those that are not in `make test` are long."""
    return [
        pytest.param(name, marks=() if name in TINY_FAMILIES else pytest.mark.long)
        for name in names
    ]


def cells() -> list[Any]:
    """Families and uses as parameters. `make test` has half of the uses of each tiny family."""
    others = [name for name in FAMILIES if name not in TINY_FAMILIES]
    return [
        *diagonals_in_make_test(2, TINY_FAMILIES, USES),
        *(pytest.param(name, use, marks=pytest.mark.long) for name in others for use in USES),
    ]


@pytest.mark.parametrize(("name", "use"), cells())
def test_a_family_gives_the_numbers_of_plain_transformers(name: str, use: str) -> None:
    if (name, use) in REFUSED:
        with pytest.raises(Refused, match="incompatible"):
            USES[use](name)
        return
    assert USES[use](name) <= limit(name, use)


@pytest.mark.parametrize("name", marked(MIXTURES))
def test_experts_are_adapted_as_peft_does(name: str) -> None:
    assert lora_on_experts(name) <= limit(name, "LoRA, names")


@pytest.mark.usefixtures("no_warning_given")
@pytest.mark.parametrize("name", MIXTURES)
def test_all_linear_says_which_experts_it_leaves_out(name: str) -> None:
    """peft adapts those of some families, whose experts were linear layers in old checkpoints."""
    add_lora(FAMILIES[name].build(), LoRA(rank=2))
    adapted = add_lora(FAMILIES[name].build(), LoRA(rank=2))
    weights = [n for n, _ in adapted.named_parameters() if ".experts." in n]
    assert weights
    lines = deferred_warnings.drain()
    if any("lora_A" in weight for weight in weights):
        assert not lines
        return
    (line,) = lines
    place = "1.feed_forward" if name == "llama4" else "0.mlp"
    assert line.startswith("lora: all-linear leaves out the experts of ")
    assert f"% of the weights in matrices inside the layers (model.layers.{place}.experts." in line
    assert line.endswith("name them in lora.target_parameters to adapt them")


def test_all_linear_says_nothing_where_it_is_all() -> None:
    add_lora(FAMILIES["llama"].build(), LoRA(rank=2))
    assert not deferred_warnings.drain()


def test_what_peft_refuses_is_a_message() -> None:
    with pytest.raises(ModelError, match=r"peft cannot adapt a MambaForCausalLM .*out_proj"):
        add_lora(FAMILIES["mamba"].build(), LoRA(rank=2))
    dropout = LoRA(rank=2, dropout=0.1, target_parameters=("mlp.experts.down_proj",))
    with pytest.raises(ModelError, match="lora_dropout"):
        add_lora(FAMILIES["mixtral"].build(), dropout)
