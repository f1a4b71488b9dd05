"""Compare the nodes of a joined cluster with the driver's machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearnbench.api import registry
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.results.remote_copies import Storage
from unlearnbench.runtime.gpu_inventory import gpus_of_machine
from unlearnbench.runtime.provenance import versions

ANSWER_SECONDS = 300.0
"""Longest wait for a node's first answer: it unpacks the code and starts a process."""


@dataclass(frozen=True)
class NodeReport:
    """The versions, methods and GPUs of a node."""

    host: str
    versions: dict[str, str]
    methods: dict[str, str]
    """By method: `package version` that offers it."""
    place: str
    """The folder that this package was imported from."""
    gpu: dict[str, str] = field(default_factory=dict[str, str])
    """GPU, compute capability, driver, and the CUDA that torch is built for."""


def report_node(methods: Sequence[str], storage: Storage | None = None) -> NodeReport:
    """Describe this process's node. Raises: StorageError where it does not reach the storage."""
    if storage is not None:
        storage.check()
    offers = {offer.name: offer.source for offer in registry.offers("methods")}
    return NodeReport(
        host=platform.node(),
        versions=versions(),
        methods={name: offers[name] for name in methods if name in offers},
        place=str(Path(__file__).parents[1]),
        gpu=gpus_of_machine(),
    )


def differences(there: NodeReport, here: NodeReport) -> list[str]:
    """List the differences that may change a node's numbers, a phrase each."""
    found = [
        f"{name} {there.versions.get(name, 'is missing')} there, {expected} here"
        for name, expected in here.versions.items()
        if there.versions.get(name) != expected
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


def gpu_differences(reports: Sequence[NodeReport]) -> str:
    """A warning where nodes have different GPUs or drivers; else empty."""
    equipped = [report for report in reports if "GPU" in report.gpu]
    found = [
        f"{key} {other.gpu[key]} on {other.host}, {value} on {equipped[0].host}"
        for other in equipped[1:]
        for key, value in equipped[0].gpu.items()
        if other.gpu[key] != value
    ]
    if not found:
        return ""
    return f"the nodes' GPUs differ, so their numbers agree to rounding only: {'; '.join(found)}"


def check_nodes(config: SweepConfig, nodes: Iterable[dict[str, Any]]) -> list[NodeReport]:
    """Compare each of `nodes`, as `ray.nodes()` lists them, with this process.

    Raises: UnlearnbenchError that lists every difference with its node and both versions.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Plugin files are not installed on nodes: their text travels.
    names = dict.fromkeys(config.method_names)
    methods = [name for name in names if registry.find("methods", name).version]
    reports: dict[str, Any] = {}
    for node in nodes:
        pinned: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task: Any = ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=pinned)(report_node)
        reports[f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})"] = task.remote(
            methods, Storage(config.storage, {})
        )
    here, problems, found = report_node(methods), list[str](), list[NodeReport]()
    for name, answer in reports.items():
        try:
            there: NodeReport = ray.get(answer, timeout=ANSWER_SECONDS)
        except RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            problems.append(f"node {name}: it does not answer: {lines[-1].strip()}")
            continue
        found.append(there)
        problems += [f"node {name}: {difference}" for difference in differences(there, here)]
    if problems:
        raise _mismatch(problems)
    return found


def _mismatch(problems: Sequence[str]) -> UnlearnbenchError:
    return UnlearnbenchError(
        "ray.address: the cluster's nodes differ from this machine, so their numbers might too:\n"
        + "\n".join(f"  {problem}" for problem in problems)
        + "\ninstall the same versions in every node's image, including the package that offers a "
        "method, and start again; no run was started"
    )


@lru_cache(maxsize=8)
def check_versions(driver: tuple[tuple[str, str], ...]) -> None:
    """Compare this process's versions with the driver's, once in each process.

    The node may have joined after `check_nodes`.
    """
    # Versions alone: the GPUs may differ from the driver's.
    found = differences(NodeReport("", versions(), {}, ""), NodeReport("", dict(driver), {}, ""))
    if found:
        raise _mismatch([f"node {platform.node()}: {difference}" for difference in found])
