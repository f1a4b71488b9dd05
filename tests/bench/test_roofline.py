"""The floor is the arithmetic of distinct tokens, counted by hand, at a measured rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unlearnbench.bench import roofline as module
from unlearnbench.bench.roofline import Floor, ScoringWork, floor, gemm_rate, work
from unlearnbench.data.encoding import Row


def test_work_counts_every_distinct_token_once() -> None:
    # A prompt of 3; answers 7 8 (end), 7 9 (end), 5 (end); and the first once more.
    rows = [Row((1, 2, 3, *rest), 3) for rest in ((7, 8, 0), (7, 9, 0), (5, 0), (7, 8, 0))]
    found = work([rows, [Row((1, 2), 1)]])
    # 1 2 3 | 7 | 8 | 9 | 5 and, of the second question, 1.
    assert found == ScoringWork(positions=8, predictions=6, context=1 + 2 + 3 + 4 + 5 + 5 + 4 + 1)


def test_flop_is_counted_from_the_weights(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(*_: Any) -> float:
        return 1e9

    monkeypatch.setattr(module, "gemm_rate", rate)
    found = floor(model, ScoringWork(positions=10, predictions=4, context=30))
    blocks = 2 * (4 * 32 * 32 + 3 * 32 * 48)  # two layers: q k v o, gate up down
    output = 32 * model.config.vocab_size
    attention = 30 * 32 * 2 * 4  # scores and values, a multiply and an add each, two layers
    assert found.flop == 2 * (10 * blocks + 4 * output) + attention
    assert found.seconds == pytest.approx(found.flop / 1e9)
    assert Floor(6.0, 2.0).rate == 3.0


def test_rate_is_that_of_the_number_of_rows_that_suits_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(**_: Any) -> Any:
        return SimpleNamespace(median=1.0)

    def timer(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(blocked_autorange=measured)

    monkeypatch.setattr(module, "Timer", timer)
    found = gemm_rate(4, 5, torch.float32, torch.device("cpu"))
    # Every product takes one second here, so that the largest is the fastest.
    assert found == 2.0 * max(module.CPU_ROWS) * 4 * 5


def test_rate_of_a_real_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.0)
    assert 1e8 < gemm_rate(64, 64, torch.float32, torch.device("cpu")) < 1e14
