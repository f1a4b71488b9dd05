"""What a run takes of a GPU's memory and time: an estimate from shapes, before anything is loaded.

Pure: the sizes come from `models/skeleton.py`, the lengths of rows from whoever knows them.
`FORMULA` says in words what is computed; bytes throughout.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev

from unlearnbench.execution import Resources
from unlearnbench.fused import CHUNK_BYTES
from unlearnbench.method import Method, Needs
from unlearnbench.models.skeleton import Shape

FORMULA = """\
held         weights + optimiser (AdamW 2 values a trained weight; 8-bit 2 bytes; paged none) +
             a copy of the start (task vector) + what the reference needs on the device (the output
             layer where distributions are read; the whole start model where samples are judged)
a step       held + gradients + the larger of
             · activations (what the layers save for the way back: rows of one micro-batch, all
               parts together, without padding; with gradient checkpointing one state a layer
               and one layer's activations) + weights that autocast copies + logits (256 MiB
               at a time and the output layer's gradient; all of them where a method reads .logits)
             · what the optimiser computes beside (AdamW on a GPU: one more value a trained weight)
evaluation   held without gradients + hidden states and logits of a batch; keys and values take as
             much as is free, 70 % of it at most, and are not in the sum
peak         the larger of the two. Several processes: FSDP divides weights, gradients, optimiser
             and copies by their number and puts two layers together at a time; DDP divides none
hours        FLOP / (FLOP/s of a process × processes), of which a token that is trained on takes
             2·N forward + 2·N back + 2·trained (6·N where all is trained), and 2·N more with
             gradient checkpointing; an evaluated token 2·N; N without the table of embeddings.
             FLOP/s are those of bf16; what is done in fp32 (evaluating weights that are held in it,
             training without autocast) has an eighth of them"""

_FORWARD_TOKENS = 16384  # evaluation/prediction.py: of a batch on a GPU
_LOGITS = 2**27  # likewise: at most of a chunk
_SLOWER = 8  # fp32 against bf16: 67 of 989 TFLOP/s on an H100, of which a larger share is reached
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
        """From (tokens, scored tokens) of each row; there must be one at least."""
        tokens = [one for one, _ in rows]
        return cls(fmean(tokens), pstdev(tokens), max(tokens), fmean(s for _, s in rows))


@dataclass(frozen=True)
class Setup:
    """How a run is carried out, as far as memory and time depend on it."""

    batch_size: int
    micro_batch_size: int | None
    rows_of_item: int
    """Rows that go through the model for a forget row: one for each part, or sample."""
    lengths: Lengths
    autocast: bool
    checkpointing: bool
    optimizer: str
    resources: Resources
    on_gpu: bool = True

    @property
    def items(self) -> int:
        """Forget rows of a micro-batch of one process."""
        mine = math.ceil(self.batch_size / self.resources.world)
        return min(self.micro_batch_size or mine, mine)

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-batches."""
        return self.items < math.ceil(self.batch_size / self.resources.world)

    @property
    def tokens(self) -> int:
        """Of the largest micro-batch, packed.

        Of a hundred sums of n draws the largest is about three deviations above the mean.
        """
        n, how = self.items * self.rows_of_item, self.lengths
        return round(min(n * how.mean + 3 * math.sqrt(n) * how.deviation, n * how.longest))


@dataclass(frozen=True)
class Footprint:
    """Bytes of one process of a run."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    copies: int
    """Of the start, for a method that evaluates other weights than it trains."""
    activations: int
    casts: int
    """Of weights, by autocast and by FSDP."""
    logits: int
    step: int
    """What the optimiser computes beside."""
    evaluation: int
    """Hidden states and logits; with `copies`, the trained weights put aside."""
    keys: int
    """Keys and values of an evaluation that has all the memory it could use."""
    accumulated: bool
    """Whether gradients are there before activations: from the second micro-batch on."""

    @property
    def held(self) -> int:
        """All the time."""
        return self.weights + self.optimizer + self.reference + self.copies

    @property
    def peak(self) -> int:
        """At most, at any time; without an evaluation's keys and values."""
        passing = self.activations + self.casts + self.logits
        # In the only micro-batch, gradients take the place of activations on the way back.
        before = self.gradients if self.accumulated else 0
        training = max(before + passing, self.gradients + self.step)
        return self.held + max(training, self.evaluation)

    def to_json(self) -> dict[str, int]:
        """Every part, and the peak, in MiB."""
        parts = {k: v for k, v in asdict(self).items() if k != "accumulated"}
        return {name: round(value / 2**20) for name, value in (parts | {"peak": self.peak}).items()}


def footprint(shape: Shape, method: Method, needs: Needs, setup: Setup) -> Footprint:
    """The memory of one process of a run, see `FORMULA`."""
    world, fsdp = setup.resources.world, setup.resources.parallel == "fsdp"
    share = world if fsdp else 1
    trained = shape.trained_bytes // share
    element = setup.on_gpu and setup.optimizer == "adamw"
    scaled = method.update_scale() != 1
    together = 2 * shape.layer * (2 if setup.autocast else shape.item) if share > 1 else 0
    buckets = shape.trained_bytes if world > 1 and not fsdp else 0
    tokens = _FORWARD_TOKENS if setup.on_gpu else 0
    # In fp32, and their log-softmax beside; four states of a token while a layer is at work.
    judged = 8 * min(_LOGITS, tokens * shape.vocabulary) + 4 * tokens * shape.hidden * shape.item
    return Footprint(
        weights=shape.weight_bytes // share,
        gradients=trained + buckets,
        optimizer=_optimizer(shape, setup) // share,
        reference=_reference(shape, needs, setup),
        copies=trained if scaled else 0,
        activations=_activations(shape, setup),
        casts=_casts(shape, setup) // share + together,
        logits=_logits(shape, method, setup),
        step=trained if element else 2 * shape.largest * shape.item // share,
        evaluation=judged + (trained if scaled else 0),
        keys=4 * tokens * shape.keys * shape.item,
        accumulated=setup.accumulates,
    )


def _optimizer(shape: Shape, setup: Setup) -> int:
    each = _OPTIMISER_BYTES.get(setup.optimizer)
    return 2 * shape.trained_bytes if each is None else each * shape.trained


def _reference(shape: Shape, needs: Needs, setup: Setup) -> int:
    """On the device; what is kept of rows that are known beforehand lies in the host's memory."""
    found = 0
    if "sample" in needs.reference:
        found += shape.weight_bytes
    scored = setup.items * setup.rows_of_item * setup.lengths.scored
    if needs.distributions - {"sample"}:
        found += shape.output * shape.item
    width = len(needs.states and needs.layers) + bool(needs.distributions)
    return found + round(scored * width * shape.hidden * shape.item)


def _activations(shape: Shape, setup: Setup) -> int:
    rows, tokens = setup.items * setup.rows_of_item, setup.tokens
    each = shape.row_bytes / shape.width
    # Attention alone sees padding, and its outputs are there with and without it.
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


def _logits(shape: Shape, method: Method, setup: Setup) -> int:
    scored = setup.items * setup.rows_of_item * setup.lengths.scored
    every = round(scored * shape.vocabulary * 4)
    if reads_logits(method):
        return 3 * every  # themselves, their log-softmax, their gradient
    exact = shape.output * 4
    chunk = min(every, CHUNK_BYTES)
    half = setup.autocast or shape.item == 2
    # In half precision: the chunk once more, and the output layer's weights.
    chunk += (chunk // 2 + shape.output * 2) if half else 0
    # A loss of several parts sums the output layer's gradient for each on its way forward.
    return chunk + (min(setup.rows_of_item, 2) * exact if shape.output_trained else 0)


def reads_logits(method: Method) -> bool:
    """Whether the file that `method` is written in reads `.logits`: it holds them all at once."""
    try:
        source = inspect.getsource(inspect.getmodule(type(method)) or type(method))
    except (OSError, TypeError):
        return False
    return re.search(r"\.logits\b", source) is not None


@dataclass(frozen=True)
class Effort:
    """What a run computes, in tokens."""

    trained: float
    evaluated: float

    def flop(self, shape: Shape, *, checkpointing: bool) -> tuple[float, float]:
        """Floating-point operations of training and of evaluating, see `FORMULA`."""
        n = shape.matrices
        each = (6 if checkpointing else 4) * n + 2 * min(shape.trained, n)
        return self.trained * each, self.evaluated * 2 * n

    def hours(self, shape: Shape, setup: Setup, flops: float) -> float:
        """Of a run, at `flops` operations a second of each process in bf16."""
        training, evaluating = self.flop(shape, checkpointing=setup.checkpointing)
        held = 1 if shape.item == 2 else _SLOWER
        seconds = (training * (1 if setup.autocast else held) + evaluating * held) / flops
        return seconds / setup.resources.world / 3600


def rows_of_item(needs: Needs) -> int:
    """Rows that go through the model, forward and back, for each forget row."""
    samples = needs.samples.count if needs.samples and "sample" in needs.parts else 1
    return len(needs.parts - {"sample"}) + ("sample" in needs.parts) * samples
