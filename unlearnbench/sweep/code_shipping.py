"""The context in which a worker runs the driver's code.

The nodes of a cluster have the same packages installed as the driver's machine; what exists on that
machine alone travels: plug-in files, as text, and pinned commits.
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
from unlearnbench.base.provenance import git_state, set_git_state, versions
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig

SCRATCH = "UNLEARNBENCH_SCRATCH"
"""Environment variable: a node's folder for what goes through the storage; default: in /tmp."""


@lru_cache(maxsize=8)
def check_versions(driver: tuple[tuple[str, str], ...]) -> None:
    """Raise UnlearnbenchError where this node has other versions than the driver."""
    expected, installed = dict(driver), versions()
    differing = "; ".join(
        f"{name} {installed.get(name, 'is missing')} there, {expected.get(name, 'missing')} here"
        for name in sorted(expected | installed)
        if expected.get(name) != installed.get(name)
    )
    if differing:
        raise UnlearnbenchError(
            f"ray.address: node {platform.node()} differs from the driver's machine, so its "
            f"numbers might too: {differing}; install the same versions in every node's image"
        )


@dataclass(frozen=True)
class WorkerContext:
    """The driver's state that a worker process needs to run the driver's code."""

    config: SweepConfig
    folder: Path
    """The sweep's, on the driver's machine."""
    working_folder: Path
    node: str
    """Ray's id of the driver's node."""
    plugins: tuple[tuple[Path, Texts], ...]
    """Plugin files with their texts: they may exist on the driver's machine alone."""
    versions: tuple[tuple[str, str], ...]
    git: dict[str, Any] | None
    """The commit of the code, which travels without its checkout."""
    hub: tuple[tuple[str, str], ...] = ()
    """Commits of the hub's repositories, so that all workers read the same."""

    @classmethod
    def capture(cls, config: SweepConfig, folder: Path) -> WorkerContext:
        """Capture this process's context, once Ray has started."""
        import ray

        return cls(
            # Workers log nothing, and Tune writes its parameters to disk: leave out the settings
            # of the tracking server, which may contain a password.
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
        """Set this process up like the driver's; returns configuration and folder for this node.

        Raises: UnlearnbenchError where this node has other versions than the driver.
        """
        check_versions(self.versions)
        if self.git is not None:
            set_git_state(self.git)
        hub.pin(dict(self.hub))
        if self.working_folder.is_dir():  # relative paths are the driver's
            os.chdir(self.working_folder)
        for path, texts in self.plugins:
            registry.register_copy(path, texts)
        return self._paths()

    def _paths(self) -> tuple[SweepConfig, Path]:
        """Configuration and folder: the driver's, or a scratch folder that a storage feeds."""
        import ray

        config = self.config
        if config.storage is None or ray.get_runtime_context().get_node_id() == self.node:
            return config, self.folder
        default = Path(tempfile.gettempdir(), f"unlearnbench-{getuser()}")
        folder = Path(os.environ.get(SCRATCH) or default).absolute() / config.name
        folder.mkdir(parents=True, exist_ok=True)
        storage = str(config.storage)
        if "://" not in storage:
            storage = str(self.working_folder / storage)
        changes = {"output": str(folder.parent), "cache": None, "storage": storage}
        return config.model_copy(update=changes), folder
