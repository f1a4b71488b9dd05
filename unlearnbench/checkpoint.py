"""Where a run is, on disk: two checkpoints, each known by the SHA-256 of all that belongs to it.

    state/<id>/progress-<step>.json     position, results, and the hash of every file it needs
    state/<id>/trainer-<step>.safetensors, epoch-<k>.json.gz
    state/<id>/pulse.json               the step that the run was last seen at, once a second

The pointer (`progress-…`) is written last, so it never points to less than is there. A checkpoint
that is not what was written is passed over, with a notice, for the one before it. Random states are
in none: what is random in a step is made from the seed and the number of the step.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unlearnbench.digests import file_hash
from unlearnbench.errors import EvaluationError, RecordError
from unlearnbench.notices import notice

KEPT = 2
PULSE_SECONDS = 1.0


class Checkpoints:
    """The checkpoints of one run in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._digests: dict[str, str] = {}
        """Of the files that this process wrote, or found whole."""

    def save(
        self, step: int, progress: Mapping[str, Any], files: Mapping[str, Callable[[Path], None]]
    ) -> None:
        """Keep `progress` and the files, by name with what writes each, as the run at `step`.

        A file that is there already is not written again. Raises: RecordError where the disk is
        full or cannot be written; the checkpoints before stay.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, write in files.items():
                if name not in self._digests:
                    self._digests[name] = _written(self.folder / name, write)
            document = json.dumps({**progress, "files": {n: self._digests[n] for n in files}})
            pointer = self.folder / f"progress-{step:08d}.json"
            text = json.dumps({"sha256": _hash(document.encode()), "progress": document})
            _written(pointer, lambda path: _write_text(path, text))
            self._forget(set(files))
        except (OSError, SafetensorError, EvaluationError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reason = getattr(cause, "strerror", None) or cause
            raise RecordError(
                f"{self.folder}: the checkpoint of step {step} cannot be written: {reason}; mend "
                "that and start the same command again: it goes on from the one before"
            ) from error

    def has(self, name: str) -> bool:
        """Whether a file is there, written or found whole by this process."""
        return name in self._digests

    def found(self) -> Iterator[dict[str, Any]]:
        """What `save` was given, newest first; what is damaged is told and left out."""
        for pointer in sorted(self.folder.glob("progress-*.json"), reverse=True):
            progress = self._whole(pointer)
            if progress is not None:
                yield progress

    def _whole(self, pointer: Path) -> dict[str, Any] | None:
        try:
            document = json.loads(pointer.read_text(encoding="utf-8"))
            text: str = document["progress"]
            damaged = pointer if _hash(text.encode()) != document["sha256"] else None
            progress: dict[str, Any] = json.loads(text)
            files: dict[str, str] = progress["files"]
            for name, digest in files.items():
                if damaged is None and file_hash(self.folder / name) != digest:
                    damaged = self.folder / name
        except (OSError, ValueError, KeyError, TypeError):
            damaged, progress, files = pointer, {}, {}
        if damaged is None:
            self._digests.update(files)
            return progress
        notice(f"{damaged}: this checkpoint is damaged; the run goes on from the one before")
        pointer.unlink(missing_ok=True)
        return None

    def _forget(self, current: set[str]) -> None:
        """Remove what is older than the newest two, and what belongs to neither."""
        pointers = sorted(self.folder.glob("progress-*.json"))
        for pointer in pointers[:-KEPT]:
            pointer.unlink(missing_ok=True)
        steps = {pointer.stem.removeprefix("progress-") for pointer in pointers[-KEPT:]}
        for path in self.folder.glob("trainer-*.safetensors"):
            if path.name not in current and path.stem.removeprefix("trainer-") not in steps:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """The run has its record."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Pulse:
    """Says on disk how far a run is, so that whoever takes it up knows what was lost."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "pulse.json"
        self._told, self._since = 0.0, time.time()
        self.interruptions: list[dict[str, Any]] = []
        """One for each time that the run was cut short, as its record keeps them."""

    def beat(self, step: int, epoch: int, what: str | None = None) -> None:
        """The run has made `step`; `what` ends it there. On disk at most once a second."""
        now = time.time()
        if what is None and now - self._told < PULSE_SECONDS:
            return
        self._told = now
        seen = {"step": step, "epoch": epoch, "at": now, "seconds": now - self._since}
        text = json.dumps({**seen, "what": what, "interruptions": self.interruptions})
        with suppress(OSError):  # it serves to tell what was lost; without it less is told
            if what is None:  # a last word brings back no folder that a search has removed
                self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".tmp")
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._path)

    def kept(self) -> None:
        """All so far is in a checkpoint."""
        self._since = time.time()

    def resumed(self, step: int) -> None:
        """The run goes on after `step`: note what of an earlier process is not there any more."""
        try:
            last = json.loads(self._path.read_text(encoding="utf-8"))
            lost = max(0, int(last["step"]) - step)
            noted = {
                "what": last["what"] or "its process died",
                "epoch": last["epoch"],
                "lost_steps": lost,
                "lost_seconds": round(last["seconds"], 1) if lost else 0.0,
                "at": last["at"],
            }
            self.interruptions = [*last["interruptions"], noted]
        except (OSError, ValueError, KeyError, TypeError):
            return


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _written(place: Path, write: Callable[[Path], None]) -> str:
    """Have `write` make a file, put it on the disk and then in its place; returns its hash."""
    # The ending stays: what writes an evaluation goes by it.
    beside = place.with_name(f".part-{place.name}")
    try:
        write(beside)
        digest = file_hash(beside)
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
    return digest
