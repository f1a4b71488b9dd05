"""Batches are padded on the right, score answers only, and respect the token budget."""

import torch

from unlearnbench.models.batching import collate, token_budget
from unlearnbench.models.token_row import Row


def test_collate_predicts_each_scored_token_from_the_one_before() -> None:
    rows = [Row((5, 6, 7, 8), 2), Row((9, 10), 1), Row((1, 2, 3), 3)]
    batch = collate(rows, 0, torch.device("cpu"))
    assert batch.ids.tolist() == [[5, 6, 7, 8], [9, 10, 0, 0], [1, 2, 3, 0]]
    assert batch.attention.sum(1).tolist() == [4, 2, 3]
    assert batch.predicts.nonzero().tolist() == [[0, 1], [0, 2], [1, 0]]
    assert batch.labels.tolist() == [7, 8, 10]
    assert batch.rows.tolist() == [0, 0, 1]


def test_token_budget_bounds_padded_batches() -> None:
    lengths = [3, 9, 1, 9, 5, 40]
    batches = list(token_budget(lengths, 20))
    assert batches == [[5], [1, 3], [4, 0, 2]]
    assert sorted(i for batch in batches for i in batch) == list(range(6))
