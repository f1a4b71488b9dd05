"""The results of a run that has not ended, on disk: kilobytes, kept after every epoch.

    state/<id>/progress-<step>.json    epochs, steps, and the SHA-256 of every file it needs
    state/<id>/epoch-<k>.json.gz       an evaluation
    state/<id>/pulse.json              the step that the run was last seen at, once a second
    state/<id>-trainer/                its trainer: `checkpoint`, which may be some epochs behind

The pointer (`progress-…`) is written last, so it never points to less than is there. One that is
not what was written is passed over, with a notice, for the one before it.
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

from unlearnbench.checkpoint import Checkpoints, Mirror
from unlearnbench.digests import file_hash
from unlearnbench.durable import flush
from unlearnbench.errors import EvaluationError
from unlearnbench.notices import notice

KEPT = 2
PULSE_SECONDS = 1.0
_TRAINER = "trainer-"
"""Begins the names of trainers' files, which earlier versions kept beside the results."""


def state_folders(folder: Path, run: str) -> tuple[Path, Path]:
    """Where the results and the trainer of a run lie until it ends, in a sweep's `folder`."""
    return folder / "state" / run, folder / "state" / f"{run}-trainer"


def remove_state(folder: Path, run: str, mirror: Mirror) -> None:
    """Remove what is left of a run, here and in the storage."""
    for place in state_folders(folder, run):
        shutil.rmtree(place, ignore_errors=True)
        mirror.remove(place)


class RunProgress:
    """The results of one run so far, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        """Of the files that this process wrote, or found whole."""
        self._noticed = False

    def save(
        self, step: int, progress: Mapping[str, Any], files: Mapping[str, Callable[[Path], None]]
    ) -> None:
        """Keep `progress` and the files, by name with what writes each, as the run at `step`.

        A file that is there already is not written again. Where the disk is full, there is a
        notice the first time, and what was kept before stays.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name, write in files.items():
                if name not in self.digests:
                    self.digests[name] = _written(self.folder / name, write)
            document = json.dumps({**progress, "files": {n: self.digests[n] for n in files}})
            pointer = self.folder / f"progress-{step:08d}.json"
            text = json.dumps({"sha256": _hash(document), "progress": document})
            self.digests[pointer.name] = _written(pointer, lambda path: _write_text(path, text))
            flush(self.folder)
            for old in self._pointers()[:-KEPT]:
                old.unlink(missing_ok=True)
        except (OSError, EvaluationError) as error:
            cause = error.__cause__ or error
            if not isinstance(cause, OSError):
                raise
            if not self._noticed:
                notice(
                    f"{self.folder}: results after step {step} are not kept: "
                    f"{cause.strerror or cause}; the run goes on"
                )
            self._noticed = True

    def drop(self, step: int, names: Iterator[str]) -> None:
        """Forget what was kept after `step`, and the files called `names`."""
        for pointer in self._pointers():
            if pointer.stem > f"progress-{step:08d}":
                pointer.unlink(missing_ok=True)
        for name in names:
            self.digests.pop(name, None)

    def found(self) -> Iterator[dict[str, Any]]:
        """Yield what `save` was given, newest first; a notice for what is damaged."""
        for pointer in reversed(self._pointers()):
            progress = self._whole(pointer)
            if progress is not None:
                yield progress

    def adopt(self, checkpoints: Checkpoints) -> None:
        """Hand over trainers that earlier versions kept here, if they are of an epoch's end."""
        for pointer in self._pointers():
            with suppress(OSError, ValueError, KeyError, TypeError):  # damaged: `found` looks
                progress = json.loads(_read(pointer)["progress"])
                files: dict[str, str] = progress["files"]
                for name in filter(lambda name: name.startswith(_TRAINER), files):
                    if progress["spent"]:
                        notice(f"{pointer}: of an earlier version, inside an epoch; passed over")
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
        notice(f"{damaged}: these results are damaged; the run goes on from those before")
        pointer.unlink(missing_ok=True)
        return None

    def _is(self, name: str, digest: str) -> bool:
        return (self.folder / name).is_file() and file_hash(self.folder / name) == digest


class Pulse:
    """Writes how far a run is, so that a process that resumes it knows what was lost."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "pulse.json"
        self._written = 0.0
        self.interruptions: list[dict[str, Any]] = []
        """One for each time that the run was cut short, as its record keeps them."""

    def beat(self, step: int, epoch: int, since: float, what: str | None = None) -> None:
        """The run has made `step`; `what` ends it there. On disk at most once a second.

        since  when the run was where its newest checkpoint is
        """
        now = time.time()
        if what is None and now - self._written < PULSE_SECONDS:
            return
        self._written = now
        seen = {"step": step, "epoch": epoch, "at": now, "seconds": now - since}
        text = json.dumps({**seen, "what": what, "interruptions": self.interruptions})
        with suppress(OSError):  # without it, less is known of what was lost
            if what is None:  # a last beat brings back no folder that a search has removed
                self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".tmp")
            beside.write_text(text, encoding="utf-8")
            beside.replace(self._path)

    def resumed(self, step: int) -> None:
        """The run goes on after `step`: note what of an earlier process has to be done again."""
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


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _written(place: Path, write: Callable[[Path], None]) -> str:
    """Have `write` make a file, put it on the disk and then in its place; returns its hash."""
    # The ending stays: what writes an evaluation goes by it.
    beside = place.with_name(f".part-{place.name}")
    try:
        write(beside)
        digest = file_hash(beside)
        flush(beside)
        beside.replace(place)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return digest
