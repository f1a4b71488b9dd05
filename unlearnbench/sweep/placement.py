"""How many runs fit onto the machines of a cluster, and where the processes of a run go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unlearnbench.execution import Resources

Node = dict[str, float]
"""What a machine has, by Ray's names."""


def alive() -> list[dict[str, Any]]:
    """The cluster's machines as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def processes_that_fit(node: Node, wanted: Resources) -> int:
    """Processes of a run that one machine has room for."""
    return min(int(node.get(name, 0.0) / need + 1e-9) for name, need in wanted.each.items())


def strategy(nodes: Sequence[Node], wanted: Resources) -> str:
    """Ray's placement strategy for the processes of one run.

    They stay on one machine wherever one has room for all of them: gathering weights over a
    network takes longer than the work.
    """
    largest = max((processes_that_fit(node, wanted) for node in nodes), default=0)
    return "STRICT_PACK" if wanted.world <= largest else "PACK"


def runs_that_fit(nodes: Sequence[Node], wanted: Resources) -> int:
    """Runs that can be carried out at a time."""
    each = [processes_that_fit(node, wanted) for node in nodes]
    if strategy(nodes, wanted) == "STRICT_PACK":
        return sum(fitting // wanted.world for fitting in each)
    return sum(each) // wanted.world
