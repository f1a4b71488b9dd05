"""The nodes of a joined cluster: what travels to them, and whether they are alike.

The driver's own packages travel, so that every node runs the code that planned the sweep: this one,
and those that offer the sweep's methods, with their entry points. They go as the files of a wheel
and not as a `.whl`, which Ray would hand to pip on each node, together with all that it depends on:
a second torch in front of the node's own. The dependencies do not travel; they are compared.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from getpass import getuser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from unlearnbench import hub, registry
from unlearnbench.device import gpus_of_machine
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.execution import TrackingSettings
from unlearnbench.provenance import code_travelled, git_state, versions
from unlearnbench.settings import SweepConfig
from unlearnbench.storage import Storage

OWN = "unlearnbench"
SCRATCH = "UNLEARNBENCH_SCRATCH"
"""Variable of a node: its own folder for what goes through the storage; default: in /tmp."""
ANSWER_SECONDS = 300.0
"""For a node's first answer: it unpacks what has travelled, and starts a process."""
_NOT_CODE = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True)
class Report:
    """What a node has."""

    host: str
    versions: dict[str, str]
    methods: dict[str, str]
    """By method: `package version` that offers it."""
    place: str
    """Where this package was imported from."""
    gpu: dict[str, str] = field(default_factory=dict[str, str])
    """GPU, compute capability, driver, and the CUDA that torch is built for."""


def pack(config: SweepConfig, into: Path) -> list[str]:
    """Copy what the workers import into `into`; returns Ray's `py_modules`.

    Raises: UnlearnbenchError where a package's files cannot be found.
    """
    packages = dict.fromkeys([OWN])
    for name in used_methods(config):
        offer = registry.find("methods", name)
        if offer.version:  # else a file, whose text travels with the tasks
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


def used_methods(config: SweepConfig) -> list[str]:
    """Names of the sweep's methods, sorted."""
    return sorted({spec.name for grid in config.methods for spec in grid.specs})


def _copy(dist: Distribution, into: Path) -> None:
    """The distribution's modules under the names they are imported by, and its metadata."""
    for name in _modules(dist):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            for place in spec.submodule_search_locations:
                shutil.copytree(place, into / name, ignore=_NOT_CODE, dirs_exist_ok=True)
        elif spec is not None and spec.origin and spec.origin.endswith(".py"):
            shutil.copy2(spec.origin, into / f"{name}.py")
        else:
            raise UnlearnbenchError(
                f"ray.address: module {name!r} of {dist.name} {dist.version} is no package and no "
                "Python file, so it cannot travel to the cluster; offer its methods from a package"
            )
    info = into / f"{dist.name.replace('-', '_')}-{dist.version}.dist-info"
    info.mkdir()
    for file in ("METADATA", "entry_points.txt", "top_level.txt"):
        text = dist.read_text(file)
        if text is not None:
            (info / file).write_text(text, encoding="utf-8")


def _modules(dist: Distribution) -> list[str]:
    """Top-level names that a distribution imports by."""
    listed = (dist.read_text("top_level.txt") or "").split()
    files = [file.parts for file in dist.files or () if file.suffix == ".py"]
    # Of an editable installation without that list its entry points are all that is known.
    offered = [point.value.partition(":")[0].split(".")[0] for point in dist.entry_points]
    names = {*(listed or (parts[0].removesuffix(".py") for parts in files)), *offered}
    return sorted(name for name in names if name.isidentifier() and not name.startswith("__"))


def report(methods: Sequence[str], storage: Storage | None = None) -> Report:
    """What this process has; StorageError where it does not reach the storage."""
    import unlearnbench

    if storage is not None:
        storage.check()
    offers = {offer.name: offer.source for offer in registry.offers("methods")}
    return Report(
        host=platform.node(),
        versions=versions(),
        methods={name: offers[name] for name in methods if name in offers},
        place=str(Path(unlearnbench.__file__).parent),
        gpu=gpus_of_machine(),
    )


def differences(there: Report, here: Report) -> list[str]:
    """What keeps a node from giving the driver's numbers, a phrase each."""
    found = [
        f"{name} {there.versions.get(name, 'is missing')} there, {wanted} here"
        for name, wanted in here.versions.items()
        if there.versions.get(name) != wanted
    ]
    found += [
        f"{name} {there.versions[name]} there, missing here"
        for name in there.versions.keys() - here.versions.keys()
    ]
    built = "CUDA of torch"
    if there.gpu.get(built) != here.gpu.get(built):
        found.append(
            f"torch is built for CUDA {there.gpu.get(built)} there, {here.gpu.get(built)} here"
        )
    for name, source in here.methods.items():
        other = there.methods.get(name)
        if other is None:
            found.append(f"no entry point of method {name!r} there, {source} offers it here")
        elif other != source:
            found.append(f"method {name!r} is from {other} there, from {source} here")
    return found


def unlike_gpus(reports: Sequence[Report]) -> str:
    """A warning where nodes have different GPUs or drivers; else empty."""
    equipped = [one for one in reports if "GPU" in one.gpu]
    found = [
        f"{key} {other.gpu[key]} on {other.host}, {value} on {equipped[0].host}"
        for other in equipped[1:]
        for key, value in equipped[0].gpu.items()
        if other.gpu[key] != value
    ]
    if not found:
        return ""
    return f"the nodes' GPUs differ, so their numbers agree to rounding only: {'; '.join(found)}"


def check_nodes(config: SweepConfig, nodes: Iterable[dict[str, Any]]) -> list[Report]:
    """Ask each of `nodes` (as `ray.nodes()` gives them) what it has.

    Raises: UnlearnbenchError that names each node that differs, what, and both versions.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Of files nothing is installed: their text travels.
    methods = [n for n in used_methods(config) if registry.find("methods", n).version]
    asked: dict[str, Any] = {}
    for node in nodes:
        pinned: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task: Any = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=pinned)(report)
        asked[f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"] = task.remote(
            methods, Storage(config.storage, {})
        )
    here, wrong, reports = report(methods), list[str](), list[Report]()
    for name, answer in asked.items():
        try:
            there: Report = ray.get(answer, timeout=ANSWER_SECONDS)
        except RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            wrong.append(f"node {name}: it does not answer: {lines[-1].strip()}")
            continue
        reports.append(there)
        wrong += [f"node {name}: {what}" for what in differences(there, here)]
    if wrong:
        raise _unlike(wrong)
    return reports


def _unlike(wrong: Sequence[str]) -> UnlearnbenchError:
    return UnlearnbenchError(
        "ray.address: the cluster's nodes are not like this one, so their numbers might not be:\n"
        + "\n".join(f"  {line}" for line in wrong)
        + "\ninstall the same versions in every node's image, `pip install` of the package that "
        "offers a method included, and start again; nothing was run"
    )


@lru_cache(maxsize=8)
def _check_here(versions_there: tuple[tuple[str, str], ...]) -> None:
    """Once in a process: the node may have joined after the others were asked."""
    there = report([])
    found = differences(there, Report("", dict(versions_there), {}, "", there.gpu))
    if found:
        raise _unlike([f"node {platform.node()}: {what}" for what in found])


@dataclass(frozen=True)
class Luggage:
    """What a worker process knows of its driver."""

    config: SweepConfig
    folder: Path
    """The sweep's, on the driver's machine."""
    working_folder: Path
    node: str
    """Ray's id of the driver's."""
    plugins: tuple[tuple[Path, bytes], ...]
    """Plugin files, with their text: they may be on the driver's machine alone."""
    versions: tuple[tuple[str, str], ...]
    git: dict[str, Any] | None
    """The commit of the code, which travels without its checkout."""
    hub: tuple[tuple[str, str], ...] = ()
    """Commits of the hub's repositories, so that all workers read the same."""

    @classmethod
    def of(cls, config: SweepConfig, folder: Path) -> Luggage:
        """This process's; Ray is there."""
        import ray

        return cls(
            # Workers log nothing, and Tune writes what they are given to disk: no secret of a
            # tracking server among it.
            config=config.model_copy(update={"tracking": TrackingSettings()}),
            folder=folder,
            working_folder=Path.cwd(),
            node=ray.get_runtime_context().get_node_id(),
            plugins=tuple((path, path.read_bytes()) for path in registry.plugin_files()),
            versions=tuple(versions().items()),
            git=git_state(),
            hub=tuple(hub.pinned().items()),
        )

    def unpack(self) -> tuple[SweepConfig, Path]:
        """Make this process like the driver's; the configuration and folder as they are here.

        Raises: UnlearnbenchError where this node has other versions than the driver.
        """
        _check_here(self.versions)
        if self.git is not None:
            code_travelled(self.git)
        hub.pin(dict(self.hub))
        if self.working_folder.is_dir():  # relative paths are the driver's
            os.chdir(self.working_folder)
        for path, text in self.plugins:
            registry.register_file(_plugin_here(path, text))
        return self._here()

    def _here(self) -> tuple[SweepConfig, Path]:
        """As on the driver's machine, unless what is shared goes through a storage."""
        import ray

        config = self.config
        if config.storage is None or ray.get_runtime_context().get_node_id() == self.node:
            return config, self.folder
        scratch = Path(os.environ.get(SCRATCH) or Path(tempfile.gettempdir(), f"{OWN}-{getuser()}"))
        folder = scratch.absolute() / config.name
        folder.mkdir(parents=True, exist_ok=True)
        places = {"output": str(folder.parent), "cache": None}
        return config.model_copy(update=places | {"storage": self._storage()}), folder

    def _storage(self) -> str:
        """A path in the driver's terms."""
        url = str(self.config.storage)
        return url if "://" in url else str(self.working_folder / url)


@lru_cache(maxsize=64)
def _plugin_here(path: Path, text: bytes) -> Path:
    """The plugin file at its own place if it is the same there, else a copy of it."""
    if path.is_file() and path.read_bytes() == text:
        return path
    copy = Path(tempfile.mkdtemp(prefix="unlearnbench-plugin-")) / path.name
    copy.write_bytes(text)
    return copy
