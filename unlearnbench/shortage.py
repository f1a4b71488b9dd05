"""Out of memory: the same work again in smaller portions, with the same numbers, and a note of it.

A step is repeated from its beginning with half the rows at a time; its sums divide by the counts of
the whole step, so nothing but rounding tells the difference. What did not fit once is not tried
again: not later in the run, and not by a process that resumes it.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from unlearnbench.errors import EvaluationError, StartOverError, TrainingError
from unlearnbench.group import of_all, world

FILE = "memory.json"
FEWEST_TOKENS = 64
"""Of an evaluation's batch; the configuration takes no fewer either."""

_SIGNS = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
"""How libraries below torch say it, in errors of no type of their own."""

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on a device or here."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


class Shortages:
    """What has been too large for the memory so far, and what is done in its place."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows
        """Forget rows of a micro-batch; None for all of a step."""
        self.batch_tokens: int | None = None
        """Of an evaluation's batch; None for as many as it takes by itself."""
        self.seen: list[dict[str, Any]] = []
        """Each with the step or epoch, and what was halved from what to what."""
        self._file: Path | None = None

    def keep(self, folder: Path) -> None:
        """Take up what earlier processes have noted in `folder`, and note there from now on.

        Collective: each rank may have a folder of its own, and all go on with the smallest sizes.
        """
        self._file = folder / FILE
        noted = [found for found in of_all(_noted(self._file)) if found is not None]
        if not noted:
            return
        self.rows = min((rows for rows, _, _ in noted if rows), default=None)
        self.batch_tokens = min((tokens for _, tokens, _ in noted if tokens), default=None)
        for what in (what for _, _, seen in noted for what in seen):
            if what not in self.seen:
                self.seen.append(what)
        if world() > 1:
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
        """`work`, the gradient of step `number`; where it does not fit, with `self.rows` halved.

        undo   forget what a part of the step has left behind
        rows   of this process in the step
        alone  no other process takes part. Else the others may wait in a collective for one that
               repeats its step: it notes the smaller size, and its error ends the attempt.

        Raises: TrainingError where a single row does not fit; StartOverError unless `alone`.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                before = max(min(self.rows or rows, rows), 1)
                if before == 1:
                    raise TrainingError(_TOO_LITTLE.format(number=number, error=_line(error)))  # noqa: B904
                self.rows = (before + 1) // 2
                self._note({"step": number, "from": before, "to": self.rows})
                if not alone:
                    raise StartOverError(  # noqa: B904
                        f"step {number}: out of memory with {before} rows at a time in a process "
                        f"({_line(error)}); {self.rows} are noted: start the same command again",
                        self.rows,
                    )
            # Only here: the error held the frames in which the tensors are.
            undo()
            give_back()

    def evaluation(self, epoch: int, before: int | None, after: int | None) -> None:
        """Note that an evaluation has gone from `before` tokens at a time to `after`, if it has."""
        if after != before:
            self.batch_tokens = after
            self._note({"evaluation": epoch, "from": before, "to": after})

    def _note(self, what: dict[str, Any]) -> None:
        self.seen.append(what)
        self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_name(f".{FILE}.{os.getpid()}")
        known = {"rows": self.rows, "batch_tokens": self.batch_tokens, "seen": self.seen}
        beside.write_text(json.dumps(known))
        beside.replace(self._file)


def _noted(file: Path) -> tuple[int | None, int | None, list[dict[str, Any]]] | None:
    """Rows, tokens and what was seen; None where nothing is known, or nothing for certain."""
    try:
        known = json.loads(file.read_text())
        return known["rows"], known["batch_tokens"], list(known["seen"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def no_fewer_rows_help(number: int) -> Generator[None, None, None]:
    """Around what takes as much however few the rows: the optimiser's part of step `number`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
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


def in_smaller_batches(work: Callable[[int], T], tokens: int) -> tuple[T, int]:
    """`work` with `tokens` at a time, or with half of that as often as it does not fit.

    In a group, `work` has to be short of memory in all processes at once, see `everywhere`.
    Returns what `work` does, and the tokens that it was done with.
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
                    "a device with more memory, or hold the model in dtype: bfloat16"
                )
        tokens //= 2
        give_back()


def everywhere(work: Callable[[], T]) -> T:
    """`work` in this process; out of memory in all processes where it is in one. Collective.

    For work that needs no other process: nobody is left waiting in the middle of it.
    """
    done: list[T] = []
    short: str | None = None
    try:
        done.append(work())
    except RuntimeError as error:
        if world() == 1 or not is_out_of_memory(error):
            raise
        short = _line(error)
    for line in of_all(short):
        if line is not None:
            raise torch.OutOfMemoryError(line)
    return done[0]


def give_back() -> None:
    """Free what nobody holds any more, on the device too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
