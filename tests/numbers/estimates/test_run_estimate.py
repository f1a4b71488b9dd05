"""Estimates of hours, worked by hand."""

from dataclasses import asdict, replace
from math import inf

import pytest

from unlearnbench.api import registry
from unlearnbench.config.resources import Resources
from unlearnbench.results.effort import Effort
from unlearnbench.results.memory import Setup, footprint
from unlearnbench.results.model_shape import Shape
from unlearnbench.results.run_estimate import Rates, hours_of, training_flop

from .test_memory import SETTINGS, setup_of, shape

EFFORT = Effort(
    steps=10, rows=160, trained_tokens=1000.0, sampled_tokens=0.0, evaluations=2, attacked=0,
    whole_evaluations=2.0, questions=40, scored_tokens=500.0, answers=40, answer_tokens=30.0,
    longest_answer=50, slot_tokens=80.0,
)  # fmt: skip


def test_hours_by_hand() -> None:
    """Where nothing but FLOP is counted, and the reads of files."""
    found, setup, n = shape(), setup_of(SETTINGS, 4, "fp32", 1), shape().weights
    setup = replace(setup, evaluated_in_half=False)
    method = registry.load("methods", "ce-u")()
    memory = footprint(found, method, method.needs, setup)
    assert training_flop(EFFORT, found, checkpointing=False) == 1000 * 6 * n
    assert training_flop(EFFORT, found, checkpointing=True) == 1000 * 8 * n
    half = replace(found, trained=n // 2)
    assert training_flop(EFFORT, half, checkpointing=False) == 1000 * (4 * n + n)
    sampled = replace(EFFORT, sampled_tokens=10.0)
    assert training_flop(sampled, found, checkpointing=False) == 1000 * 6 * n + 10 * 4 * 2 * n

    def hours(shape: Shape, setup: Setup, flops: float = 1e9) -> tuple[float, ...]:
        rates = Rates(*(flops, 8, inf, 0, 0), interpreted=0, summarised=0, linked=inf, started=0)
        made = hours_of(EFFORT, shape, setup, memory, rates, None)
        seconds = [value * 3600 for value in asdict(made).values()]
        assert made.total * 3600 == pytest.approx(sum(seconds))
        return tuple(seconds)

    training, scoring, decoding = 6000 * n / 1e9, 2 * 500 * 2 * n / 1e9, 2 * 30 * 40 * 2 * n / 1e9
    loading, save = 2 * n / 2e9, 12 * n / 250e6
    saved = save * int(8 * (training + scoring + decoding) / (10 * save))
    wanted = (8 * training, 8 * scoring, 8 * decoding, 0, loading, saved)
    assert hours(found, setup) == pytest.approx(wanted), "all of it in fp32"
    assert saved >= save
    assert hours(found, setup, 1e12)[-1] == 0, "what is soon done again is not kept"
    two = replace(setup, resources=Resources(processes=2))
    assert hours(found, two)[:3] == pytest.approx((4 * training, 4 * scoring, 4 * decoding))
    autocast = replace(setup, autocast=True)
    assert hours(found, autocast)[:2] == pytest.approx((training, 8 * scoring))
    judged = replace(setup, evaluated_in_half=True)
    assert hours(found, judged)[1:3] == pytest.approx((scoring, decoding))


def test_gpu_hours_include_launches_and_bandwidth() -> None:
    found, method = shape(), registry.load("methods", "ce-u")()
    setup = replace(setup_of(SETTINGS, 2, "bf16", 1), on_gpu=True)
    memory = footprint(found, method, method.needs, setup)
    four = hours_of(EFFORT, found, setup, memory, Rates(1e15), None)
    whole = hours_of(
        EFFORT, found, replace(setup, micro_batch_size=None), memory, Rates(1e15), None
    )
    assert four.training == pytest.approx(4 * whole.training, rel=0.1), "8 rows in 4 parts"
    assert four.decoding * 3600 == pytest.approx(2 * (50 * (6 * 0.6e-3 + 5e-3) + 4))
    # Four slots in place of forty: ten times as many steps, of at least 30 tokens each.
    room = int(4.5 * 80 * found.cache_width * 2 / 0.7)
    limit = memory.constant + memory.evaluation + room
    few = hours_of(EFFORT, found, setup, memory, Rates(1e15), limit)
    steps = [hours.decoding * 3600 - 2 * 4 for hours in (few, four)]
    assert steps[0] / steps[1] == pytest.approx(40 * 30 / 4 / 50)
