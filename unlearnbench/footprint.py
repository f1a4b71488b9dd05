"""What a run takes of a GPU's memory and time: an estimate from shapes, before anything is loaded.

Pure: the sizes come from `models/skeleton.py`, the lengths of rows from whoever knows them.
`FORMULA` says in words what is computed; bytes throughout.
"""

from __future__ import annotations

import inspect
import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, pstdev

from unlearnbench.execution import Resources
from unlearnbench.fused import CHUNK_BYTES
from unlearnbench.method import Method, Needs
from unlearnbench.models.skeleton import Shape

FORMULA = """\
held         weights + optimiser (AdamW 2 values a trained weight; 8-bit 2 bytes; paged none: its
             2 bytes are in the host's memory where the GPU's is short) + a copy of the start (task
             vector) + what the reference needs on the device (the output layer where distributions
             are read; the whole start model where samples are judged)
a step       held + gradients + the larger of
             · activations (what the layers save for the way back: rows of one micro-batch, all
               parts together, without padding; with gradient checkpointing one state a layer
               and one layer's activations) + weights that autocast copies + logits (256 MiB
               at a time and the output layer's gradient; all of them where a method reads .logits)
             · what the optimiser computes beside (8-bit: what one weight needs; AdamW on a GPU is
               one kernel that computes in place)
evaluation   held without gradients + hidden states and logits of a batch + weights that autocast
             copies, where fp32 weights are evaluated in bf16 (on a GPU by default); keys and
             values take as much as is free, 70 % of it at most, and are not in the sum
peak         the larger of the two. Several processes: FSDP divides weights, gradients, optimiser
             and copies by their number; beside them are two layers, whole and in the precision of
             training, what is in no layer, and a layer's gradient on its way to the sum; for an
             evaluation all weights, whole on each process. DDP divides nothing
hours        the sum of
             · training: FLOP, or the time to launch the kernels of each micro-batch where that is
               longer, and the optimiser's reads and writes of 28 bytes a trained weight. A token
               takes 2·N forward + 2·N back + 2·trained (6·N where all is trained), and 2·N more
               with gradient checkpointing; N without the table of embeddings
             · scoring: 2·N FLOP a token, a prompt once for all of its answers
             · decoding: steps × the longer of a step's launches and of reading the weights and
               computing a token a slot; half of the answers go on to their limit. Slots share 70 %
               of what is free beside what an evaluation holds
             · loading: the weights in two bytes each
             · checkpoints: one for every ten times of its own length that the run takes
             FLOP/s are those of bf16; what is done in fp32 has an eighth of them"""

_FORWARD_TOKENS = 16384  # evaluation/prediction.py: of a batch on a GPU
_SLOT_BATCHES = 4  # likewise: of which keys and values are kept at most
_LOGITS = 2**27  # likewise: at most of a chunk
_SLOWER = 8  # fp32 against bf16: 67 of 989 TFLOP/s on an H100, of which a larger share is reached
_BANDWIDTH = 2e12  # bytes/s of a GPU's memory: 3.35e12 of an H100, of which a share is reached
_LAUNCHED = 1.25e-3  # seconds a layer to launch forward and back of a micro-batch
_DECODED = 0.6e-3  # seconds a layer to launch a step of decoding
_LOADED = 2e9  # bytes/s of a model's files
_SAVED = 250e6  # bytes/s of a checkpoint, as `checkpoint.py` expects before it has measured one
_UPDATED = 28  # bytes an optimiser reads and writes for a weight in fp32
_FREE = 0.7  # of free memory, for keys and values
ASSUMED = (
    f"{_BANDWIDTH / 1e12:g} TB/s of a GPU's memory, {_LOADED / 1e9:g} GB/s of a model's files, "
    f"{_SAVED / 1e9:g} GB/s of a checkpoint, {1e3 * _LAUNCHED:g} ms a layer to launch a "
    f"micro-batch and {1e3 * _DECODED:g} ms a step of decoding"
)
"""What `FORMULA` counts hours with."""
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
    evaluated_in_bf16: bool = True

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
class Budget:
    """The most that goes through the model at once."""

    rows: int
    """Forget rows, of usual length."""
    tokens: int | None = None
    """Of these rows and the other parts, which count in place of rows; None where rows are padded.
    A single row may have more."""


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
    """Of weights, by autocast; with FSDP what is whole for a time, and what is summed."""
    logits: int
    step: int
    """What the optimiser computes beside."""
    evaluation: int
    """Hidden states, logits, weights that are copied or gathered for it; with `copies`, the
    trained weights put aside."""
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
    fused = setup.on_gpu and setup.optimizer == "adamw"
    scaled = method.update_scale() != 1
    buckets = shape.trained_bytes if world > 1 and not fsdp else 0
    tokens = _FORWARD_TOKENS if setup.on_gpu else 0
    item = 2 if setup.evaluated_in_bf16 else shape.item
    # In fp32, and their log-softmax beside; four states of a token while a layer is at work.
    judged = 8 * min(_LOGITS, tokens * shape.vocabulary) + 4 * tokens * shape.hidden * item
    return Footprint(
        weights=shape.weight_bytes // share,
        gradients=trained + buckets,
        optimizer=_optimizer(shape, setup) // share,
        reference=_reference(shape, needs, setup),
        copies=trained if scaled else 0,
        activations=_activations(shape, setup),
        casts=_casts(shape, setup) if share == 1 else _together(shape, setup),
        logits=_logits(shape, method, setup),
        step=0 if fused else 2 * shape.largest * shape.item // share,
        evaluation=judged + _judged_weights(shape, setup, share) + (trained if scaled else 0),
        keys=_SLOT_BATCHES * tokens * shape.keys * item,
        accumulated=setup.accumulates,
    )


def _together(shape: Shape, setup: Setup) -> int:
    """Weights that FSDP has whole at a time, and what a layer's gradient needs to be summed."""
    item, copied = (2, 2 * shape.output) if setup.autocast else (shape.item, 0)
    return 2 * item * shape.layer + _outer(shape) + copied + (item + 4) * shape.layer


def _outer(shape: Shape) -> int:
    """Bytes of the weights that are in no layer, which FSDP gathers as they are stored."""
    return shape.item * max(shape.weights - shape.layers * shape.layer, 0)


def _judged_weights(shape: Shape, setup: Setup, share: int) -> int:
    """Bytes of weights beside those that are held, while the model is evaluated."""
    half = setup.evaluated_in_bf16 and shape.item != 2
    if share == 1:
        return 2 * shape.matrices if half else 0
    gathered_in_half = half and setup.autocast
    layers = shape.layers * shape.layer * (2 if gathered_in_half else shape.item)
    copied = 2 * (shape.output if gathered_in_half else shape.matrices) if half else 0
    return layers + _outer(shape) + copied


def fitting(shape: Shape, method: Method, needs: Needs, setup: Setup, limit: int | None) -> Setup:
    """`setup` with the most rows of a step at a time whose peak is at most `limit` bytes.

    As it is where it states its rows or nothing limits it; with one row where not even that fits.
    """
    if setup.micro_batch_size is not None or limit is None:
        return setup
    sizes = range(1, setup.items)

    def too_large(rows: int) -> bool:
        one = replace(setup, micro_batch_size=rows)
        return footprint(shape, method, needs, one).peak > limit

    if not too_large(setup.items):
        return setup  # may take less than fewer rows, which hold gradients from earlier ones
    rows = bisect_left(sizes, True, key=too_large)  # how many are not too large
    return replace(setup, micro_batch_size=max(rows, 1))


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
class Hours:
    """Of a run, by what they are spent on."""

    training: float
    scoring: float
    decoding: float
    loading: float
    checkpoints: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.training + self.scoring + self.decoding + self.loading + self.checkpoints


@dataclass(frozen=True)
class Effort:
    """What a run does."""

    trained: float
    """Tokens, with all parts."""
    steps: int
    """Of the optimiser."""
    evaluations: int
    scored: float
    """Tokens of an evaluation that go through the model at once."""
    answers: int
    """That are decoded in an evaluation."""
    decoded: float
    """Tokens of such an answer, on average."""
    limit: int
    """Tokens that one has at most."""
    text: float
    """Tokens of a slot: prompt and answer."""

    def flop(self, shape: Shape, *, checkpointing: bool) -> float:
        """Floating-point operations of training, see `FORMULA`."""
        n = shape.matrices
        return self.trained * ((6 if checkpointing else 4) * n + 2 * min(shape.trained, n))

    def hours(
        self, shape: Shape, setup: Setup, memory: Footprint, flops: float, limit: int | None
    ) -> Hours:
        """Of a run, at `flops` operations a second of each process in bf16.

        limit  bytes that a process may take; None where nothing limits it
        """
        world, n = setup.resources.world, shape.matrices
        trained_at = flops / (1 if setup.autocast or shape.item == 2 else _SLOWER)
        judged_at = flops / (1 if setup.evaluated_in_bf16 or shape.item == 2 else _SLOWER)
        passes = self.steps * math.ceil(setup.batch_size / world / setup.items)
        training = self.flop(shape, checkpointing=setup.checkpointing) / trained_at / world
        if setup.on_gpu:
            training = max(training, passes * shape.layers * _LAUNCHED)
            training += self.steps * _UPDATED * shape.trained / world / _BANDWIDTH
        scoring = self.evaluations * self.scored * 2 * n / judged_at / world
        decoding = self.evaluations * self._decoding(shape, setup, memory, judged_at, limit)
        loading = 2 * shape.weights / _LOADED
        save = (shape.trained_bytes + _optimizer(shape, setup)) / _SAVED
        saves = int((training + scoring + decoding) / (10 * save))
        parts = (training, scoring, decoding, loading, saves * save)
        return Hours(*(seconds / 3600 for seconds in parts))

    def _decoding(
        self, shape: Shape, setup: Setup, memory: Footprint, flops: float, limit: int | None
    ) -> float:
        """Seconds of one evaluation."""
        answers = math.ceil(self.answers / setup.resources.world)
        item = 2 if setup.evaluated_in_bf16 else shape.item
        slots = answers
        if limit is not None:
            free = _FREE * max(limit - memory.held - memory.evaluation, 0)
            slots = min(max(int(free / (self.text * shape.keys * item)), 1), answers)
        steps = max(answers * self.decoded / slots, self.limit)
        step = 2 * slots * shape.matrices / flops
        if setup.on_gpu:
            step = max(step + item * shape.matrices / _BANDWIDTH, shape.layers * _DECODED)
        return steps * step


def rows_of_item(needs: Needs) -> int:
    """Rows that go through the model, forward and back, for each forget row."""
    samples = needs.samples.count if needs.samples and "sample" in needs.parts else 1
    return len(needs.parts - {"sample"}) + ("sample" in needs.parts) * samples
