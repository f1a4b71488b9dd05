"""Copy results and checkpoints to a storage that all machines reach: a path, `s3://…`, `gs://…`.

Each machine works in a folder of its own. Finished units are copied to the storage, and units of
other machines are copied from it, through fsspec. Without `storage` all machines share one
`output`, and these functions do nothing.

A unit is a folder that is there as a whole or not at all. Its files are copied first, and a
manifest with the SHA-256 of each file is copied last. If a file that comes back has another hash,
the copy is discarded and its unit is made again.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.errors import StorageError
from unlearnbench.base.hashing import file_hash
from unlearnbench.base.locks import exclusive_lock
from unlearnbench.base.redaction import redact
from unlearnbench.config.schema import SweepConfig

MANIFEST = "manifest.json"
COPIED = ".manifest.json"
"""Local copy of the manifest of a unit that changes, as of the last time that it was copied."""
AT_ONCE = 8
"""Records that are copied at a time."""

_EXTRA_OF_SCHEME = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""The extra of this package with the driver of a storage, by the beginning of its address."""


class _FileSystem(NamedTuple):
    """An opened storage."""

    files: Any
    """File system of fsspec."""
    root: str
    """Path of the storage in it, without a slash at its end."""


@dataclass(frozen=True)
class Storage:
    """The units of some local folders, as they are in the storage.

    Every method raises `StorageError` if the storage does not answer. What is on this machine stays
    as it is.
    """

    url: str | None
    """None if all machines share one folder, so that nothing is copied."""
    roots: Mapping[str, Path]
    """Local folders by their name in the storage: `{"cache": …, "quickstart": …}`."""

    def check(self) -> None:
        """Write and remove a small file, to see that the storage can be written to."""
        if self.url is not None:
            probe = f"{self._root}/.probe-{uuid4().hex}"
            self._do("write", self._files.pipe_file, probe, b"unlearnbench")
            self._remove_file(probe)

    def has(self, path: Path) -> bool:
        """Whether the storage has the unit of the local folder `path`."""
        return self.url is not None and self._manifest(self._key(path)) is not None

    def push(self, location: Path, *, changes: bool = False) -> None:
        """Copy a unit to the storage.

        Args:
            location: Local folder of the unit. Nothing happens if it is not there.
            changes: Whether the unit may change later, as a checkpoint does. It then replaces an
                earlier copy. If not, the first copy stays.
        """
        if self.url is None or not location.is_dir():
            return
        key = self._key(location)
        old_manifest = self._manifest(key)
        if old_manifest is not None and not changes:
            return
        version = 1 if old_manifest is None else old_manifest["version"] + 1
        # Files of a unit that changes have new names in each version, so that the old manifest
        # stays true until the new one replaces it.
        prefix = f"{uuid4().hex[:12]}/" if changes else ""
        files: dict[str, dict[str, str]] = {}
        paths = (path for path in location.rglob("*") if path.is_file() and path.name != COPIED)
        for path in sorted(paths):
            name = path.relative_to(location).as_posix()
            files[name] = {"sha256": file_hash(path), "stored": f"{prefix}{name}"}
            self._do("write", self._files.put_file, str(path), f"{key}/{prefix}{name}")
        text = json.dumps({"version": version, "files": files})
        self._do("write", self._files.pipe_file, f"{key}/{MANIFEST}", text.encode())
        if changes:
            (location / COPIED).write_text(text)
        if old_manifest is not None:
            for file in old_manifest["files"].values():
                self._remove_file(f"{key}/{file['stored']}")

    def fetch(self, path: Path, *, changes: bool = False) -> bool:
        """Copy a unit from the storage unless it is here.

        Args:
            path: Local folder of the unit.
            changes: Whether the unit may change. If another machine has brought it further, its
                version replaces the one that is here.

        Returns:
            Whether the unit is here now.
        """
        if self.url is None or (path.is_dir() and not changes):
            return path.is_dir()
        key = self._key(path)
        with exclusive_lock(path.with_name(f".{path.name}.copy")):
            manifest = self._manifest(key)
            if manifest is None:
                return path.is_dir()
            # Another process may have fetched the unit while this one waited for the lock.
            is_current = path.is_dir() and (not changes or _is_current(path, manifest))
            if is_current:
                return True
            with atomic_folder(path) as part:
                if not self._copy(key, manifest, part):
                    shutil.rmtree(part)
                    # Without a manifest, the next process that makes the unit stores it.
                    self._remove_file(f"{key}/{MANIFEST}")
                    return path.is_dir()
                if changes:
                    (part / COPIED).write_text(json.dumps(manifest))
                shutil.rmtree(path, ignore_errors=True)
        return True

    def share(self, parent: Path) -> None:
        """Copy the records in a folder both ways. Failed and stopped runs stay where they are.

        Args:
            parent: Local folder whose subfolders are units.
        """
        if self.url is None:
            return
        key = self._key(parent)
        try:
            stored_paths: list[str] = self._do("list", self._files.ls, key, detail=False)
        except FileNotFoundError:
            stored_paths = []
        stored = {Path(path).name for path in stored_paths}
        # Names with a dot are of failed and stopped runs, and of damaged records.
        local = {path.name for path in parent.glob("*") if path.is_dir() and "." not in path.name}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            # `list` waits for all of them, and raises what one of them has raised.
            list(pool.map(self.fetch, [parent / name for name in sorted(stored - local)]))
            list(pool.map(self.push, [parent / name for name in sorted(local - stored)]))

    def put(self, files: Sequence[Path]) -> None:
        """Copy files that are no units, for people to read. The last one of a name stays."""
        if self.url is None:
            return
        for path in files:
            self._do("write", self._files.put_file, str(path), self._key(path))

    def remove(self, path: Path) -> None:
        """Delete a unit in the storage."""
        if self.has(path):
            key = self._key(path)
            # The manifest goes first, so that a half of the unit does not count as the unit.
            self._remove_file(f"{key}/{MANIFEST}")
            self._do("remove", self._files.rm, key, recursive=True)

    @cached_property
    def _file_system(self) -> _FileSystem:
        """The storage, which is opened when it is needed first."""
        import fsspec

        url = str(self.url)
        self._check_driver(url)
        is_local = "://" not in url or url.startswith(("file://", "local://"))
        options = {"auto_mkdir": True} if is_local else {}
        open_url = fsspec.core.url_to_fs
        # Other machines add files, so that listings must not be cached.
        files, root = self._do("open", open_url, url, use_listings_cache=False, **options)
        return _FileSystem(files, str(root).rstrip("/"))

    def _check_driver(self, url: str) -> None:
        """Raise StorageError if the package that reads storages of this kind is not installed."""
        import fsspec

        scheme, separator, _ = url.partition("://")
        extra = _EXTRA_OF_SCHEME.get(scheme)
        if not separator or extra is None:
            return
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError:
            raise StorageError(
                f"storage {redact(url)}: {scheme}:// needs a package that is not installed: "
                f"pip install 'unlearnbench[{extra}]', or name a folder that all machines reach"
            ) from None

    @property
    def _files(self) -> Any:
        return self._file_system.files

    @property
    def _root(self) -> str:
        return self._file_system.root

    def _key(self, path: Path) -> str:
        """Return the place of a local path in the storage: `bucket/folder/quickstart/records`."""
        for name, root in self.roots.items():
            if path.is_relative_to(root):
                return f"{self._root}/{name}/{path.relative_to(root).as_posix()}"
        raise StorageError(f"storage: {path} is in none of {[*map(str, self.roots.values())]}")

    def _manifest(self, key: str) -> dict[str, Any] | None:
        """Read the manifest of a unit.

        Returns:
            `{"version": 1, "files": {"a.json": {"sha256": "…", "stored": "a.json"}}}`. None if
            there is none, or if it cannot be read.
        """
        with suppress(FileNotFoundError, ValueError):
            text = self._do("read", self._files.cat_file, f"{key}/{MANIFEST}")
            manifest: dict[str, Any] = json.loads(text)
            return manifest
        return None

    def _copy(self, key: str, manifest: dict[str, Any], into: Path) -> bool:
        """Copy all files of a unit to this machine; returns whether each has its hash."""
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

    def _remove_file(self, key: str) -> None:
        with suppress(FileNotFoundError):  # Another process may have been first.
            self._do("remove", self._files.rm_file, key)

    def _do(self, subject: str, operation: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call an operation of the file system, which tries again by itself if that may help.

        Args:
            subject: Verb that an error message names, such as `write`.
            operation: Function to call.
            args: Its arguments.
            options: Its named arguments.

        Raises:
            FileNotFoundError: If there is no such file.
            StorageError: If the operation fails in any other way.
        """
        try:
            return operation(*args, **options)
        except FileNotFoundError:
            raise
        except Exception as error:  # Drivers of file systems raise errors of many types.
            url = str(self.url)
            reason = " ".join(str(error).split())[:200]
            raise StorageError(
                f"storage {redact(url)}: cannot {subject}: "
                f"{redact(reason, url) or type(error).__name__}; results on this machine are kept: "
                "start the same command again once it can be reached"
            ) from error


NO_STORAGE = Storage(None, {})
"""Copies nothing: all machines share one folder."""


def storage_of(config: SweepConfig, folder: Path) -> Storage:
    """Return the storage of a sweep: its records and states, and the prepared models.

    Args:
        config: Configuration of the sweep.
        folder: Its local folder.
    """
    return Storage(config.storage, {config.name: folder, "cache": config.cache_folder})


def _is_current(path: Path, manifest: dict[str, Any]) -> bool:
    """Whether the local unit is at least as new as a manifest of the storage."""
    try:
        local = json.loads((path / COPIED).read_text())
        return bool(local["version"] >= manifest["version"])
    except (OSError, ValueError, KeyError):
        return False
