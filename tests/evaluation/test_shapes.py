"""On a GPU attention is given few different shapes, and guesses only while they are free."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from unlearnbench.data.encoding import TEMPLATES
from unlearnbench.data.loading import load_benchmark
from unlearnbench.evaluation import generation, shapes, tree
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.profiles import get_profile
from unlearnbench.evaluation.result import SETS, Evaluation
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.shapes import rounded
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.settings import Architecture, DataSettings


def test_sizes_are_as_they_are_on_a_cpu_and_round_elsewhere() -> None:
    assert [rounded(n, "cpu") for n in (1, 37, 300)] == [1, 37, 300]
    sizes = {n: rounded(n, "cuda") for n in range(1, 400)}
    assert [sizes[n] for n in (1, 2, 3, 5, 17, 64, 65, 129)] == [1, 2, 4, 8, 32, 64, 128, 192]
    assert all(size >= n for n, size in sizes.items())
    assert len(set(sizes.values())) == 13


def test_an_evaluation_gives_attention_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And comes to the numbers of the sizes as they are."""
    data = DataSettings(authors=10, questions_per_author=6, pretraining_authors=2)
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
    monkeypatch.setattr(generation, "_UNASKED", {})
    found: list[Evaluation] = []
    counts: list[int] = []
    usual = shapes._AS_IT_IS  # pyright: ignore[reportPrivateUsage]
    for as_it_is in (usual, frozenset[str]()):
        monkeypatch.setattr(shapes, "_AS_IT_IS", as_it_is)
        seen.clear()
        found.append(Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 1024)(model))
        counts.append(len(seen))
    assert counts[0] > 40 >= counts[1]
    exact, round_ones = found
    assert exact.answers == round_ones.answers
    for name in SETS:
        for key in ("answer_loss", "base_loss", "perturbed_loss"):
            np.testing.assert_allclose(
                getattr(exact.sets[name], key), getattr(round_ones.sets[name], key), rtol=1e-5
            )


def test_guesses_that_were_not_asked_for_are_made_while_they_are_free() -> None:
    number = generation._unasked  # pyright: ignore[reportPrivateUsage]
    unasked = {n: number(n, "cuda") for n in range(1, 400)}
    assert unasked[1] == unasked[51] == 4
    assert [unasked[n] for n in (52, 63, 64, 85, 86, 127, 128, 300)] == [3, 3, 2, 2, 1, 1, 0, 0]
    assert all(n * (1 + guesses) < 256 for n, guesses in unasked.items() if guesses)
    assert number(1, "cpu") == 0
