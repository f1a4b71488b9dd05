"""The plug-ins conform, and the loss has the value that its equation has."""

import math

import pytest
import torch
from plateau.attack import Polite
from plateau.method import Plateau
from plateau.metric import FirstWord

from unlearnbench import LossBatch, Predictions
from unlearnbench.losses.lm_head import Projection
from unlearnbench.testing import AttackConformance, MethodConformance, MetricConformance


class TestPlateau(MethodConformance):
    """Padding, shift, accumulation, extremes, needs and others: one test each."""

    method = Plateau


class TestFirstWord(MetricConformance):
    """Bounds, order of rows, empty answers and others: one test each."""

    metric = FirstWord


class TestPolite(AttackConformance):
    """Answers stay as they are, points are named, and others: one test each."""

    attack = Polite


def test_a_value_worked_by_hand() -> None:
    # Four equal logits: p = 1/4, so that L = 8 · tanh(−log 4 / 8).
    logits, rows = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([0])
    forget = Predictions(logits, Projection(None), torch.tensor([3]), rows, 1, 1, 1)
    loss = Plateau().loss(LossBatch({"forget": forget}))
    assert loss.item() == pytest.approx(8 * math.tanh(-math.log(4) / 8))
