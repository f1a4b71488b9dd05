"""A trainer on disk, wherever that costs little beside the work that it keeps.

    <folder>/trainer-<step>.safetensors     weights and optimiser state at an epoch's end
    <folder>/trainer-<step>.json            its epoch and its SHA-256, written last

One is written after an epoch if the work since the one before took more than `COST` times as long
as a save does: as the last one was measured to take, and before that as its size lets expect. So an
interruption costs at most the work that ten saves would take, or the epoch in flight. The trainer
is copied to host memory and written by a thread while training goes on. A disk that is full costs
checkpoints, not the work. Random states are in none: what is random in a step is made from the
seed and the number of the step.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import psutil
from safetensors import SafetensorError

from unlearnbench.digests import file_hash
from unlearnbench.durable import flush
from unlearnbench.errors import StorageError
from unlearnbench.group import leads, of_all, of_leader
from unlearnbench.notices import notice
from unlearnbench.stopping import asked
from unlearnbench.training import Trainer

COST = 10.0
"""Times that the work has to cost what its checkpoint does."""
BYTES_PER_SECOND = 250e6
"""Of a save, before one is measured: a network disk's rate, so that the first is no surprise."""
KEPT = 2
"""The one before steps in for one that is damaged."""
NOTICE_SECONDS = 50.0
"""After SIGTERM; sweeps give their workers a minute, clouds their spot machines two."""


class Mirror(Protocol):
    """A copy of folders elsewhere, as `storage.Storage` keeps it."""

    def push(
        self, place: Path, *, changes: bool = False, digests: Mapping[str, str] | None = None
    ) -> None:
        """Copy a folder there."""
        ...

    def fetch(self, place: Path, *, changes: bool = False) -> bool:
        """Copy a folder from there."""
        ...

    def remove(self, place: Path) -> None:
        """Delete the copy."""
        ...


class Checkpoints:
    """The newest two checkpoints of one training, in a folder of their own."""

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        self.folder, self._mirror = folder, mirror
        self.seconds: float | None = None
        """What the last save took, to the end of its copy elsewhere."""
        self.step = 0
        """Of the newest; 0 where there is none."""
        self.current = time.time()
        """When the work was where a process that resumes it would begin."""
        self._work = 0.0
        self._thread: threading.Thread | None = None
        self._missed: str | None = None
        self._error: BaseException | None = None
        self._noticed = False
        self._digests: dict[str, str] = {}
        """Of the files that this process wrote, or found whole."""

    def resumed(self, make: Callable[[], Trainer], most: int) -> tuple[Trainer, int]:
        """A trainer at its newest checkpoint of epoch `most` or before, and its epoch; collective.

        make  returns one at its start; called again where a checkpoint does not fit
        """
        if self._mirror is not None:
            self._mirror.fetch(self.folder, changes=True)
        trainer, found = make(), self._found(most)
        while (one := of_leader(lambda: next(found, None))) is not None:
            epoch, path = one
            try:
                trainer.load(path)
                fits = True
            except (SafetensorError, ValueError, KeyError, TypeError, OSError):
                fits = False
            if all(of_all(fits)):
                self.step = trainer.step
                return trainer, epoch
            if leads():
                notice(f"{path}: this checkpoint is of another version; {_BEFORE}")
                _unlink(path)
            trainer = make()  # its weights may be half loaded
        return trainer, 0

    def _found(self, most: int) -> Iterator[tuple[int, Path]]:
        """Epoch and file of the checkpoints that are what was written, newest first."""
        for part in self.folder.glob(".part-*"):
            part.unlink(missing_ok=True)
        for label in sorted(self.folder.glob("trainer-*.json"), reverse=True):
            path = label.with_suffix(".safetensors")
            try:
                known = json.loads(label.read_text(encoding="utf-8"))
                epoch, digest = int(known["epoch"]), str(known["sha256"])
                whole = epoch > most or file_hash(path) == digest
            except (OSError, ValueError, KeyError, TypeError):
                epoch, digest, whole = 0, "", False
            if whole and epoch <= most:
                self._digests[path.name] = digest
                yield epoch, path
                continue
            if not whole:
                notice(f"{path}: this checkpoint is damaged; {_BEFORE}")
            _unlink(path)

    def epoch_ended(self, trainer: Trainer, epoch: int, seconds: float) -> None:
        """Count `seconds` of work, and save the trainer where they are worth it; collective.

        Raises: StorageError where the last one could not be copied elsewhere.
        """
        self._work += seconds
        size = trainer.size()
        way = of_leader(lambda: self._way(size))
        if way is None:
            return
        self._work = 0.0
        begin, current, step = time.monotonic(), time.time(), trainer.step
        save = trainer.snapshot().save if way == "copied" else trainer.save
        if not leads():
            if way == "direct":
                save(self.folder)  # its part of what the leader writes
            return
        work = partial(self._write, save, epoch, step, begin, current)
        if way == "direct":
            work()
            self.wait()
        else:
            # A daemon: a process that has to go does not wait for it.
            self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
            self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the last save has ended, or for so long; raises what ended it."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return
            self._thread = None
        if self._missed is not None:
            self._leave_out(self._missed)
            self._missed = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def end(self) -> None:
        """Wait until the last save has ended, and ignore how: the work is done."""
        with suppress(StorageError):
            self.wait()

    def remove(self) -> None:
        """End, and remove all checkpoints."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._mirror is not None:
            self._mirror.remove(self.folder)

    def adopt(self, path: Path, epoch: int, digest: str) -> None:
        """Take over a trainer's file that lies elsewhere on this disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        place = path.replace(self.folder / path.name)
        self._label(place, epoch, digest)

    def _way(self, size: int) -> Literal["copied", "direct"] | None:
        """How a checkpoint of `size` bytes is written now; None where it is not worth it."""
        expected = size / BYTES_PER_SECOND if self.seconds is None else self.seconds
        if self._work <= COST * expected:
            return None
        self.wait()  # whose measure counts
        expected = expected if self.seconds is None else self.seconds
        if self._work <= COST * expected or (asked() and expected > NOTICE_SECONDS):
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            held = len(list(self.folder.glob("trainer-*.json")))
            needed, free = size * (KEPT + 1 - held), shutil.disk_usage(self.folder).free
        except OSError as error:
            self._leave_out(error.strerror or str(error))
            return None
        if free < needed:
            gigabytes = f"{free / 1e9:.3g} GB are free, and {needed / 1e9:.3g} GB are needed"
            self._leave_out(gigabytes)
            return None
        # Without room for a copy in host memory, training waits for the disk.
        return "copied" if psutil.virtual_memory().available > 2 * size else "direct"

    def _write(
        self, save: Callable[[Path], str], epoch: int, step: int, begin: float, current: float
    ) -> None:
        """Write a checkpoint; what goes wrong waits for `wait`."""
        place = self.folder / f"trainer-{step:08d}.safetensors"
        part = place.with_name(f".part-{place.name}")
        try:
            digest = save(part)
            part.replace(place)
            self._label(place, epoch, digest)
            self.step, self.current = step, current
            labels = sorted(self.folder.glob("trainer-*.json"))
            for old in labels[:-KEPT]:
                _unlink(old.with_suffix(".safetensors"))
            if self._mirror is not None:
                self._mirror.push(self.folder, changes=True, digests=self._digests)
            self.seconds = time.monotonic() - begin
        except OSError as error:
            if self.folder.exists():  # else the work was given up, and its folder removed
                self._missed = error.strerror or str(error)
        except BaseException as error:  # raised again by who waits for it
            self._error = error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _label(self, place: Path, epoch: int, digest: str) -> None:
        """Say of a file that is in its place what it is."""
        label = place.with_suffix(".json")
        part = label.with_name(f".part-{label.name}")
        part.write_text(json.dumps({"epoch": epoch, "sha256": digest}), encoding="utf-8")
        flush(part)
        part.replace(label)
        flush(self.folder)
        self._digests[place.name] = digest

    def _leave_out(self, reason: str) -> None:
        """Go on without a checkpoint, with a notice the first time."""
        if not self._noticed:
            notice(
                f"{self.folder}: a checkpoint is left out: {reason}; the work goes on, and after "
                "an interruption it begins again at the checkpoint before, or at its start"
            )
        self._noticed = True


_BEFORE = "the work goes on from the one before, or from its start"


def _unlink(path: Path) -> None:
    """Remove a checkpoint: first what says that it is one."""
    path.with_suffix(".json").unlink(missing_ok=True)
    path.unlink(missing_ok=True)
