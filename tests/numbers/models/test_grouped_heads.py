"""Attention with grouped heads, with and without a copy of the keys for each head of a group."""

import pytest
import torch
from torch import nn

from unlearnbench.models.packed_attention import AttentionKernel


class Layer(nn.Module):
    """What the library asks of a layer."""

    num_key_value_groups = 3
    is_causal = True


@pytest.mark.parametrize("width", [1, 4, 7])
def test_queries_beside_each_other_equal_copied_keys(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(5, width, 6, 8, generator=generator)
    key, value = torch.randn(2, 5, 11, 2, 8, generator=generator)
    hidden = torch.rand(5, 1, width, 11, generator=generator) < 0.4
    hidden[..., 0] = False
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    found = AttentionKernel(Layer(), {"scaling": 0.3})(query, key, value, mask)
    copied = [one.repeat_interleave(3, 2).transpose(1, 2) for one in (key, value)]
    scores = 0.3 * query.transpose(1, 2) @ copied[0].mT + mask
    plain = (scores.softmax(-1) @ copied[1]).transpose(1, 2)
    torch.testing.assert_close(found, plain, atol=1e-6, rtol=1e-5)
