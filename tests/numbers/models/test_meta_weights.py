"""Models that are built on the meta device with `MetaWeights` are the models that torch builds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.families import FAMILIES, Family
from unlearnbench.models.meta_weights import MetaWeights


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_shapes_on_the_meta_device_are_those_of_torch(family: Family) -> None:
    def built() -> dict[str, Any]:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(family.config())
        return {
            name: (tensor.shape, tensor.dtype, tensor.device, tensor.stride(), tensor.requires_grad)
            for name, tensor in _tensors(model).items()
        }

    expected = built()
    with MetaWeights():
        assert built() == expected
    assert expected


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "phi", "gpt-neox", "gpt-oss", "bloom"])
def test_a_model_that_is_read_is_the_same_bit_for_bit(tmp_path: Path, name: str) -> None:
    FAMILIES[name].build().save_pretrained(tmp_path)

    def read() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        return _tensors(model), torch.get_rng_state()

    expected, expected_state = read()
    with MetaWeights():
        tensors, state = read()
    assert tensors.keys() == expected.keys()
    for key, tensor in tensors.items():
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=0)
    torch.testing.assert_close(state, expected_state, rtol=0, atol=0)


def test_tensors_with_values_are_left_alone() -> None:
    with MetaWeights():
        weights = torch.nn.init.constant_(torch.empty(3), 2.0)
        numbers = 1 / 4 ** (torch.arange(0, 4, 2) / 4)
        copied = torch.empty_like(weights, dtype=torch.float64)
    assert weights.tolist() == [2, 2, 2]
    assert numbers.tolist() == [1, 0.5]
    assert copied.dtype is torch.float64
