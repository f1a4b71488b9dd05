"""Estimate a run's GPU memory from shapes, before anything is loaded.

Pure: the sizes come from `model_shape.py`, the lengths of rows from `run_estimate.py`. All sizes
are in bytes; docs/tutorials/run-on-a-cluster.md has the estimate as text.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, pstdev

from unlearnbench.api.method import Method, Needs
from unlearnbench.config.resources import Resources
from unlearnbench.losses.chunked import CHUNK_BYTES
from unlearnbench.results.model_shape import Shape

_FORWARD_TOKENS = 16384  # evaluation/predictor.py: of a batch on a GPU
_SLOT_BATCHES = 16  # likewise: batches whose keys and values are cached at most
_LOGITS = 2**27  # likewise: at most of a chunk
_OPTIMISER_BYTES = {"adamw-8bit": 2, "paged-adamw-8bit": 0}


@dataclass(frozen=True)
class Lengths:
    """Tokens of the rows that a run trains on."""

    mean: float
    deviation: float
    longest: int
    scored: float
    """Mean tokens of an answer."""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int]]) -> Lengths:
        """Summarise the (tokens, scored tokens) of one or more rows."""
        tokens = [item for item, _ in rows]
        return cls(fmean(tokens), pstdev(tokens), max(tokens), fmean(s for _, s in rows))


@dataclass(frozen=True)
class Setup:
    """The settings of a run that its memory and time depend on."""

    batch_size: int
    micro_batch_size: int | None
    rows_per_item: int
    """Rows that go through the model for a forget row: one for each part, or sample."""
    lengths: Lengths
    autocast: bool
    checkpointing: bool
    optimizer: str
    resources: Resources
    on_gpu: bool = True
    evaluated_in_half: bool = True
    passes: float = 1
    """Forward and backward passes of a step, on average over its rows."""
    copies: int = 0
    """Further fp32 tensors of each trained weight: modifiers' gradients by role, masks, offsets."""

    @property
    def items(self) -> int:
        """Forget rows of a micro-batch of one process."""
        mine = math.ceil(self.batch_size / self.resources.world_size)
        return min(self.micro_batch_size or mine, mine)

    @property
    def accumulates(self) -> bool:
        """True if a step has several micro-batches."""
        return self.items < math.ceil(self.batch_size / self.resources.world_size)

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch, packed.

        Of a hundred sums of n draws the largest is about three deviations above the mean.
        """
        n, options = self.items * self.rows_per_item, self.lengths
        return round(
            min(n * options.mean + 3 * math.sqrt(n) * options.deviation, n * options.longest)
        )


@dataclass(frozen=True)
class Footprint:
    """Bytes of one process of a run."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    copies: int
    """Bytes of the start model, for a method that evaluates other weights than it trains."""
    activations: int
    casts: int
    """Bytes of autocast's weights; with FSDP the gathered weights, and gradients being summed."""
    logits: int
    step: int
    """Temporary values of the optimiser."""
    evaluation: int
    """Hidden states, logits, copied or gathered weights; with `copies` also the trained weights."""
    keys: int
    """Keys and values of an evaluation with unlimited memory."""
    accumulated: bool
    """Gradients exist before activations: from the second micro-batch on."""

    @property
    def constant(self) -> int:
        """Bytes in use all the time."""
        return self.weights + self.optimizer + self.reference + self.copies

    @property
    def peak(self) -> int:
        """Peak bytes, without an evaluation's keys and values."""
        passing = self.activations + self.casts + self.logits
        # In the only micro-batch, gradients take the place of activations on the way back.
        before = self.gradients if self.accumulated else 0
        training = max(before + passing, self.gradients + self.step)
        return self.constant + max(training, self.evaluation)

    def to_json(self) -> dict[str, int]:
        """The parts and the peak in MiB."""
        parts = {k: v for k, v in asdict(self).items() if k != "accumulated"}
        return {name: round(value / 2**20) for name, value in (parts | {"peak": self.peak}).items()}


def footprint(shape: Shape, method: Method, needs: Needs, setup: Setup) -> Footprint:
    """Estimate the memory of one process of a run."""
    world, fsdp = setup.resources.world_size, setup.resources.parallel == "fsdp"
    share = world if fsdp else 1
    trained = shape.trained_bytes // share
    fused = setup.on_gpu and setup.optimizer == "adamw"
    scaled = method.update_scale() != 1
    buckets = shape.trained_bytes if world > 1 and not fsdp else 0
    tokens = _FORWARD_TOKENS if setup.on_gpu else 0
    item = 2 if setup.evaluated_in_half else shape.item
    # In fp32, and their log-softmax beside; four states of a token while a layer is at work.
    states = 8 * min(_LOGITS, tokens * shape.vocabulary) + 4 * tokens * shape.hidden * item
    return Footprint(
        weights=shape.weight_bytes // share,
        gradients=trained + buckets + 4 * setup.copies * shape.trained // share,
        optimizer=optimizer_bytes(shape, setup) // share,
        reference=_reference(shape, needs, setup),
        copies=trained if scaled else 0,
        activations=_activations(shape, setup),
        casts=_casts(shape, setup) if share == 1 else _gathered(shape, setup),
        logits=_logits(shape, needs, setup),
        step=0 if fused else 2 * shape.largest * shape.item // share,
        evaluation=states + _evaluation_weights(shape, setup, share) + (trained if scaled else 0),
        keys=_SLOT_BATCHES * tokens * shape.keys * item,
        accumulated=setup.accumulates,
    )


def _gathered(shape: Shape, setup: Setup) -> int:
    """Bytes of weights that FSDP gathers at a time, and of a layer's gradient being summed."""
    item, copied = (2, 2 * shape.output) if setup.autocast else (shape.item, 0)
    return 2 * item * shape.layer + _outer(shape) + copied + (item + 4) * shape.layer


def _outer(shape: Shape) -> int:
    """Bytes of the weights outside all layers, which FSDP gathers as they are stored."""
    return shape.item * max(shape.weights - shape.layers * shape.layer, 0)


def _evaluation_weights(shape: Shape, setup: Setup, share: int) -> int:
    """Bytes of additional copies of weights during an evaluation."""
    half = setup.evaluated_in_half and shape.item != 2
    if share == 1:
        return 2 * shape.matrices if half else 0
    gathered_in_half = half and setup.autocast
    layers = shape.layers * shape.layer * (2 if gathered_in_half else shape.item)
    copied = 2 * (shape.output if gathered_in_half else shape.matrices) if half else 0
    return layers + _outer(shape) + copied


def fitting(shape: Shape, method: Method, needs: Needs, setup: Setup, limit: int | None) -> Setup:
    """Choose the largest micro-batch whose peak is at most `limit` bytes.

    Returns `setup` unchanged where it states its rows or there is no limit, and one row where not
    even that fits.
    """
    if setup.micro_batch_size is not None or limit is None:
        return setup
    sizes = range(1, setup.items)

    def too_large(rows: int) -> bool:
        item = replace(setup, micro_batch_size=rows)
        return footprint(shape, method, needs, item).peak > limit

    if not too_large(setup.items):
        return setup  # may take less than fewer rows, which need gradients of earlier ones
    rows = bisect_left(sizes, True, key=too_large)  # how many are not too large
    return replace(setup, micro_batch_size=max(rows, 1))


def optimizer_bytes(shape: Shape, setup: Setup) -> int:
    """Bytes of the optimiser's states on the device."""
    each = _OPTIMISER_BYTES.get(setup.optimizer)
    return 2 * shape.trained_bytes if each is None else each * shape.trained


def _reference(shape: Shape, needs: Needs, setup: Setup) -> int:
    """Bytes on the device; values of rows known in advance are in the host's memory."""
    result = 0
    if "sample" in needs.reference:
        result += shape.weight_bytes
    scored = setup.items * setup.rows_per_item * setup.lengths.scored
    if needs.distributions - {"sample"}:
        result += shape.output * shape.item
    width = len(needs.states and needs.layers) + bool(needs.distributions)
    return result + round(scored * width * shape.hidden * shape.item)


def _activations(shape: Shape, setup: Setup) -> int:
    rows, tokens = setup.items * setup.rows_per_item, setup.tokens
    each = shape.row_bytes / shape.width
    # Only attention is padded, and its outputs exist with and without padding.
    padded = rows * setup.lengths.longest - tokens
    beside = (padded * shape.attention + tokens * shape.queries) * shape.attention_item
    every = tokens * each + beside
    if setup.checkpointing:
        return round(tokens * shape.layers * shape.hidden * shape.item + every / shape.layers)
    return round(every)


def _casts(shape: Shape, setup: Setup) -> int:
    # Copies of trained weights last as long as a forward pass; checkpointing frees the others'.
    if setup.checkpointing and shape.trained < shape.weights:
        return shape.cast_bytes // shape.layers
    return shape.cast_bytes


def _logits(shape: Shape, needs: Needs, setup: Setup) -> int:
    scored = setup.items * setup.rows_per_item * setup.lengths.scored
    every = round(scored * shape.vocabulary * 4)
    if needs.logits:
        return 3 * every  # themselves, their log-softmax, their gradient
    exact = shape.output * 4
    chunk = min(every, CHUNK_BYTES)
    half = setup.autocast or shape.item == 2
    # In half precision: the chunk once more, and the output layer's weights.
    chunk += (chunk // 2 + shape.output * 2) if half else 0
    # A loss of several parts sums the output layer's gradient for each on its way forward.
    return chunk + (min(setup.rows_per_item, 2) * exact if shape.output_trained else 0)
