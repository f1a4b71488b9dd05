"""Estimate a run's GPU memory from shapes, before anything is loaded.

The peak of a run is the largest of three moments: the end of a forward pass, the step of the
optimiser, and an evaluation (`Footprint.peak`). What is in use all the time comes on top: weights,
optimiser states and references.

The sizes of a model come from `model_shape.py`, the lengths of rows from `run_estimate.py`. All
sizes are in bytes. docs/tutorials/run-on-a-cluster.md explains the estimate in words.
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

# These three repeat limits of evaluation/predictor.py.
_FORWARD_TOKENS = 16384
"""Tokens of a batch of an evaluation on a GPU."""
_SLOT_BATCHES = 16
"""Largest number of such batches whose keys and values are cached."""
_LOGITS = 2**27
"""Largest number of logits that are in memory at once."""

_FP32 = 4
_HALF = 2
"""Bytes of a number in fp32, and in bf16 or fp16."""
_STATE_BYTES_PER_WEIGHT = {"adamw-8bit": 2, "paged-adamw-8bit": 0}
"""Bytes of the optimiser's states on the device for each trained weight, if they do not have the
weight's precision. The states of a paged optimiser are in the host's memory."""


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
        tokens = [row_tokens for row_tokens, _ in rows]
        scored_tokens = [scored for _, scored in rows]
        return cls(fmean(tokens), pstdev(tokens), max(tokens), fmean(scored_tokens))


@dataclass(frozen=True)
class Setup:
    """The settings of a run that its memory and time depend on.

    An item is a forget row with the rows that go through the model for it, such as a retain row.
    """

    batch_size: int
    """Items of a step, over all processes."""
    micro_batch_size: int | None
    """Most items that a process takes at a time. None for all of its items of a step."""
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
    def _items_of_step(self) -> int:
        """Items of a step in one process."""
        return math.ceil(self.batch_size / self.resources.world_size)

    @property
    def items(self) -> int:
        """Items of a micro-batch in one process."""
        return min(self.micro_batch_size or self._items_of_step, self._items_of_step)

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-batches."""
        return self.items < self._items_of_step

    @property
    def tokens(self) -> int:
        """Tokens of the largest micro-batch, packed.

        The largest of a hundred sums of n draws is about three deviations above the mean sum.
        """
        n = self.items * self.rows_per_item
        likely_largest = n * self.lengths.mean + 3 * math.sqrt(n) * self.lengths.deviation
        return round(min(likely_largest, n * self.lengths.longest))


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
    """Weights that autocast copies. With FSDP, gathered weights and gradients being summed."""
    logits: int
    step: int
    """Temporary values of the optimiser."""
    evaluation: int
    """Hidden states, logits, copied or gathered weights. With `copies` also the trained weights."""
    keys: int
    """Keys and values of an evaluation with unlimited memory."""
    accumulated: bool
    """Whether gradients exist before activations do: from the second micro-batch on."""

    @property
    def constant(self) -> int:
        """Bytes in use all the time."""
        return self.weights + self.optimizer + self.reference + self.copies

    @property
    def peak(self) -> int:
        """Peak bytes, without an evaluation's keys and values."""
        forward = self.activations + self.casts + self.logits
        # In the only micro-batch, gradients take the place of activations in the backward pass.
        earlier_gradients = self.gradients if self.accumulated else 0
        training = max(earlier_gradients + forward, self.gradients + self.step)
        return self.constant + max(training, self.evaluation)

    def to_json(self) -> dict[str, int]:
        """Return the parts and the peak in MiB."""
        sizes = asdict(self)
        del sizes["accumulated"]
        sizes["peak"] = self.peak
        return {name: round(size / 2**20) for name, size in sizes.items()}


def footprint(shape: Shape, method: Method, needs: Needs, setup: Setup) -> Footprint:
    """Estimate the memory of one process of a run."""
    world_size = setup.resources.world_size
    uses_fsdp = setup.resources.parallel == "fsdp"
    # FSDP divides weights, gradients and optimiser states among the processes.
    shards = world_size if uses_fsdp else 1
    trained = shape.trained_bytes // shards
    # DDP sums gradients between processes in buckets, which repeat all of them.
    buckets = shape.trained_bytes if world_size > 1 and not uses_fsdp else 0
    modifier_tensors = _FP32 * setup.copies * shape.trained // shards
    # A fused optimiser updates all weights at once, without temporary values.
    is_fused = setup.on_gpu and setup.optimizer == "adamw"
    evaluates_other_weights = method.update_scale() != 1

    evaluation_tokens = _FORWARD_TOKENS if setup.on_gpu else 0
    element_bytes = _HALF if setup.evaluated_in_half else shape.element_bytes
    # Logits are in fp32, and so is the log-softmax beside them.
    logits = 2 * _FP32 * min(_LOGITS, evaluation_tokens * shape.vocabulary)
    # While a layer is at work, a token has four states.
    states = 4 * evaluation_tokens * shape.hidden * element_bytes
    evaluation = logits + states + _evaluation_weights(shape, setup, shards)
    return Footprint(
        weights=shape.weight_bytes // shards,
        gradients=trained + buckets + modifier_tensors,
        optimizer=optimizer_bytes(shape, setup) // shards,
        reference=_reference(shape, needs, setup),
        copies=trained if evaluates_other_weights else 0,
        activations=_activations(shape, setup),
        casts=_casts(shape, setup) if shards == 1 else _gathered(shape, setup),
        logits=_logits(shape, needs, setup),
        step=0 if is_fused else 2 * shape.largest_weight * shape.element_bytes // shards,
        evaluation=evaluation + (trained if evaluates_other_weights else 0),
        keys=_SLOT_BATCHES * evaluation_tokens * shape.cache_width * element_bytes,
        accumulated=setup.accumulates,
    )


def _gathered(shape: Shape, setup: Setup) -> int:
    """Return the bytes of weights that FSDP gathers at a time, and of gradients being summed."""
    element_bytes = _HALF if setup.autocast else shape.element_bytes
    # The next layer is gathered while one is at work.
    layers = 2 * element_bytes * shape.largest_layer
    # Autocast copies the output layer.
    output_copy = _HALF * shape.output_weights if setup.autocast else 0
    # A layer's gradient is summed between processes in fp32.
    gradient = (element_bytes + _FP32) * shape.largest_layer
    return layers + _outside_layers(shape) + output_copy + gradient


def _outside_layers(shape: Shape) -> int:
    """Return the bytes of the weights outside all layers, which FSDP gathers as stored."""
    outside = shape.weights - shape.layers * shape.largest_layer
    return shape.element_bytes * max(outside, 0)


def _evaluation_weights(shape: Shape, setup: Setup, shards: int) -> int:
    """Return the bytes of additional copies of weights during an evaluation."""
    is_copied_to_half = setup.evaluated_in_half and shape.element_bytes != _HALF
    if shards == 1:
        return _HALF * shape.matrices if is_copied_to_half else 0
    # With autocast, FSDP gathers layers in half precision, and only the output layer is copied.
    gathers_half = is_copied_to_half and setup.autocast
    layers = shape.layers * shape.largest_layer * (_HALF if gathers_half else shape.element_bytes)
    copied = 0
    if is_copied_to_half:
        copied = _HALF * (shape.output_weights if gathers_half else shape.matrices)
    return layers + _outside_layers(shape) + copied


def fitting(shape: Shape, method: Method, needs: Needs, setup: Setup, limit: int | None) -> Setup:
    """Choose the largest micro-batch whose peak fits into memory.

    Args:
        shape: Sizes of the model.
        method: Method of the run.
        needs: Inputs of its loss and its retain term.
        setup: Settings of the run.
        limit: Bytes that a process may use. None for no limit.

    Returns:
        The settings with a micro-batch size. They are unchanged if they state one, if there is no
        limit, or if a whole step fits. The size is 1 if not even one item fits.
    """
    if setup.micro_batch_size is not None or limit is None:
        return setup

    def is_too_large(items: int) -> bool:
        smaller = replace(setup, micro_batch_size=items)
        return footprint(shape, method, needs, smaller).peak > limit

    # A whole step may need less memory than several micro-batches, because these keep the gradients
    # of earlier ones. It is therefore tried by itself.
    if not is_too_large(setup.items):
        return setup
    sizes = range(1, setup.items)
    # The sizes begin at 1, so the index of the first size that is too large is the largest fit.
    largest = bisect_left(sizes, True, key=is_too_large)
    return replace(setup, micro_batch_size=max(largest, 1))


def optimizer_bytes(shape: Shape, setup: Setup) -> int:
    """Return the bytes of the optimiser's states on the device, over all processes."""
    per_weight = _STATE_BYTES_PER_WEIGHT.get(setup.optimizer)
    if per_weight is None:
        # Adam's two moments have the precision of the weights.
        return 2 * shape.trained_bytes
    return per_weight * shape.trained


def _reference(shape: Shape, needs: Needs, setup: Setup) -> int:
    """Return the bytes that values under the frozen start model take on the device.

    Values of rows that are known in advance are in the host's memory. Only those of a micro-batch
    are on the device.
    """
    # Sampled answers are not known in advance, so the start model itself has to stay.
    start_model = shape.weight_bytes if "sample" in needs.reference else 0
    # Distributions are computed again, from hidden states and the start model's output layer.
    has_output_layer = bool(needs.distributions - {"sample"})
    output_layer = shape.output_weights * shape.element_bytes if has_output_layer else 0
    states_per_token = len(needs.layers) if needs.states else 0
    if needs.distributions:
        states_per_token += 1
    states = _scored_tokens(setup) * states_per_token * shape.hidden * shape.element_bytes
    return start_model + output_layer + round(states)


def _scored_tokens(setup: Setup) -> float:
    """Return the scored tokens of a micro-batch."""
    return setup.items * setup.rows_per_item * setup.lengths.scored


def _activations(shape: Shape, setup: Setup) -> int:
    """Return the bytes that a forward pass keeps for the backward pass."""
    rows = setup.items * setup.rows_per_item
    per_token = shape.row_bytes / shape.width
    # Rows are packed, and padded only for attention, whose outputs exist with and without padding.
    padding = rows * setup.lengths.longest - setup.tokens
    attention_width = padding * shape.attention_width + setup.tokens * shape.attention_output_width
    all_layers = setup.tokens * per_token + attention_width * shape.attention_element_bytes
    if setup.checkpointing:
        # The inputs of all layers are kept, and the activations of the layer at work.
        layer_inputs = setup.tokens * shape.layers * shape.hidden * shape.element_bytes
        return round(layer_inputs + all_layers / shape.layers)
    return round(all_layers)


def _casts(shape: Shape, setup: Setup) -> int:
    """Return the bytes of the weights that autocast copies, without FSDP."""
    # Copies of trained weights last as long as the forward pass. Checkpointing frees the copies of
    # frozen weights after each layer.
    if setup.checkpointing and shape.trained < shape.weights:
        return shape.cast_bytes // shape.layers
    return shape.cast_bytes


def _logits(shape: Shape, needs: Needs, setup: Setup) -> int:
    """Return the bytes of logits and of the output layer's gradient, see `losses/chunked.py`."""
    logits = round(_scored_tokens(setup) * shape.vocabulary * _FP32)
    if needs.logits:
        # The logits of all tokens, their log-softmax and their gradient.
        return 3 * logits
    chunk = min(logits, CHUNK_BYTES)
    total = chunk
    if setup.autocast or shape.element_bytes == _HALF:
        # The chunk and the output layer's weights exist once more, in half precision.
        total += chunk // 2 + shape.output_weights * _HALF
    if shape.output_trained:
        # A loss of several parts sums a gradient for each on its way forward.
        gradient_count = min(setup.rows_per_item, 2)
        total += gradient_count * shape.output_weights * _FP32
    return total
