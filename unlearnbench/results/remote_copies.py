"""Copy results and checkpoints to a storage that all machines reach: a path, `s3://…`, `gs://…`.

Each machine works in a folder of its own. Finished units are copied to the storage, and units of
other machines are copied from it, through fsspec. A unit is a folder that is there whole or not at
all: its files are copied first, and last a manifest with the SHA-256 of each. A copy with another
hash is ignored, and its unit made again. Without `storage` all machines share one `output`, and
these functions do nothing.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.errors import StorageError
from unlearnbench.base.hashing import file_hash
from unlearnbench.base.locks import exclusive_lock
from unlearnbench.base.redaction import redact
from unlearnbench.config.schema import SweepConfig

MANIFEST = "manifest.json"
COPIED = ".manifest.json"
"""Local copy of the manifest of a unit that changes, as of its last copy."""
AT_ONCE = 8


@dataclass(frozen=True)
class Storage:
    """The units of some local folders, as they are in the storage."""

    url: str | None
    roots: Mapping[str, Path]
    """Local folders by their name in the storage: `{"cache": …, "quickstart": …}`."""

    def check(self) -> None:
        """Write and remove a file. Raises: StorageError where that cannot be done."""
        if self.url is not None:
            probe = f"{self._root}/.probe-{uuid4().hex}"
            self._do("write", self._files.pipe_file, probe, b"unlearnbench")
            self._remove(probe)

    def has(self, path: Path) -> bool:
        """Return whether the storage has the unit of the local folder `path`."""
        return self.url is not None and self._manifest(self._key(path)) is not None

    def push(self, location: Path, *, changes: bool = False) -> None:
        """Copy a unit to the storage; the first of a name stays, unless the unit `changes`.

        Raises: StorageError where the storage does not answer; what is here stays as it is.
        """
        if self.url is None or not location.is_dir():
            return
        key = self._key(location)
        old = self._manifest(key)
        if old is not None and not changes:
            return
        # What changes has new names each time: the old manifest stays true meanwhile.
        version, prefix = 1 if old is None else old["version"] + 1, ""
        if changes:
            prefix = f"{uuid4().hex[:12]}/"
        files: dict[str, dict[str, str]] = {}
        for path in sorted(p for p in location.rglob("*") if p.is_file() and p.name != COPIED):
            name = path.relative_to(location).as_posix()
            files[name] = {"sha256": file_hash(path), "stored": f"{prefix}{name}"}
            self._do("write", self._files.put_file, str(path), f"{key}/{prefix}{name}")
        text = json.dumps({"version": version, "files": files})
        self._do("write", self._files.pipe_file, f"{key}/{MANIFEST}", text.encode())
        if changes:
            (location / COPIED).write_text(text)
        for file in old["files"].values() if old else ():
            self._remove(f"{key}/{file['stored']}")

    def fetch(self, path: Path, *, changes: bool = False) -> bool:
        """Copy a unit from the storage unless it is here; returns whether it is here then.

        changes  one that is here gives way to one that another machine has brought further
        """
        if self.url is None or (path.is_dir() and not changes):
            return path.is_dir()
        key = self._key(path)
        with exclusive_lock(path.with_name(f".{path.name}.copy")):
            manifest = self._manifest(key)
            if manifest is None or (path.is_dir() and (not changes or _is_current(path, manifest))):
                return path.is_dir()
            with atomic_folder(path) as part:
                if not self._copy(key, manifest, part):
                    shutil.rmtree(part)
                    # Without a manifest, the next process that makes the unit stores it.
                    self._remove(f"{key}/{MANIFEST}")
                    return path.is_dir()
                if changes:
                    (part / COPIED).write_text(json.dumps(manifest))
                shutil.rmtree(path, ignore_errors=True)
        return True

    def share(self, parent: Path) -> None:
        """Copy the records in `parent` both ways; failures stay where they were."""
        if self.url is None:
            return
        key = self._key(parent)
        try:
            result: list[str] = self._do("list", self._files.ls, key, detail=False)
        except FileNotFoundError:
            result = []
        present = {Path(path).name for path in result}
        current = {p.name for p in parent.glob("*") if p.is_dir() and "." not in p.name}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.fetch, [parent / name for name in sorted(present - current)]))
            list(pool.map(self.push, [parent / name for name in sorted(current - present)]))

    def put(self, files: Sequence[Path]) -> None:
        """Copy files that are no units, for people to read; the last one of a name stays."""
        for path in files if self.url is not None else ():
            self._do("write", self._files.put_file, str(path), self._key(path))

    def remove(self, path: Path) -> None:
        """Delete a unit in the storage."""
        if self.has(path):
            key = self._key(path)
            self._remove(f"{key}/{MANIFEST}")  # first, so that no half of it counts
            self._do("remove", self._files.rm, key, recursive=True)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        url = str(self.url)
        is_local = "://" not in url or url.startswith(("file://", "local://"))
        options = {"auto_mkdir": True} if is_local else {}
        opened = fsspec.core.url_to_fs
        files, root = self._do("open", opened, url, use_listings_cache=False, **options)
        return files, str(root).rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    def _key(self, path: Path) -> str:
        for name, root in self.roots.items():
            if path.is_relative_to(root):
                return f"{self._root}/{name}/{path.relative_to(root).as_posix()}"
        raise StorageError(f"storage: {path} is in none of {[*map(str, self.roots.values())]}")

    def _manifest(self, key: str) -> dict[str, Any] | None:
        with suppress(FileNotFoundError, ValueError):
            result: dict[str, Any] = json.loads(
                self._do("read", self._files.cat_file, f"{key}/{MANIFEST}")
            )
            return result
        return None

    def _copy(self, key: str, manifest: dict[str, Any], into: Path) -> bool:
        """Copy all files; returns whether each has its hash."""
        for name, file in manifest["files"].items():
            path = into / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._do("read", self._files.get_file, f"{key}/{file['stored']}", str(path))
            except FileNotFoundError:
                return False
            if file_hash(path) != file["sha256"]:
                return False
        return True

    def _remove(self, key: str) -> None:
        with suppress(FileNotFoundError):  # another process was first
            self._do("remove", self._files.rm_file, key)

    def _do(self, subject: str, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call the operation, which its file system tries again where that helps."""
        try:
            return operation(*args, **options)
        except FileNotFoundError:
            raise
        except Exception as error:  # whatever the driver of a file system raises
            url, reason = str(self.url), " ".join(str(error).split())[:200]
            raise StorageError(
                f"storage {redact(url)}: cannot {subject}: "
                f"{redact(reason, url) or type(error).__name__}; results on this machine are kept: "
                "start the same command again once it can be reached"
            ) from error


NO_STORAGE = Storage(None, {})
"""Copies nothing: all machines share one folder."""


def storage_of(config: SweepConfig, folder: Path) -> Storage:
    """Storage of a sweep in `folder`: its records and states, and the prepared models."""
    return Storage(config.storage, {config.name: folder, "cache": config.cache_folder})


def _is_current(path: Path, manifest: dict[str, Any]) -> bool:
    """Return whether the local unit is at least as new as the manifest."""
    try:
        return bool(json.loads((path / COPIED).read_text())["version"] >= manifest["version"])
    except (OSError, ValueError, KeyError):
        return False
