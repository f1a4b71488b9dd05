"""Results of a run that has not ended, stored after every epoch: some kilobytes.

    state/<id>/progress-<step>.json    epochs, steps, and the SHA-256 of every file it needs
    state/<id>/epoch-<k>.safetensors   an evaluation, as in a record
    state/<id>/pulse.json              heartbeat: the step of the run, once a second
    state/<id>-trainer/                its trainer: `checkpoint`, which may be some epochs behind

The pointer (`progress-…`) is written last, so that all its files are there. A damaged one is
ignored, with a warning, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from unlearnbench.errors import OutputError
from unlearnbench.files.atomic import atomic_path, write_text
from unlearnbench.files.hashing import file_hash
from unlearnbench.results.remote_copies import Storage
from unlearnbench.runs.checkpoints import Checkpoints
from unlearnbench.runtime.deferred_warnings import warn_later

POINTERS = 2
HEARTBEAT_SECONDS = 1.0
_TRAINER = "trainer-"
"""Prefix of trainers' files, which earlier versions stored with the results."""


def state_folders(folder: Path, run: str) -> tuple[Path, Path]:
    """Folders of the results and the trainer of a run until it ends, in a sweep's `folder`."""
    return folder / "state" / run, folder / "state" / f"{run}-trainer"


def remove_state(folder: Path, run: str, storage: Storage) -> None:
    """Remove both folders of a run, here and in the storage."""
    for place in state_folders(folder, run):
        shutil.rmtree(place, ignore_errors=True)
        storage.remove(place)


class RunProgress:
    """Results of one run so far, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        """Hashes of the files that this process wrote or checked."""
        self._noticed = False

    def save(
        self, step: int, progress: Mapping[str, Any], files: Mapping[str, Callable[[Path], None]]
    ) -> None:
        """Store `progress` and files as the state of the run at `step`.

        files  by name, with a function that writes each; one that is there is not written again

        If the disk is full, there is a warning the first time, and the state before stays.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, write in files.items():
                if name not in self.digests:
                    with atomic_path(self.folder / name, durable=True) as part:
                        write(part)
                        self.digests[name] = file_hash(part)
            document = json.dumps({**progress, "files": {n: self.digests[n] for n in files}})
            pointer = self.folder / f"progress-{step:08d}.json"
            text = json.dumps({"sha256": _hash(document), "progress": document})
            write_text(pointer, text, durable=True)
            self.digests[pointer.name] = _hash(text)
            for old in self._pointers()[:-POINTERS]:
                old.unlink(missing_ok=True)
        except (OSError, OutputError) as error:
            cause = error.__cause__ or error
            if not isinstance(cause, OSError):
                raise
            if not self._noticed:
                warn_later(
                    f"{self.folder}: results after step {step} are not kept: "
                    f"{cause.strerror or cause}; the run continues"
                )
            self._noticed = True

    def drop(self, step: int, names: Iterator[str]) -> None:
        """Remove the states after `step`, and forget the files called `names`."""
        for pointer in self._pointers():
            if pointer.stem > f"progress-{step:08d}":
                pointer.unlink(missing_ok=True)
        for name in names:
            self.digests.pop(name, None)

    def found(self) -> Iterator[dict[str, Any]]:
        """Yield the stored `progress`, newest first; warns of damaged ones."""
        for pointer in reversed(self._pointers()):
            progress = self._whole(pointer)
            if progress is not None:
                yield progress

    def adopt(self, checkpoints: Checkpoints) -> None:
        """Move trainers of an epoch's end that earlier versions stored here to `checkpoints`."""
        for pointer in self._pointers():
            with suppress(OSError, ValueError, KeyError, TypeError):  # damaged: `found` warns
                progress = json.loads(_read(pointer)["progress"])
                files: dict[str, str] = progress["files"]
                for name in filter(lambda name: name.startswith(_TRAINER), files):
                    if progress["spent"]:
                        warn_later(
                            f"{pointer}: of an earlier version, inside an epoch; passed over"
                        )
                        pointer.unlink()
                        (self.folder / name).unlink()
                    else:
                        checkpoints.adopt(self.folder / name, progress["epoch"], files[name])

    def _pointers(self) -> list[Path]:
        return sorted(self.folder.glob("progress-*.json"))

    def _whole(self, pointer: Path) -> dict[str, Any] | None:
        damaged = pointer
        with suppress(OSError, ValueError, KeyError, TypeError):
            document = _read(pointer)
            progress: dict[str, Any] = json.loads(document["progress"])
            files = {n: d for n, d in progress["files"].items() if not n.startswith(_TRAINER)}
            if _hash(document["progress"]) == document["sha256"]:
                broken = [n for n, digest in files.items() if not self._is(n, digest)]
                if not broken:
                    self.digests.update(files)
                    return progress
                damaged = self.folder / broken[0]
        warn_later(f"{damaged}: these results are damaged; the run continues from those before")
        pointer.unlink(missing_ok=True)
        return None

    def _is(self, name: str, digest: str) -> bool:
        return (self.folder / name).is_file() and file_hash(self.folder / name) == digest


class Heartbeat:
    """Writes the step of a run, so that a process that resumes it knows how many were lost."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "pulse.json"
        self._written = 0.0
        self.interruptions: list[dict[str, Any]] = []
        """Interruptions of the run, as in its record."""

    def write(self, step: int, epoch: int, since: float, what: str | None = None) -> None:
        """Write that the run has made `step`, at most once a second.

        since  time at which the run was at its newest checkpoint
        what   error that ends the run at this step
        """
        now = time.time()
        if what is None and now - self._written < HEARTBEAT_SECONDS:
            return
        self._written = now
        seen = {"step": step, "epoch": epoch, "at": now, "seconds": now - since}
        text = json.dumps({**seen, "what": what, "interruptions": self.interruptions})
        with suppress(OSError):  # then less is known of an interruption
            # The last one does not make a folder again that a search has removed.
            if what is None or self._path.parent.is_dir():
                write_text(self._path, text)

    def resumed(self, step: int) -> None:
        """Add the interruption of an earlier process, if any; the run continues after `step`."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            last = _read(self._path)
            lost = max(0, int(last["step"]) - step)
            noted = {
                "what": last["what"] or "its process died",
                "epoch": last["epoch"],
                "lost_steps": lost,
                "lost_seconds": round(last["seconds"], 1) if lost else 0.0,
                "at": last["at"],
            }
            self.interruptions = [*last["interruptions"], noted]


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
