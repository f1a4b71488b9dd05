"""Results and checkpoints where every machine reaches them: a path, `s3://…`, `gs://…` (fsspec).

Each machine works in a folder of its own, as ever. What is finished there is copied to the storage,
and what others have finished is copied from it. A unit is a folder and there whole or not at all:
its files go first, and last a manifest with the SHA-256 of each. A copy that does not have its hash
counts for nothing: it is made anew. Without `storage` all machines see one `output`, and nothing
here does anything.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from unlearnbench.digests import file_hash
from unlearnbench.errors import StorageError
from unlearnbench.locks import alone
from unlearnbench.records import PART
from unlearnbench.redaction import redact
from unlearnbench.settings import SweepConfig

MANIFEST = "manifest.json"
KNOWN = ".manifest.json"
"""Beside files that change: the manifest they had when this machine last copied them."""
PAUSES = (1.0, 4.0)
"""Seconds before an operation that failed is tried again."""
AT_ONCE = 8
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Storage:
    """The units of some local folders, as they are in the storage."""

    url: str | None
    roots: Mapping[str, Path]
    """Local folders by their name in the storage: `{"cache": …, "quickstart": …}`."""

    @property
    def shown(self) -> str:
        """Its address for messages."""
        return redact(str(self.url))

    def check(self) -> None:
        """Write, read and remove a file.

        Raises: StorageError where that cannot be done.
        """
        if self.url is None:
            return
        probe, text = f"{self._root}/.probe-{uuid4().hex}", b"unlearnbench"
        try:
            self._do("write", lambda: self._files.pipe_file(probe, text))
            found = self._do("read", lambda: self._files.cat_file(probe))
        except FileNotFoundError as error:
            raise StorageError(f"storage {self.shown}: there is no such place: {error}") from None
        if found != text:
            raise StorageError(f"storage {self.shown}: what was written is not what is read")
        self._remove(probe)

    def has(self, place: Path) -> bool:
        """Whether the storage has the unit of the local folder `place`."""
        return self.url is not None and self._manifest(self._key(place)) is not None

    def push(
        self, place: Path, *, changes: bool = False, digests: Mapping[str, str] | None = None
    ) -> None:
        """Copy a unit to the storage; the first of a name stays, unless the unit `changes`.

        digests  SHA-256 of files that need not be read for it

        Raises: StorageError where the storage does not answer; what is here stays as it is.
        """
        if self.url is None or not place.is_dir():
            return
        key = self._key(place)
        old = self._manifest(key)
        if old is not None and not changes:
            return
        files: dict[str, dict[str, str]] = {}
        held = {} if old is None else old["files"]
        for path in sorted(p for p in place.rglob("*") if p.is_file() and p.name != KNOWN):
            name = path.relative_to(place).as_posix()
            digest = (digests or {}).get(name) or file_hash(path)
            # A file that changes has a new name, so that the old manifest stays true meanwhile.
            stored = f"{digest[:12]}/{name}" if changes else name
            files[name] = {"sha256": digest, "stored": stored}
            if held.get(name) != files[name]:
                self._do("write", self._put(path, f"{key}/{stored}"))
        version = 1 if old is None else old["version"] + 1
        text = json.dumps({"version": version, "files": files}).encode()
        self._do("write", lambda: self._files.pipe_file(f"{key}/{MANIFEST}", text))
        if changes:
            (place / KNOWN).write_bytes(text)
            for gone in {f["stored"] for f in held.values()} - {
                f["stored"] for f in files.values()
            }:
                self._remove(f"{key}/{gone}")

    def fetch(self, place: Path, *, changes: bool = False) -> bool:
        """Copy a unit from the storage unless it is here; returns whether it is here then.

        changes  one that is here gives way to one that another machine has brought further
        """
        if self.url is None or (place.is_dir() and not changes):
            return place.is_dir()
        key = self._key(place)
        with alone(place, "copy"):
            manifest = self._manifest(key)
            if manifest is None or (place.is_dir() and (not changes or _known(place, manifest))):
                return place.is_dir()
            part = place.with_name(f"{PART}{platform.node()}-{os.getpid()}-{uuid4().hex[:8]}")
            try:
                if not self._copy(key, manifest, part):
                    # Nobody can use it: whoever makes it anew may put it there.
                    self._remove(f"{key}/{MANIFEST}")
                    return place.is_dir()
                if changes:
                    (part / KNOWN).write_text(json.dumps(manifest))
                shutil.rmtree(place, ignore_errors=True)
                part.rename(place)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        return True

    def share(self, parent: Path) -> None:
        """Copy the records in `parent` both ways; failures stay where they were."""
        if self.url is None:
            return
        key = self._key(parent)
        there = {Path(path).name for path in self._do("list", lambda: self._list(key))}
        here = {p.name for p in parent.glob("*") if p.is_dir() and "." not in p.name}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.fetch, [parent / name for name in sorted(there - here)]))
            list(pool.map(self.push, [parent / name for name in sorted(here - there)]))

    def put(self, files: Sequence[Path]) -> None:
        """Copy files that are no units, for people to read; the last one of a name stays."""
        for path in files if self.url is not None else ():
            self._do("write", self._put(path, self._key(path)))

    def remove(self, place: Path) -> None:
        """Delete a unit in the storage."""
        if self.has(place):
            key = self._key(place)
            self._remove(f"{key}/{MANIFEST}")  # first, so that no half of it counts
            self._do("remove", lambda: self._files.rm(key, recursive=True))

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        url = str(self.url)
        protocol = url.partition("://")[0] if "://" in url else "file"
        how = {"auto_mkdir": True} if protocol in ("file", "local") else {}
        try:
            files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, **how)
        except ImportError as error:
            extra = EXTRAS.get(protocol)
            fix = f"pip install 'unlearnbench[{extra}]'" if extra else str(error)
            raise StorageError(
                f"storage: {protocol}:// needs a package that is not here: {fix}"
            ) from None
        except ValueError as error:
            raise StorageError(
                f"storage: {redact(url)}: {error}; give a path, s3:// or gs://"
            ) from None
        except OSError as error:  # some connect as soon as they are made
            raise StorageError(f"storage {redact(url)}: cannot open: {error}") from error
        return files, str(root)

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1].rstrip("/")

    def _key(self, place: Path) -> str:
        for name, root in self.roots.items():
            if place.is_relative_to(root):
                return f"{self._root}/{name}/{place.relative_to(root).as_posix()}"
        raise StorageError(f"storage: {place} is in none of {[*map(str, self.roots.values())]}")

    def _manifest(self, key: str) -> dict[str, Any] | None:
        try:
            text = self._do("read", lambda: self._files.cat_file(f"{key}/{MANIFEST}"))
            found: dict[str, Any] = json.loads(text)
        except (FileNotFoundError, ValueError):
            return None
        return found

    def _list(self, key: str) -> list[str]:
        try:
            found: list[str] = self._files.ls(key, detail=False)
        except FileNotFoundError:
            return []
        return found

    def _put(self, path: Path, key: str) -> Callable[[], Any]:
        return lambda: self._files.put_file(str(path), key)

    def _get(self, key: str, path: Path) -> Callable[[], Any]:
        return lambda: self._files.get_file(key, str(path))

    def _copy(self, key: str, manifest: dict[str, Any], into: Path) -> bool:
        """Whether all files came, each with its hash; one that did not is fetched once more."""
        for name, file in manifest["files"].items():
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for _ in range(2):
                try:
                    self._do("read", self._get(f"{key}/{file['stored']}", path))
                except FileNotFoundError:
                    return False
                if file_hash(path) == file["sha256"]:
                    break
            else:
                return False
        return True

    def _remove(self, key: str) -> None:
        try:
            self._do("remove", lambda: self._files.rm_file(key))
        except FileNotFoundError:
            return  # another process was first

    def _do(self, what: str, operation: Callable[[], Answer]) -> Answer:
        """The operation, tried again after a pause where it fails."""
        pauses = iter(PAUSES)
        while True:
            try:
                return operation()
            except (FileNotFoundError, StorageError):
                raise
            except Exception as error:  # whatever the driver of a file system raises
                pause = next(pauses, None)
                if pause is None:
                    reason = " ".join(str(error).split())[:200] or type(error).__name__
                    reason = redact(reason, str(self.url))
                    raise StorageError(
                        f"storage {self.shown}: cannot {what}: {reason}; what is on this machine "
                        "is kept: start the same command again once it can be reached"
                    ) from error
                time.sleep(pause)


def storage_of(config: SweepConfig, folder: Path) -> Storage:
    """That of a sweep in `folder`: its records and states, and the prepared models."""
    return Storage(config.storage, {config.name: folder, "cache": config.cache_folder})


def _known(place: Path, manifest: dict[str, Any]) -> bool:
    """Whether what is here is, or goes on from, what the manifest describes."""
    try:
        return bool(json.loads((place / KNOWN).read_text())["version"] >= manifest["version"])
    except (OSError, ValueError, KeyError):
        return False
