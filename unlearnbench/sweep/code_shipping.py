"""The context in which a worker runs the driver's code.

The nodes of a cluster have the same packages installed as the driver's machine. What exists only on
the driver's machine travels to them: plug-in files, as text, and the commits of the hub.
"""

from __future__ import annotations

import os
import platform
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from getpass import getuser
from pathlib import Path
from typing import Any

from unlearnbench.api import registry
from unlearnbench.api.plugin_source import Texts
from unlearnbench.base import hub
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.garbage_collection import keep_what_is_imported
from unlearnbench.base.heap import keep_freed_memory
from unlearnbench.base.provenance import git_state, set_git_state, versions
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig

SCRATCH = "UNLEARNBENCH_SCRATCH"
"""Environment variable for a node's folder of files that go through the storage.

If it is not set, the folder is in the system's temporary folder, such as /tmp.
"""


@lru_cache(maxsize=8)
def check_versions(driver: tuple[tuple[str, str], ...]) -> None:
    """Raise UnlearnbenchError if this node has other versions of packages than the driver.

    Args:
        driver: The driver's packages, each with its version.
    """
    expected = dict(driver)
    installed = versions()
    differences: list[str] = []
    for name in sorted(expected | installed):
        if expected.get(name) != installed.get(name):
            there = installed.get(name, "is missing")
            here = expected.get(name, "missing")
            differences.append(f"{name} {there} there, {here} here")
    if differences:
        raise UnlearnbenchError(
            f"ray.address: node {platform.node()} differs from the driver's machine, so its "
            f"numbers might too: {'; '.join(differences)}; install the same versions in every "
            "node's image"
        )


@dataclass(frozen=True)
class WorkerContext:
    """The driver's state that a worker process needs to run the driver's code.

    Attributes:
        config: The sweep.
        folder: The sweep's folder on the driver's machine.
        working_folder: The driver's working directory.
        node: Ray's id of the driver's node.
        plugins: Plug-in files with their texts, because the nodes may not have the files.
        versions: The driver's packages, each with its version.
        git: The commit of the code, which travels without its checkout. None if it is not known.
        hub: Commits of the hub's repositories, so that all workers read the same ones.
    """

    config: SweepConfig
    folder: Path
    working_folder: Path
    node: str
    plugins: tuple[tuple[Path, Texts], ...]
    versions: tuple[tuple[str, str], ...]
    git: dict[str, Any] | None
    hub: tuple[tuple[str, str], ...] = ()

    @classmethod
    def capture(cls, config: SweepConfig, folder: Path) -> WorkerContext:
        """Capture this process's context, once Ray has started."""
        import ray

        return cls(
            # Tune writes its parameters to disk, and the settings of the tracking server may
            # contain a password. They are left out, because workers track nothing.
            config=config.model_copy(update={"tracking": TrackingSettings()}),
            folder=folder,
            working_folder=Path.cwd(),
            node=ray.get_runtime_context().get_node_id(),
            plugins=registry.plugin_files(),
            versions=tuple(versions().items()),
            git=git_state(),
            hub=tuple(hub.pinned().items()),
        )

    def activate(self) -> tuple[SweepConfig, Path]:
        """Set this process up like the driver's.

        Returns:
            The configuration and the sweep's folder, as they are on this node.

        Raises:
            UnlearnbenchError: This node has other versions of packages than the driver.
        """
        keep_what_is_imported()
        keep_freed_memory()
        check_versions(self.versions)
        if self.git is not None:
            set_git_state(self.git)
        hub.pin(dict(self.hub))
        # Relative paths are relative to the driver's working directory.
        if self.working_folder.is_dir():
            os.chdir(self.working_folder)
        for path, texts in self.plugins:
            registry.register_copy(path, texts)
        return self._paths()

    def _paths(self) -> tuple[SweepConfig, Path]:
        """Return the driver's configuration and folder, or those of a scratch folder.

        A node whose files go through a storage has a scratch folder, unless it is the driver's.
        """
        config = self.config
        if config.storage is None:
            return config, self.folder
        import ray

        is_driver_node = ray.get_runtime_context().get_node_id() == self.node
        if is_driver_node:
            return config, self.folder
        default_scratch = Path(tempfile.gettempdir(), f"unlearnbench-{getuser()}")
        scratch = Path(os.environ.get(SCRATCH) or default_scratch).absolute()
        folder = scratch / config.name
        folder.mkdir(parents=True, exist_ok=True)
        storage = str(config.storage)
        is_url = "://" in storage
        if not is_url:
            storage = str(self.working_folder / storage)
        changes = {"output": str(scratch), "cache": None, "storage": storage}
        return config.model_copy(update=changes), folder
