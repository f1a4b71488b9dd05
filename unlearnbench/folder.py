"""Who works in a sweep's folder: one driver at a time, and what interrupted ones left behind.

The lock is the kernel's (`flock`), so that it is gone with its holder however that ends; the file's
text only says who to look for.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from unlearnbench.errors import DamagedError, RecordError
from unlearnbench.records import DAMAGED, PART, StoredEvaluations, read_record

LOCK_FILE = ".lock"
STALE_SECONDS = 3600.0
"""Age at which a half-written record is nobody's, where its writer cannot be looked up."""


@contextmanager
def locked(folder: Path) -> Generator[None, None, None]:
    """Hold the folder for this process.

    Raises: RecordError that names the holder, where another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RecordError(
                f"{folder}: another command works in it: {file.read().strip() or 'just started'}; "
                "wait for it or stop it, then start this one again: finished runs are kept"
            ) from None
        file.truncate(0)
        since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {platform.node()} since {since}\n")
        file.flush()
        try:
            yield
        finally:
            # Emptied, not removed: a file that is removed while another process waits at it would
            # let two of them hold "the" lock.
            file.truncate(0)


def holder(folder: Path) -> str | None:
    """Who holds the folder, as `locked` writes it; None where nobody does, however that ended."""
    said = ""
    try:
        with (folder / LOCK_FILE).open(encoding="utf-8") as file:
            said = file.read().strip()
            # A driver that starts at this moment must find the lock free, so it is tried only
            # where somebody says to have it: whoever was killed has left the text, not the lock.
            if not said:
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        return said
    return None


def remove_leftovers(folder: Path) -> None:
    """Delete half-written records of processes that are gone; those of living ones stay."""
    for part in (folder / "records").glob(f"{PART}*"):
        host, _, writer = part.name.removeprefix(PART).rpartition("-")[0].rpartition("-")
        if host == platform.node() and writer.isdigit():
            gone = not _alive(int(writer))
        else:
            gone = time.time() - part.stat().st_mtime > STALE_SECONDS
        if gone:
            shutil.rmtree(part, ignore_errors=True)


def set_aside_damaged(folder: Path, warn: Callable[[str], None]) -> None:
    """Rename each record that is not what was written, so that its run is done again."""
    for place in sorted((folder / "records").glob("[!.]*")):
        if not place.is_dir() or place.suffix == DAMAGED:
            continue
        try:
            evaluations = read_record(place).evaluations
            if isinstance(evaluations, StoredEvaluations):
                for epoch in evaluations:
                    evaluations.path(epoch)
        except DamagedError as error:
            aside = place.with_name(place.name + DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
            reason = str(error).partition("; delete")[0]
            warn(f"{reason}; it is set aside as {aside.name}, and done again")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
