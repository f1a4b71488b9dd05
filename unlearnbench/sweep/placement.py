"""Capacity of a cluster in runs, and placement of the processes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unlearnbench.config.resources import Resources

Node = dict[str, float]
"""Resources of a machine, by Ray's names."""


def alive() -> list[dict[str, Any]]:
    """The cluster's live machines as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def processes_that_fit(node: Node, resources: Resources) -> int:
    """Number of processes of a run that fit onto one machine."""
    return min(
        int(node.get(name, 0.0) / need + 1e-9) for name, need in resources.per_process.items()
    )


def strategy(nodes: Sequence[Node], resources: Resources) -> str:
    """Ray's placement strategy for the processes of one run.

    They share a machine if one has room for all of them: gathering weights over a network takes
    longer than the computation.
    """
    largest = max((processes_that_fit(node, resources) for node in nodes), default=0)
    return "STRICT_PACK" if resources.world_size <= largest else "PACK"


def runs_that_fit(nodes: Sequence[Node], resources: Resources) -> int:
    """Number of concurrent runs."""
    each = [processes_that_fit(node, resources) for node in nodes]
    if strategy(nodes, resources) == "STRICT_PACK":
        return sum(fitting // resources.world_size for fitting in each)
    return sum(each) // resources.world_size
