"""Retry work that ran out of memory in smaller portions, with the same numbers, and note it.

A step is repeated from its beginning with half of the rows at a time. The sums of a step are
divided by the counts of the whole step, so only rounding differs. A size that did not fit is not
tried again, neither later in the run nor by a process that resumes the run.
"""

import gc
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from unlearnbench.base.atomic import write_text
from unlearnbench.base.distributed import all_gather, rank, world_size
from unlearnbench.base.errors import EvaluationError, StartOverError, TrainingError
from unlearnbench.base.gpu_share import WHOLE, gpu_share
from unlearnbench.base.heap import trim_heap

FILE = "memory.json"
"""File in which a run notes the sizes that fit."""
FEWEST_TOKENS = 64
"""Smallest batch of an evaluation, as in the configuration."""

_SIGNS = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
"""Parts of messages of libraries below torch, whose errors have no type of their own."""

T = TypeVar("T")
Item = TypeVar("Item")


class ShortMemoryError(TrainingError):
    """A step does not fit into memory, however few rows are computed at a time."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def can_repeat_smaller(error: BaseException) -> bool:
    """Whether work ended because memory ran out, and is to be repeated in smaller portions.

    If the process shares its GPU by measurement, no work is repeated here. The sweep runs the whole
    run again, alone. Otherwise a run's portions, and so the last digits of its numbers, would
    depend on the runs beside it.
    """
    return gpu_share() == WHOLE and is_out_of_memory(error)


class OomRetry:
    """The sizes that fit into memory. They are halved each time that memory runs out."""

    def __init__(self, rows: int | None = None) -> None:
        """Start with a size.

        Args:
            rows: Forget rows of a micro-batch. None for all rows of a step.
        """
        self.rows = rows
        """Forget rows of a micro-batch. None for all rows of a step."""
        self.batch_tokens: int | None = None
        """Tokens of an evaluation's batch. None for the evaluation's own choice."""
        self.seen: list[dict[str, Any]] = []
        """Each time that a size was halved: `{"step": 3, "from": 8, "to": 4}`, or with `evaluation`
        and its epoch in place of `step`."""
        self._file: Path | None = None

    def persist(self, folder: Path) -> None:
        """Load what earlier processes noted in a folder, and note there from now on.

        All ranks have to call it. Each may have a folder of its own, and all continue with the
        smallest sizes.
        """
        self._file = folder / FILE
        notes = [note for note in all_gather(_read_note(self._file)) if note is not None]
        if not notes:
            return
        self.rows = min((note.rows for note in notes if note.rows), default=None)
        self.batch_tokens = min(
            (note.batch_tokens for note in notes if note.batch_tokens), default=None
        )
        for note in notes:
            for event in note.seen:
                if event not in self.seen:
                    self.seen.append(event)
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
        """Compute the gradient of a step. Halve `self.rows` until it fits.

        Args:
            work: Computes the gradient with micro-batches of `self.rows` rows.
            undo: Discards the gradient of a part of the step.
            number: Number of the step.
            rows: Rows of this process in the step.
            alone: Whether no other process takes part. If others do, they may wait for this one in
                a collective, so it cannot repeat the step. It then notes the smaller size and ends.

        Raises:
            ShortMemoryError: If a single row does not fit.
            StartOverError: If memory ran out and other processes take part.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not can_repeat_smaller(error):
                    raise
                before = max(min(self.rows or rows, rows), 1)
                if before == 1:
                    raise ShortMemoryError(  # noqa: B904
                        _TOO_LITTLE.format(number=number, error=_first_line(error))
                    )
                self.rows = (before + 1) // 2
                self._note({"step": number, "from": before, "to": self.rows})
                if not alone:
                    raise StartOverError(  # noqa: B904
                        f"step {number}: out of memory with {before} rows at a time in a process "
                        f"({_first_line(error)}); {self.rows} are noted: start the same command "
                        "again",
                        self.rows,
                    )
            # Memory is freed outside of the handler, because until its end the error refers to the
            # frames of `work`, which refer to its tensors.
            undo()
            empty_cache()

    def evaluation(self, epoch: int, before: int | None, after: int | None) -> None:
        """Note the batch size of an evaluation, if it had to be reduced.

        Args:
            epoch: Epoch of the evaluation.
            before: Tokens of a batch at its begin.
            after: Tokens of a batch at its end.
        """
        if after != before:
            self.batch_tokens = after
            self._note({"evaluation": epoch, "from": before, "to": after})

    def _note(self, event: dict[str, Any]) -> None:
        self.seen.append(event)
        self._write()

    def _write(self) -> None:
        """Write the note of this process, if `persist` named a folder for it."""
        if self._file is None:
            return
        note = {"rows": self.rows, "batch_tokens": self.batch_tokens, "seen": self.seen}
        write_text(self._file, json.dumps(note))


class _Note(NamedTuple):
    """The content of the file of an `OomRetry`."""

    rows: int | None
    batch_tokens: int | None
    seen: list[dict[str, Any]]


def _read_note(file: Path) -> _Note | None:
    """Read what was noted; None if there is no file, or if it is damaged."""
    try:
        note = json.loads(file.read_text())
        return _Note(note["rows"], note["batch_tokens"], list(note["seen"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def optimizer_oom(number: int) -> Generator[None, None, None]:
    """Turn an out-of-memory error of the optimiser into a message with a fix.

    Args:
        number: Number of the step.

    Raises:
        ShortMemoryError: If memory runs out inside the context.
    """
    try:
        yield
    except RuntimeError as error:
        if not can_repeat_smaller(error):
            raise
        raise ShortMemoryError(
            f"step {number}: out of memory in the optimiser ({_first_line(error)}), whatever the "
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
    """Call a function, with half of the tokens each time that it runs out of memory.

    In a group of processes, memory has to run out in all of them at once, see
    `raise_oom_everywhere`.

    Args:
        work: Function of the tokens of a batch.
        tokens: Tokens to try first.

    Returns:
        The result of `work`, and the tokens that it was called with.

    Raises:
        EvaluationError: If not even `FEWEST_TOKENS` fit.
    """
    while True:
        try:
            return work(tokens), tokens
        except RuntimeError as error:
            if not can_repeat_smaller(error):
                raise
            if tokens // 2 < FEWEST_TOKENS:
                raise EvaluationError(  # noqa: B904
                    f"out of memory with batches of {tokens} tokens ({_first_line(error)}); "
                    "evaluate on a device with more memory, or set dtype: bfloat16 for the model"
                )
        tokens //= 2
        empty_cache()


def raise_oom_everywhere(work: Callable[[], T]) -> T:
    """Call a function in all processes, and let all of them fail if one runs out of memory.

    Args:
        work: Function without collective operations, so that no process waits for one that failed.

    Returns:
        The result of `work` in this process.

    Raises:
        OutOfMemoryError: In all processes, if memory runs out in one. Any other error is raised in
            its own process only, and ends the run there.
    """
    results: list[T] = []
    own_failure: str | None = None
    try:
        results.append(work())
    except RuntimeError as error:
        if world_size() == 1 or not is_out_of_memory(error):
            raise
        own_failure = _first_line(error)
    for failure in all_gather(own_failure):
        if failure is not None:
            raise torch.OutOfMemoryError(failure)
    return results[0]


def map_over_ranks(
    work: Callable[[Item], T],
    items: Sequence[Item],
    map_items: Callable[[Callable[[Item], T], Sequence[Item]], Iterable[T]] = map,
) -> list[T]:
    """Call a function on every item, each in one of the processes. All ranks have to call it.

    Args:
        work: The function.
        items: The items.
        map_items: Calls `work` on the items of one process and returns the results in their order.

    Returns:
        The results of all items, in their order, in every process.

    Raises:
        OutOfMemoryError: In all processes, if memory runs out in one.
    """
    own_indices = range(rank(), len(items), world_size())
    own_items = [items[i] for i in own_indices]

    def work_on_own_items() -> dict[int, T]:
        return dict(zip(own_indices, map_items(work, own_items), strict=True))

    own_results = raise_oom_everywhere(work_on_own_items)
    result_of_index: dict[int, T] = {}
    for results in all_gather(own_results):
        result_of_index |= results
    return [result_of_index[i] for i in range(len(items))]


def empty_cache() -> None:
    """Free unreferenced memory, on the device and on the host."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    trim_heap()


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, or its type if it has no text."""
    lines = str(error).strip().splitlines()
    first_line = lines[0] if lines else type(error).__name__
    return first_line[:160]
