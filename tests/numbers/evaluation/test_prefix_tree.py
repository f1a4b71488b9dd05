"""On a GPU attention is given few different shapes, and guesses only while they are free."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from unlearnbench.api.observations import SETS, Evaluation
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import Architecture
from unlearnbench.evaluation import decoding, drafts
from unlearnbench.evaluation import prefix_tree as tree
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.prefix_tree import padded_size, rows_at
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.tiny import build_model, build_tokenizer


def test_an_evaluation_gives_attention_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gives the numbers of unpadded sizes."""
    data = Synthetic(authors=10, questions_per_author=10, pretraining_authors=2)
    benchmark = load_benchmark(data, (0.5,))
    profile = get_profile("tofu", max_length=110)
    sets = evaluation_sets(benchmark, 0.5, profile)
    text = [f"{q.question} {q.answer}" for rows in sets.values() for q in rows]
    tokenizer = build_tokenizer(text, 900)
    shape = Architecture(vocabulary=900, hidden_size=32, layers=1, heads=2, intermediate_size=32)
    model = build_model(shape, tokenizer, seed=3).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.ndim == 2 else 1)
    seen: set[tuple[int, ...]] = set()
    attention = functional.scaled_dot_product_attention

    def record(query: Any, key: Any, *given: Any, **how: Any) -> torch.Tensor:
        seen.add((query.shape[0], query.shape[2], key.shape[2]))
        return attention(query, key, *given, **how)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", record)
    monkeypatch.setattr(tree, "_GROUP", {})
    monkeypatch.setattr(drafts, "_FREE_TOKENS", {})
    found: list[Evaluation] = []
    counts: list[int] = []
    for pads in (lambda size, _: size, lambda size, _: padded_size(size, "cuda")):  # pyright: ignore
        for module in (tree, decoding):
            monkeypatch.setattr(module, "padded_size", pads)
        seen.clear()
        found.append(Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 1024)(model))
        counts.append(len(seen))
    assert counts[0] > 40 >= counts[1]
    exact, padded = found
    assert exact.answers == padded.answers
    for name in SETS:
        for key in ("answer_loss", "base_loss", "perturbed_loss"):
            np.testing.assert_allclose(
                getattr(exact.sets[name], key), getattr(padded.sets[name], key), rtol=1e-5
            )


@pytest.mark.parametrize("shape", [(11,), (11, 3, 4)])
@pytest.mark.parametrize("wanted", [(1,), (6,), (2, 5)])
def test_rows_at_indices_are_those_of_indexing(
    shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    random = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 11, wanted, generator=random)
    tensor = torch.randn(shape, generator=random)
    # Keys of the first columns of each slot are a part of a larger tensor.
    for rows in (tensor, torch.stack([tensor, tensor], dim=-1)[..., 1]):
        assert torch.equal(rows_at(rows, indices), rows[indices])


@pytest.mark.parametrize(
    ("answers", "device", "tokens"),
    [
        *((1, "cpu", 4), (12, "cpu", 4), (16, "cpu", 2), (32, "cpu", 0)),
        *((12, "cuda", 4), (64, "cuda", 2), (128, "cuda", 0)),
    ],
)
def test_few_answers_get_draft_tokens_for_free(answers: int, device: str, tokens: int) -> None:
    assert drafts.minimum_draft(answers, device) == tokens
