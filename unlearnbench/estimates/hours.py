"""Estimate a run's hours from shapes and its work, before anything is loaded.

docs/tutorials/run-on-a-cluster.md has the estimate as text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unlearnbench.estimates.memory import Footprint, Setup, optimizer_bytes
from unlearnbench.estimates.model_shape import Shape

_SLOWER = 8  # fp32 against bf16: 67 of 989 TFLOP/s on an H100, of which a larger share is reached
_BANDWIDTH = 2e12  # bytes/s of a GPU's memory: 3.35e12 of an H100, of which a share is reached
_LAUNCHED = 1.25e-3  # seconds a layer to launch forward and back of a micro-batch
_DECODED = 0.6e-3  # seconds a layer to launch a step of decoding
_LOADED = 2e9  # bytes/s of a model's files
_SAVED = 250e6  # bytes/s of a checkpoint, as `runs/checkpoints.py` assumes at first
_UPDATED = 28  # bytes an optimiser reads and writes for a weight in fp32
_FREE = 0.7  # of free memory, for keys and values
ASSUMED = (
    f"{_BANDWIDTH / 1e12:g} TB/s of a GPU's memory, {_LOADED / 1e9:g} GB/s of a model's files, "
    f"{_SAVED / 1e9:g} GB/s of a checkpoint, {1e3 * _LAUNCHED:g} ms a layer to launch a "
    f"micro-batch and {1e3 * _DECODED:g} ms a step of decoding"
)
"""Rates that hours are counted with."""


@dataclass(frozen=True)
class Hours:
    """Hours of a run by phase."""

    training: float
    scoring: float
    decoding: float
    loading: float
    checkpoints: float

    @property
    def total(self) -> float:
        """The sum of all phases."""
        return self.training + self.scoring + self.decoding + self.loading + self.checkpoints


@dataclass(frozen=True)
class Effort:
    """Work of a run."""

    trained: float
    """Trained tokens of all parts."""
    steps: int
    """Optimiser steps."""
    evaluations: int
    scored: float
    """Tokens of an evaluation that are scored."""
    answers: int
    """Answers that are decoded in an evaluation."""
    decoded: float
    """Mean tokens of a decoded answer."""
    limit: int
    """Most tokens of a decoded answer."""
    text: float
    """Tokens of a slot: prompt and answer."""

    def flop(self, shape: Shape, *, checkpointing: bool) -> float:
        """Floating-point operations of training."""
        n = shape.matrices
        return self.trained * ((6 if checkpointing else 4) * n + 2 * min(shape.trained, n))

    def hours(
        self, shape: Shape, setup: Setup, memory: Footprint, flops: float, limit: int | None
    ) -> Hours:
        """Estimate the hours of a run at `flops` operations a second of each process in bf16.

        limit  bytes that a process may use; None for no limit
        """
        world, n = setup.resources.world_size, shape.matrices
        trained_at = flops / (1 if setup.autocast or shape.item == 2 else _SLOWER)
        evaluated_at = flops / (1 if setup.evaluated_in_bf16 or shape.item == 2 else _SLOWER)
        passes = self.steps * math.ceil(setup.batch_size / world / setup.items)
        training = self.flop(shape, checkpointing=setup.checkpointing) / trained_at / world
        if setup.on_gpu:
            training = max(training, passes * shape.layers * _LAUNCHED)
            training += self.steps * _UPDATED * shape.trained / world / _BANDWIDTH
        scoring = self.evaluations * self.scored * 2 * n / evaluated_at / world
        decoding = self.evaluations * self._decoding(shape, setup, memory, evaluated_at, limit)
        loading = 2 * shape.weights / _LOADED
        save = (shape.trained_bytes + optimizer_bytes(shape, setup)) / _SAVED
        saves = int((training + scoring + decoding) / (10 * save))
        parts = (training, scoring, decoding, loading, saves * save)
        return Hours(*(seconds / 3600 for seconds in parts))

    def _decoding(
        self, shape: Shape, setup: Setup, memory: Footprint, flops: float, limit: int | None
    ) -> float:
        """Seconds of decoding in one evaluation."""
        answers = math.ceil(self.answers / setup.resources.world_size)
        if not answers:
            return 0.0
        item = 2 if setup.evaluated_in_bf16 else shape.item
        slots = answers
        if limit is not None:
            free = _FREE * max(limit - memory.constant - memory.evaluation, 0)
            slots = min(max(int(free / (self.text * shape.keys * item)), 1), answers)
        steps = max(answers * self.decoded / slots, self.limit)
        step = 2 * slots * shape.matrices / flops
        if setup.on_gpu:
            step = max(step + item * shape.matrices / _BANDWIDTH, shape.layers * _DECODED)
        return steps * step
