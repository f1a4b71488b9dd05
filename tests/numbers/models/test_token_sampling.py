"""Tokens come as often as they are probable; the same number, the same token."""

import math

import pytest
import torch
from scipy.stats import chisquare

from unlearnbench.models.token_sampling import Distribution, choose


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    logits = torch.tensor([0.3, -1.0, -math.inf, 2.0, 1.2, -0.4])
    uniform = torch.rand(40000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = choose(logits.expand(len(uniform), -1), Distribution(temperature), uniform)
    found = torch.bincount(chosen, minlength=6).double()
    assert found[2] == 0, "what is masked is never said"
    expected = (logits.double() / temperature).softmax(0) * len(uniform)
    kept = expected > 0
    assert chisquare(found[kept].numpy(), expected[kept].numpy()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.1, [3]), (0.49, [3]), (0.51, [1, 3]), (0.87, [1, 3])]
)
def test_a_nucleus_has_the_share_and_not_more(top_p: float, kept: list[int]) -> None:
    """Probabilities 1/8, 3/8, 0, 1/2, in no order; among those kept their ratio stays."""
    logits = torch.tensor([1.0, 3.0, 0.0, 4.0], dtype=torch.float64).log()
    uniform = torch.linspace(0, 1, 801, dtype=torch.float64)[:-1]
    chosen = choose(logits.expand(800, -1), Distribution(1.0, top_p), uniform)
    found = torch.bincount(chosen, minlength=4).tolist()
    assert [i for i, count in enumerate(found) if count] == kept
    if kept == [1, 3]:
        assert found[1] == pytest.approx(800 * 3 / 7, abs=2)
