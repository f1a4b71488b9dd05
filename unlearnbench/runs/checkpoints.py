"""Checkpoints of a trainer, written where they cost little compared with the work they save.

    <folder>/trainer-<step>.safetensors     weights and optimiser state at an epoch's end
    <folder>/trainer-<step>.json            its epoch and its SHA-256, written last

One is written after an epoch if the work since the last one took more than `COST` times as long as
a save, which is measured, or estimated from its size for the first one. So an interruption costs at
most the time of ten saves, or the current epoch. The trainer is copied to host memory and written
by a thread while training continues. A full disk costs checkpoints, until the results of an epoch
find no room either. A checkpoint has no random state: randomness in a step comes from the seed and
the step's number.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

import psutil
from safetensors import SafetensorError

from unlearnbench.errors import StorageError
from unlearnbench.files.atomic import PART, atomic_path, write_text
from unlearnbench.files.hashing import file_hash
from unlearnbench.results.remote_copies import NO_STORAGE, Storage
from unlearnbench.runtime.deferred_warnings import warn_later
from unlearnbench.runtime.distributed import all_gather, broadcast_from_main, is_main_process
from unlearnbench.training.trainer import Trainer

COST = 10.0
"""Least ratio of the work's time to the time of its checkpoint."""
BYTES_PER_SECOND = 250e6
"""Rate of a save before one is measured: that of a network disk, to be on the safe side."""
CHECKPOINTS = 2
"""Number that stays on disk: the second one replaces a damaged one."""
NOTICE_SECONDS = 50.0
"""Time to finish a save after SIGTERM: sweeps give workers one minute, clouds two."""


class Checkpoints:
    """The newest two checkpoints of one training, in a folder of their own."""

    def __init__(self, folder: Path, storage: Storage = NO_STORAGE) -> None:
        self.folder, self._storage = folder, storage
        self.seconds: float | None = None
        """Seconds of the last save, with its copy elsewhere."""
        self.epoch = 0
        """Epoch of the newest checkpoint; 0 without one."""
        self._work = 0.0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._noticed = False
        self._digests: dict[str, str] = {}
        """Hashes of the files that this process wrote or checked."""

    def resumed(
        self, make: Callable[[], Trainer], most: int, *, keep: bool = False
    ) -> tuple[Trainer, int]:
        """Load the newest checkpoint up to epoch `most`; returns trainer and epoch. Collective.

        make  makes a trainer at its start; called again after a checkpoint that does not fit
        keep  leave the folder as it is; else what is not loaded is removed, with a warning
        """
        self._storage.fetch(self.folder, changes=True)
        trainer, found = make(), self._found(most, keep=keep)
        while (one := broadcast_from_main(lambda: next(found, None))) is not None:
            epoch, path = one
            try:
                trainer.load(path)
                fits = True
            except (SafetensorError, ValueError, KeyError, TypeError, OSError):
                fits = False
            if all(all_gather(fits)):
                self.epoch = epoch
                return trainer, epoch
            if is_main_process() and not keep:
                warn_later(f"{path}: this checkpoint is of another version; {_BEFORE}")
                _unlink(path)
            trainer = make()  # its weights may be half loaded
        return trainer, 0

    def _found(self, most: int, *, keep: bool) -> Iterator[tuple[int, Path]]:
        """Yield epoch and file of the undamaged checkpoints, newest first."""
        for part in self.folder.glob(f"{PART}*") if not keep else ():
            part.unlink(missing_ok=True)
        for label in sorted(self.folder.glob("trainer-*.json"), reverse=True):
            path = label.with_suffix(".safetensors")
            try:
                written = json.loads(label.read_text(encoding="utf-8"))
                epoch, digest = int(written["epoch"]), str(written["sha256"])
                whole = epoch > most or file_hash(path) == digest
            except (OSError, ValueError, KeyError, TypeError):
                epoch, digest, whole = 0, "", False
            if whole and epoch <= most:
                self._digests[path.name] = digest
                yield epoch, path
                continue
            if not whole and not keep:
                warn_later(f"{path}: this checkpoint is damaged; {_BEFORE}")
            if not keep:
                _unlink(path)

    def epoch_ended(self, trainer: Trainer, epoch: int, seconds: float) -> None:
        """Count `seconds` of work, and save the trainer if they are worth it; collective.

        Raises: StorageError where the last one could not be copied elsewhere.
        """
        self._work += seconds
        size = trainer.size()
        way = broadcast_from_main(lambda: self._way(size))
        if way is None:
            return
        self._work = 0.0
        begin, step = time.monotonic(), trainer.step
        save = trainer.snapshot().save if way == "copied" else trainer.save
        if not is_main_process():
            if way == "direct":
                save(self.folder)  # its part of what the leader writes
            return
        work = partial(self._write, save, epoch, step, begin)
        if way == "direct":
            work()
            self.wait()
        else:
            # A daemon, so that a process that has to end does not wait for it.
            self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the last save, for at most `seconds`; raises its error."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def end(self) -> None:
        """Wait for the last save and ignore a failed copy, since the work is done."""
        with suppress(StorageError):
            self.wait()

    def remove(self) -> None:
        """End, and remove all checkpoints."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._storage.remove(self.folder)

    def _way(self, size: int) -> Literal["copied", "direct"] | None:
        """Choose how to write a checkpoint of `size` bytes; None if it is not worth it."""
        expected = size / BYTES_PER_SECOND if self.seconds is None else self.seconds
        if self._work <= COST * expected:
            return None
        self.wait()  # it measures the time of a save
        expected = expected if self.seconds is None else self.seconds
        if self._work <= COST * expected:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            present = len(list(self.folder.glob("trainer-*.json")))
            needed, free = size * (CHECKPOINTS + 1 - present), shutil.disk_usage(self.folder).free
        except OSError as error:
            self._leave_out(error.strerror or str(error))
            return None
        if free < needed:
            gigabytes = f"{free / 1e9:.3g} GB are free, and {needed / 1e9:.3g} GB are needed"
            self._leave_out(gigabytes)
            return None
        # Without memory for a copy on the host, training waits for the disk.
        return "copied" if psutil.virtual_memory().available > 2 * size else "direct"

    def _write(self, save: Callable[[Path], str], epoch: int, step: int, begin: float) -> None:
        """Write a checkpoint; `wait` raises its errors."""
        place = self.folder / f"trainer-{step:08d}.safetensors"
        try:
            with atomic_path(place) as part:  # `save` forces it onto the disk
                digest = save(part)
            label = json.dumps({"epoch": epoch, "sha256": digest})
            write_text(place.with_suffix(".json"), label, durable=True)
            self._digests[place.name] = digest
            self.epoch = epoch
            labels = sorted(self.folder.glob("trainer-*.json"))
            for old in labels[:-CHECKPOINTS]:
                _unlink(old.with_suffix(".safetensors"))
            self._storage.push(self.folder, changes=True, digests=self._digests)
            self.seconds = time.monotonic() - begin
        except OSError as error:
            if self.folder.exists():  # else the run was stopped, and its folder removed
                self._leave_out(error.strerror or str(error))
        except BaseException as error:  # raised again by `wait`
            self._error = error

    def _leave_out(self, reason: str) -> None:
        """Continue without a checkpoint, with a warning the first time."""
        if not self._noticed:
            warn_later(
                f"{self.folder}: a checkpoint is left out: {reason}; training continues, and "
                "after an interruption it begins again at the checkpoint before, or at its start"
            )
        self._noticed = True


_BEFORE = "the training continues from the one before, or from its start"


def _unlink(path: Path) -> None:
    """Remove a checkpoint, its label first."""
    path.with_suffix(".json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
