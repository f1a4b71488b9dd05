"""Ship the driver's code to the workers, and the context in which they run it.

To a joined cluster travel the packages that planned the sweep: this one and those that offer its
methods, its benchmark, its attacks and all metrics, with their entry points. They travel as the
files of a wheel and not as a `.whl`, which Ray would install with pip on each node, together with
its dependencies: a second torch in front of the node's own. The dependencies do not travel;
`node_check` compares them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from getpass import getuser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from unlearnbench.api import registry
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.files import hub
from unlearnbench.runtime.provenance import git_state, set_git_state, versions
from unlearnbench.sweep.node_check import check_versions

PACKAGE = "unlearnbench"
SCRATCH = "UNLEARNBENCH_SCRATCH"
"""Environment variable: a node's folder for what goes through the storage; default: in /tmp."""
_NOT_CODE = shutil.ignore_patterns("__pycache__", "*.pyc")


def pack_code(config: SweepConfig, into: Path) -> list[str]:
    """Copy the packages that workers import to `into`; returns Ray's `py_modules`.

    Raises: UnlearnbenchError where a package's files cannot be found.
    """
    packages = dict.fromkeys([PACKAGE])
    offers = [registry.find("methods", name) for name in config.method_names]
    offers += [registry.find("benchmarks", config.data.source), *registry.offers("metrics")]
    offers += [registry.find("attacks", attack.name) for attack in config.attacks]
    for offer in offers:
        if offer.version:  # else a plugin file, whose text travels in the WorkerContext
            packages[offer.package] = None
    for package in packages:
        try:
            _copy(distribution(package), into)
        except PackageNotFoundError:
            raise UnlearnbenchError(
                f"ray.address: {package} is imported from a bare checkout, so it has no entry "
                "points that could travel to the cluster; run `pip install -e .` in it"
            ) from None
    return [str(path) for path in sorted(into.iterdir())]


def _copy(dist: Distribution, into: Path) -> None:
    """Copy the distribution's modules, under their import names, and its metadata."""
    for name in _modules(dist):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            for place in spec.submodule_search_locations:
                shutil.copytree(place, into / name, ignore=_NOT_CODE, dirs_exist_ok=True)
        elif spec is not None and spec.origin and spec.origin.endswith(".py"):
            shutil.copy2(spec.origin, into / f"{name}.py")
        else:
            raise UnlearnbenchError(
                f"ray.address: module {name!r} of {dist.name} {dist.version} is neither a package "
                "nor a Python file, so it cannot travel to the cluster; offer its plug-ins from "
                "a package"
            )
    info = into / f"{dist.name.replace('-', '_')}-{dist.version}.dist-info"
    info.mkdir()
    for file in ("METADATA", "entry_points.txt", "top_level.txt"):
        text = dist.read_text(file)
        if text is not None:
            (info / file).write_text(text, encoding="utf-8")


def _modules(dist: Distribution) -> list[str]:
    """List the top-level modules of a distribution."""
    listed = (dist.read_text("top_level.txt") or "").split()
    files = [file.parts for file in dist.files or () if file.suffix == ".py"]
    # An editable installation without that list shows no more than its entry points.
    offered = [point.value.partition(":")[0].split(".")[0] for point in dist.entry_points]
    names = {*(listed or (parts[0].removesuffix(".py") for parts in files)), *offered}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("__"))


@dataclass(frozen=True)
class WorkerContext:
    """The driver's state that a worker process needs to run the driver's code."""

    config: SweepConfig
    folder: Path
    """The sweep's, on the driver's machine."""
    working_folder: Path
    node: str
    """Ray's id of the driver's node."""
    plugins: tuple[tuple[Path, bytes], ...]
    """Plugin files with their text: they may exist on the driver's machine alone."""
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
        for path, text in self.plugins:
            registry.register_copy(path, text)
        return self._paths()

    def _paths(self) -> tuple[SweepConfig, Path]:
        """Configuration and folder: the driver's, or a scratch folder that a storage feeds."""
        import ray

        config = self.config
        if config.storage is None or ray.get_runtime_context().get_node_id() == self.node:
            return config, self.folder
        default = Path(tempfile.gettempdir(), f"{PACKAGE}-{getuser()}")
        folder = Path(os.environ.get(SCRATCH) or default).absolute() / config.name
        folder.mkdir(parents=True, exist_ok=True)
        storage = str(config.storage)
        if "://" not in storage:
            storage = str(self.working_folder / storage)
        changes = {"output": str(folder.parent), "cache": None, "storage": storage}
        return config.model_copy(update=changes), folder
