"""The least time that scoring can take: its arithmetic, at the speed of this machine's GEMM.

It counts the work that no evaluator can avoid: every distinct token of a question once (its rows as
a prefix tree, so a prompt and shared beginnings of answers count once), and the output layer where
a scored token is predicted. Norms, softmax, log-sum-exp and memory traffic are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.benchmark import Timer

from unlearnbench.data.encoding import Row
from unlearnbench.evaluation.prefix_tree import build_tree

CPU_ROWS = (512, 1024, 2048)
GPU_ROWS = (1024, 2048, 4096, 8192, 16384)
"""Tokens of a measured product: batch sizes of an evaluator."""
SECONDS = 0.1
"""At least, of measuring each product."""


@dataclass(frozen=True)
class ScoringWork:
    """The work of scoring, in tokens."""

    positions: int
    """Distinct tokens that go through the blocks."""
    predictions: int
    """Distinct positions at which a scored token is predicted."""
    context: int
    """Σ over positions of the tokens that each attends to."""


def work(questions: Iterable[Sequence[Row]]) -> ScoringWork:
    """The work in the rows of each question."""
    trees = [build_tree(rows) for rows in questions]
    return ScoringWork(
        positions=sum(len(tree.ids) for tree in trees),
        predictions=sum(len(tree.predicting) for tree in trees),
        context=sum(int((tree.depths + 1).sum()) for tree in trees),
    )


@dataclass(frozen=True)
class Floor:
    """The arithmetic of scoring, and the seconds it takes here."""

    flop: float
    seconds: float

    @property
    def rate(self) -> float:
        """FLOP/s that the products reach, all shapes together."""
        return self.flop / self.seconds


def floor(model: Any, todo: ScoringWork) -> Floor:
    """FLOP of `todo` in `model`, priced at the measured rate of each product's own shape."""
    output = model.get_output_embeddings()
    flop = seconds = 0.0
    rates: dict[tuple[int, int], float] = {}
    for module in model.modules():
        if not isinstance(module, nn.Linear):
            continue
        shape = (module.in_features, module.out_features)
        if shape not in rates:
            rates[shape] = gemm_rate(*shape, module.weight.dtype, module.weight.device)
        tokens = todo.predictions if module is output else todo.positions
        flop += 2.0 * tokens * shape[0] * shape[1]
        seconds += 2.0 * tokens * shape[0] * shape[1] / rates[shape]
    config = model.config.get_text_config()
    # Scores and values: 2 products of context × width each, priced like the rest.
    attention = 4.0 * todo.context * config.hidden_size * config.num_hidden_layers
    return Floor(flop + attention, seconds * (1 + attention / flop))


def gemm_rate(inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of [rows, inputs] × [inputs, outputs], a median over repeats.

    At the best number of rows, since a lower bound must hold for every batch size.
    """
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
    best = 0.0
    for rows in GPU_ROWS if device.type == "cuda" else CPU_ROWS:
        x = torch.randn(rows, inputs, dtype=dtype, device=device)
        names = {"linear": nn.functional.linear, "x": x, "weight": weight}
        timer = Timer("linear(x, weight)", globals=names, num_threads=torch.get_num_threads())
        seconds = timer.blocked_autorange(min_run_time=SECONDS).median
        best = max(best, 2.0 * rows * inputs * outputs / seconds)
    return best
