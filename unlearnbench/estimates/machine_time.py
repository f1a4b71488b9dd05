"""Estimate how long a plan takes on the CPUs of this machine, from a measurement of a second.

The work is counted as in `hours.py`; what a core does with matrices of a model's widths is
measured, as caches and other programs leave it. Of attacks the evaluations are counted, and not
what they train.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.benchmark import Dataset
from unlearnbench.api.method import Method
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.resources import LOCAL_RUNS
from unlearnbench.config.schema import ModelSettings
from unlearnbench.errors import ModelError
from unlearnbench.estimates.model_shape import config_of
from unlearnbench.estimates.run_estimate import effort_of, row_tokens
from unlearnbench.estimates.time_to_go import rows_per_item
from unlearnbench.models.loading import Source
from unlearnbench.plan.plan import Plan
from unlearnbench.plan.run_spec import RunSpec

FACTOR = 2
"""The estimate may be off by this factor."""
_MEASURED = 0.3  # seconds of a measurement
_TOKENS = 1024  # of a pass of it: a batch of short rows
_REACHED = 0.8  # share of the measured rate: attention, norms and the optimiser are no products
_SAMPLED = 4.0  # cost of a token that is sampled alone, in tokens that are scored in a batch
_STARTED = 20.0  # seconds to start Ray and its processes, and to write the page
_LOADED = 3.5  # seconds of a run that are no work on tokens: the quickstart's on two cores


def machine_seconds(
    plan: Plan,
    benchmark: Dataset,
    runs: Sequence[RunSpec],
    prepared: Iterable[tuple[str, int, bool]],
) -> float:
    """Seconds of a sweep of `runs` on the CPUs of this machine, from its command to its end.

    prepared  models to train first: the name of their settings, their rows in all epochs, and
              whether all others wait for it

    Raises: ModelError where a model's shape is not known.
    """
    slots = min(plan.config.ray.concurrent or LOCAL_RUNS, os.cpu_count() or 1)
    before = 0.0
    first = {run.model.name: run for run in runs}
    for model, rows, alone in prepared:
        if model in first:
            run = first[model]
            weights, speed = _size_and_speed(run.model)
            seconds = _LOADED + 6 * weights * rows * _row_length(run, benchmark) / speed
            before += seconds if alone else seconds / slots
    for name, run in first.items():  # evaluations of the start model and the retain models
        weights, speed = _size_and_speed(run.model)
        splits = len({one.forget_fraction for one in runs if one.model.name == name})
        work = _evaluation(run, benchmark, weights) * (1 + _attacked(run, benchmark))
        before += 2 * splits * work / speed
    return _STARTED + before + sum(_run_seconds(run, benchmark) for run in runs) / slots


def _run_seconds(run: RunSpec, benchmark: Dataset) -> float:
    weights, speed = _size_and_speed(run.model)
    rows = len(benchmark.splits[run.forget_fraction].forget) * run.epochs
    each, sampled = rows_per_item(run)
    trains = isinstance(method_from_spec(run.method), Method)
    length = _row_length(run, benchmark) if trains else 0.0
    training = rows * length * weights * (6 * each + 2 * _SAMPLED * sampled)
    times = len(run.evaluate_at) + _attacked(run, benchmark)
    evaluations = times * _evaluation(run, benchmark, weights)
    return _LOADED + (training + evaluations) / speed


def _evaluation(run: RunSpec, benchmark: Dataset, weights: int) -> float:
    """FLOP of one evaluation."""
    effort = effort_of(run, benchmark, 0.0, 0)
    # Most decoded tokens are verified drafts, and cost what scored ones do.
    return 2 * weights * (effort.scored + effort.answers * effort.decoded)


def _attacked(run: RunSpec, benchmark: Dataset) -> float:
    """The evaluations of a run under its attacks, as a number of whole plain evaluations."""
    from unlearnbench.config.profiles import profile_of
    from unlearnbench.evaluation.sets import evaluation_sets

    found, roles = 0.0, run.data.roles
    sets = evaluation_sets(benchmark, run.forget_fraction, profile_of(run.evaluation))
    questions = sum(map(len, sets.values()))
    for attack in map(attack_from_spec, run.attacks):
        about = sum(len(its) for name, its in sets.items() if roles[name] in attack.roles)
        epochs = 1 if attack.at == "last" else len(run.evaluate_at)
        answers = attack.samples if isinstance(attack, SamplingAttack) else 1
        found += epochs * len(attack.points()) * answers * about / questions
    return found


def _row_length(run: RunSpec, benchmark: Dataset) -> float:
    """Mean tokens of a trained row."""
    split = benchmark.splits[run.forget_fraction]
    most = run.training.max_length
    return fmean(row_tokens(row, most)[0] for row in (*split.forget, *split.retain))


@lru_cache(maxsize=64)
def _widths(text: str) -> tuple[int, int, int]:
    """Weights, hidden and inner width of a model. Raises: ModelError where they are not known."""
    model = ModelSettings.model_validate_json(text)
    source = Source.parse(model.base, model.revision)
    config: Any = config_of(model, Source.parse(model.fine_tuned) if model.fine_tuned else source)
    hidden = getattr(config, "hidden_size", None)
    layers = getattr(config, "num_hidden_layers", None)
    if not isinstance(hidden, int) or not isinstance(layers, int):
        raise ModelError(f"{model.base}: its config has no hidden_size or num_hidden_layers")
    inner = int(getattr(config, "intermediate_size", None) or 4 * hidden)
    weights = layers * (4 * hidden**2 + 3 * hidden * inner) + config.vocab_size * hidden
    return weights, hidden, inner


def weights_of(model: ModelSettings) -> int:
    """Weights that a token is multiplied with. Raises: ModelError where they are not known."""
    return _widths(model.model_dump_json(exclude={"preparation"}))[0]


def _size_and_speed(model: ModelSettings) -> tuple[int, float]:
    """Weights that a token is multiplied with, and FLOP/s that a core reaches with them."""
    weights, hidden, inner = _widths(model.model_dump_json(exclude={"preparation"}))
    return weights, _REACHED * measured_flops(hidden, inner)


@lru_cache(maxsize=8)
def measured_flops(hidden: int, inner: int) -> float:
    """Measure the FLOP/s of one thread with matrices of a model's widths, forward and back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = torch.ones(_TOKENS, hidden)
        up = torch.ones(hidden, inner, requires_grad=True)
        down = torch.ones(inner, hidden, requires_grad=True)
        passes, begin = -1, time.perf_counter()
        while passes < 1 or time.perf_counter() - begin < _MEASURED:
            torch.autograd.grad(((rows @ up).relu() @ down).sum(), (up, down))
            passes += 1
            if not passes:  # the first allocates
                begin = time.perf_counter()
        spent = time.perf_counter() - begin
    finally:
        torch.set_num_threads(threads)
    # Two products forward, and for each two back, but none for the gradient of the rows.
    return passes * 10 * _TOKENS * hidden * inner / spent
