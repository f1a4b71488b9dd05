"""ECO: what is flagged, and with what it is corrupted."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.inference_method import Prompt, Prompts, Wrapper
from unlearnbench.models.prompt_shift import Shifts, Span, mean_states

FORGET: list[Prompt] = [(1, 5, 40 + i, 7) for i in range(12)]
RETAIN: list[Prompt] = [(1, 9, 40 + i, 3 + i % 2, 8) for i in range(60)]


def eco(**values: Any) -> Wrapper:
    made = registry.load("methods", "eco")(**values)
    assert isinstance(made, Wrapper)
    return made


def prompts_of(model: Any, seed: int = 3) -> Prompts:
    return Prompts(FORGET, RETAIN, seed, partial(mean_states, model, pad=0))


def shifts(model: Any, asked: list[Prompt], seed: int = 3, **values: Any) -> list[Tensor | None]:
    made = eco(**values).fit(model, prompts_of(model, seed))
    return list(made(asked))


def test_forget_questions_are_flagged_and_others_are_not(model: Any) -> None:
    found = shifts(model, [*FORGET, *RETAIN])
    flagged = [values is not None for values in found]
    assert flagged == [True] * len(FORGET) + [False] * len(RETAIN)
    unseen: list[Prompt] = [(1, 5, 90, 7), (1, 9, 90, 3, 8)]
    assert [values is not None for values in shifts(model, unseen)] == [True, False]
    assert shifts(model, FORGET, threshold=1.0) == [None] * len(FORGET)


def test_the_classifier_is_at_the_minimum_of_its_loss(model: Any) -> None:
    """The gradient of the class-balanced, penalised log-loss is 0, in the features' own units."""
    import sys

    penalty = 0.1
    sides = [mean_states(model, side, 0) for side in (FORGET, RETAIN)]
    module = sys.modules[registry.load("methods", "eco").__module__]
    classifier = module._Classifier(*sides, penalty)
    every = torch.cat(sides).double()
    weights = classifier.weights.clone().requires_grad_()
    mean, scale = every.mean(0), every.std(0)
    total = torch.zeros((), dtype=torch.float64)
    for side, target in zip(sides, (1.0, 0.0), strict=True):
        logits = ((side.double() - mean) / scale) @ weights[:-1] + weights[-1]
        p = 1 / (1 + torch.exp(-logits))
        total = total - 0.5 * (target * p.log() + (1 - target) * (1 - p).log()).mean()
    total = total + penalty / 2 * (weights[:-1] ** 2).sum()
    (gradient,) = torch.autograd.grad(total, weights)
    assert float(gradient.abs().max()) < 1e-6
    probabilities = classifier(sides[0])
    logits = ((sides[0].double() - mean) / scale) @ classifier.weights[:-1]
    torch.testing.assert_close(probabilities, 1 / (1 + torch.exp(-logits - classifier.weights[-1])))


def test_noise_belongs_to_seed_and_prompt_and_grows_with_sigma(model: Any) -> None:
    one = shifts(model, FORGET, sigma=2.0, dims=3)
    for values, prompt in zip(one, FORGET, strict=True):
        assert values is not None
        assert values.shape == (len(prompt), 3)
        assert not values[-1].any(), "the last token stays"
        assert values[:-1].all()
    again = shifts(model, FORGET[::-1], sigma=4.0, dims=3)[::-1]
    for mine, twice in zip(one, again, strict=True):
        assert mine is not None
        assert twice is not None
        torch.testing.assert_close(2 * mine, twice)
    other = shifts(model, FORGET, seed=4, sigma=2.0, dims=3)
    assert other[0] is not None
    assert one[0] is not None
    assert not torch.equal(one[0], other[0])


class Corrupted:
    """Embeddings of prompts, clean and as a corrupted model sees them."""

    def __init__(self, model: Any, asked: list[Prompt], **values: Any) -> None:
        made = eco(threshold=0.0, **values).fit(model, prompts_of(model))
        shifts_of, layer = Shifts(made, asked), model.get_input_embeddings()
        width = max(map(len, asked))
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in asked])
        places = [range(i * width, i * width + len(p)) for i, p in enumerate(asked)]
        with torch.no_grad():
            clean = layer(ids)
            with shifts_of.added(
                model, [Span(p, 0, s) for p, s in zip(asked, places, strict=True)]
            ):
                seen = layer(ids)
        self.clean = [rows[: len(p)] for rows, p in zip(clean, asked, strict=True)]
        self.seen = [rows[: len(p)] for rows, p in zip(seen, asked, strict=True)]
        for rows, before, prompt in zip(seen, clean, asked, strict=True):
            torch.testing.assert_close(rows[len(prompt) - 1 :], before[len(prompt) - 1 :])

    def tokens(self) -> list[tuple[list[float], list[float]]]:
        """(before, after) of every token that is corrupted, as plain numbers."""
        pairs = zip(self.clean, self.seen, strict=True)
        return [
            (before.tolist(), after.tolist())
            for clean, seen in pairs
            for before, after in zip(clean[:-1], seen[:-1], strict=True)
        ]


ASKED: list[Prompt] = [(1, 5, 40, 41, 7), (1, 9, 60, 3, 90, 91, 8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dims", [1, 5, 10**6])
@pytest.mark.parametrize(
    "corruption", ["zero_out_first_n", "zero_out_top_k", "flip_sign_first_n", "flip_sign_top_k"]
)
def test_zeros_and_flipped_signs(
    model: Any, corruption: str, dims: int, dtype: torch.dtype
) -> None:
    factor = 0.0 if corruption.startswith("zero") else -1.0
    for before, after in Corrupted(
        model.to(dtype), ASKED, corruption=corruption, dims=dims
    ).tokens():
        count = min(dims, len(before))
        moved = [d for d, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        assert [after[d] for d in moved] == [factor * before[d] for d in moved], "exactly"
        if corruption.endswith("first_n"):
            assert moved == [*range(count)]
        else:  # of values that are equal in size any may be taken
            sizes = sorted((abs(value) for value in before), reverse=True)
            assert sorted((abs(before[d]) for d in moved), reverse=True) == sizes[:count]
