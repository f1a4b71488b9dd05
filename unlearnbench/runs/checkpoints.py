"""The checkpoint of a trainer, written where it costs little compared with the work it saves.

    <folder>/trainer.safetensors     weights and optimiser state at an epoch's end

It is replaced after an epoch if the work since the last one took more than `COST` times as long as
a save, which is measured, or estimated from its size for the first one. So an interruption costs at
most the time of ten saves, or the current epoch. A full disk costs checkpoints, until the results
of an epoch find no room either. A checkpoint has no random state: randomness in a step comes from
the seed and the step's number.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from unlearnbench.base.atomic import PART, atomic_path
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import all_gather, broadcast_from_main, is_main_process
from unlearnbench.results.remote_copies import NO_STORAGE, Storage
from unlearnbench.training.trainer import Trainer

COST = 10.0
"""Least ratio of the work's time to the time of its checkpoint."""
BYTES_PER_SECOND = 250e6
"""Rate of a save before one is measured: that of a network disk, to be on the safe side."""


class Checkpoints:
    """The newest checkpoint of one training, in a folder of its own."""

    def __init__(self, folder: Path, storage: Storage = NO_STORAGE) -> None:
        self.folder, self._storage = folder, storage
        self._path = folder / "trainer.safetensors"
        self.seconds: float | None = None
        """Seconds of the last save, with its copy elsewhere."""
        self.epoch = 0
        """Epoch of the checkpoint; 0 without one."""
        self._work = 0.0
        self._noticed = False

    def resumed(self, make: Callable[[], Trainer], most: int) -> tuple[Trainer, int]:
        """Load the checkpoint, or begin; returns trainer and epoch. Collective.

        make  makes a trainer at its start; called again after a checkpoint that does not fit
        most  last epoch that the checkpoint may be of
        """
        self._storage.fetch(self.folder, changes=True)
        trainer = make()
        if not broadcast_from_main(self._path.is_file):
            return trainer, 0
        try:
            trainer.load(self._path)
            fits = trainer.epochs_done <= most
        except (SafetensorError, ValueError, KeyError, TypeError, OSError):
            fits = False
        if all(all_gather(fits)):
            self.epoch = trainer.epochs_done
            return trainer, self.epoch
        if is_main_process():
            warn_later(
                f"{self._path}: this checkpoint is damaged, of another version, or without the "
                "results of its epoch; the training begins again"
            )
            self._path.unlink(missing_ok=True)
        del trainer  # its weights may be half loaded
        return make(), 0

    def epoch_ended(self, trainer: Trainer, epoch: int, seconds: float) -> None:
        """Count `seconds` of work, and save the trainer if they are worth it; collective.

        Raises: StorageError where it cannot be copied elsewhere.
        """
        self._work += seconds
        size = trainer.size()
        if not broadcast_from_main(lambda: self._pays(size)):
            return
        self._work = 0.0
        if not is_main_process():
            trainer.save(self._path)  # its part of what the main process writes
            return
        begin = time.monotonic()
        try:
            with atomic_path(self._path) as part:  # `save` forces it onto the disk
                trainer.save(part)
        except OSError as error:
            self._leave_out(error.strerror or str(error))
            return
        self.epoch = epoch
        self._storage.push(self.folder, changes=True)
        self.seconds = time.monotonic() - begin

    def remove(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._storage.remove(self.folder)

    def _pays(self, size: int) -> bool:
        """True if a checkpoint of `size` bytes is worth its time, and has room."""
        expected = size / BYTES_PER_SECOND if self.seconds is None else self.seconds
        if self._work <= COST * expected:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for part in self.folder.glob(f"{PART}*"):  # cut by a kill
                part.unlink()
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            self._leave_out(error.strerror or str(error))
            return False
        if free < size:
            self._leave_out(f"{free / 1e9:.3g} GB are free, and {size / 1e9:.3g} GB are needed")
        return free >= size

    def _leave_out(self, reason: str) -> None:
        """Continue without a checkpoint, with a warning the first time."""
        if not self._noticed:
            warn_later(
                f"{self.folder}: a checkpoint is left out: {reason}; training continues, and "
                "after an interruption it begins again at the checkpoint before, or at its start"
            )
        self._noticed = True
