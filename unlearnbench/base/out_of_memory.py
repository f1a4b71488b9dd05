"""Retry work that ran out of memory in smaller portions, with the same numbers, and note it.

A step is repeated from its beginning with half the rows at a time. Its sums divide by the counts of
the whole step, so only rounding differs. A size that did not fit is not tried again, neither later
in the run nor by a process that resumes it.
"""

import ctypes
import gc
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from unlearnbench.base.atomic import write_text
from unlearnbench.base.distributed import all_gather, rank, world_size
from unlearnbench.base.errors import EvaluationError, StartOverError, TrainingError

FILE = "memory.json"
FEWEST_TOKENS = 64
"""Smallest batch of an evaluation, as in the configuration."""

_SIGNS = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
"""Messages of libraries below torch, whose errors have no type of their own."""

_TRIMMED = 2**30
"""Bytes of a process from which on freed memory is returned."""

T = TypeVar("T")
Item = TypeVar("Item")


class ShortMemoryError(TrainingError):
    """A step does not fit into memory, however few rows are computed at a time."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a device or the host."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


class OomRetry:
    """Sizes that fit into memory, halved where they did not."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows
        """Forget rows of a micro-batch; None: all of a step."""
        self.batch_tokens: int | None = None
        """Tokens of an evaluation's batch; None: its own choice."""
        self.seen: list[dict[str, Any]] = []
        """Each time that a size was halved: step or epoch, size before and after."""
        self._file: Path | None = None

    def persist(self, folder: Path) -> None:
        """Load what earlier processes noted in `folder`, and note there from now on.

        Collective: each rank may have a folder of its own; all continue with the smallest sizes.
        """
        self._file = folder / FILE
        noted = [result for result in all_gather(_noted(self._file)) if result is not None]
        if not noted:
            return
        self.rows = min((rows for rows, _, _ in noted if rows), default=None)
        self.batch_tokens = min((tokens for _, tokens, _ in noted if tokens), default=None)
        for subject in (subject for _, _, seen in noted for subject in seen):
            if subject not in self.seen:
                self.seen.append(subject)
        if world_size() > 1:
            self._write()

    def step(
        self,
        work: Callable[[], T],
        undo: Callable[[], None],
        *,
        number: int,
        rows: int,
        alone: bool,
    ) -> T:
        """Compute `work`, the gradient of step `number`; halve `self.rows` until it fits.

        undo   discard the result of a part of the step
        rows   of this process in the step
        alone  no other process takes part. Else the others may wait in a collective for this one,
               so it cannot repeat its step: it notes the smaller size and ends the attempt.

        Raises: ShortMemoryError where a single row does not fit; StartOverError unless `alone`.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                before = max(min(self.rows or rows, rows), 1)
                if before == 1:
                    raise ShortMemoryError(  # noqa: B904
                        _TOO_LITTLE.format(number=number, error=_line(error))
                    )
                self.rows = (before + 1) // 2
                self._note({"step": number, "from": before, "to": self.rows})
                if not alone:
                    raise StartOverError(  # noqa: B904
                        f"step {number}: out of memory with {before} rows at a time in a process "
                        f"({_line(error)}); {self.rows} are noted: start the same command again",
                        self.rows,
                    )
            # Outside the handler, since the error references the frames with the tensors.
            undo()
            empty_cache()

    def evaluation(self, epoch: int, before: int | None, after: int | None) -> None:
        """Note an evaluation that reduced its batches from `before` to `after` tokens."""
        if after != before:
            self.batch_tokens = after
            self._note({"evaluation": epoch, "from": before, "to": after})

    def _note(self, subject: dict[str, Any]) -> None:
        self.seen.append(subject)
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        noted = {"rows": self.rows, "batch_tokens": self.batch_tokens, "seen": self.seen}
        write_text(self._file, json.dumps(noted))


def _noted(file: Path) -> tuple[int | None, int | None, list[dict[str, Any]]] | None:
    """Read rows, tokens and what was seen; None if there is no file or it is damaged."""
    try:
        noted = json.loads(file.read_text())
        return noted["rows"], noted["batch_tokens"], list(noted["seen"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def optimizer_oom(number: int) -> Generator[None, None, None]:
    """Raise a ShortMemoryError with a fix where the optimiser of step `number` is short of it."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ShortMemoryError(
            f"step {number}: out of memory in the optimiser ({_line(error)}), whatever the "
            f"micro-batch; set {_REMEDIES}"
        ) from None


_REMEDIES = (
    "resources.gpu: 2 or more, which shards the model and AdamW's state, or on one GPU "
    "training.optimizer: paged-adamw-8bit, or lora or dtype: bfloat16 for the model"
)
_TOO_LITTLE = (
    "step {number}: out of memory with one row at a time ({error}); set gradient_checkpointing: "
    f"true or a shorter training.max_length, {_REMEDIES}"
)


def retry_with_fewer_tokens(work: Callable[[int], T], tokens: int) -> tuple[T, int]:
    """Call `work` with `tokens`, and with half of that each time it runs out of memory.

    In a group, it has to run out in all processes at once, see `raise_oom_everywhere`.
    Returns the result of `work`, and the tokens that it was called with.
    Raises: EvaluationError where `FEWEST_TOKENS` do not fit.
    """
    while True:
        try:
            return work(tokens), tokens
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if tokens // 2 < FEWEST_TOKENS:
                raise EvaluationError(  # noqa: B904
                    f"out of memory with batches of {tokens} tokens ({_line(error)}); evaluate on "
                    "a device with more memory, or set dtype: bfloat16 for the model"
                )
        tokens //= 2
        empty_cache()


def raise_oom_everywhere(work: Callable[[], T]) -> T:
    """Call `work`; raise an out-of-memory error in all processes if one ran out. Collective.

    For work without collective operations, in which no other process waits.
    """
    done: list[T] = []
    short: str | None = None
    try:
        done.append(work())
    except RuntimeError as error:
        if world_size() == 1 or not is_out_of_memory(error):
            raise
        short = _line(error)
    for line in all_gather(short):
        if line is not None:
            raise torch.OutOfMemoryError(line)
    return done[0]


def map_over_ranks(work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """`work` on every item, each in one process; returns all results, in order. Collective.

    Raises: OutOfMemoryError in all processes where memory runs out in one.
    """
    mine = range(rank(), len(items), world_size())
    subset = raise_oom_everywhere(lambda: {i: work(items[i]) for i in mine})
    results = {i: result for part in all_gather(subset) for i, result in part.items()}
    return [results[i] for i in range(len(items))]


def empty_cache() -> None:
    """Free unreferenced memory, on the device too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim_heap()


def trim_heap() -> None:
    """Return freed memory to the system, where it is gigabytes: glibc keeps it, in pieces that are
    too small for what comes next."""
    if psutil.Process().memory_info().rss > _TRIMMED:
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
