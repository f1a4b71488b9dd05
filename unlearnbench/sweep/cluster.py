"""Ray itself: started here for the time of a sweep, or joined, and how much fits into it."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from unlearnbench import environment
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.execution import Resources
from unlearnbench.settings import SweepConfig

STORE_BYTES = 100 * 2**20
"""Ray's shared memory: specs and metrics pass through it, no models."""


@contextmanager
def joined(config: SweepConfig) -> Generator[int, None, None]:
    """Ray for the time of the `with`; yields how many runs go at a time.

    Raises: UnlearnbenchError where no cluster answers, or where a run fits nowhere.
    """
    address = config.ray.address
    with environment.for_driver(local=address is None):
        import ray
        from ray._private import worker

        # What a failing run means is told here, in a line of ours; `--json` owns standard output.
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        setattr(worker, "_worker_logs_enabled", False)  # noqa: B010  # it may be gone one day
        try:
            ray.init(
                runtime_env={"env_vars": environment.of_worker(config.resources.cpu)},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **_where(config),
            )
            yield _slots(config)
        except ConnectionError as error:  # how Ray says that `auto` finds nothing
            raise environment.no_cluster(address or "local", error) from None
        finally:
            with environment.without_collection():
                ray.shutdown()


def _where(config: SweepConfig) -> dict[str, Any]:
    """The cluster, or this machine alone, where Ray is gone with this process."""
    how = config.ray
    if how.address is not None:
        environment.check_address(how.address)
        return {"address": how.address}
    wanted = [config.resources_of(model.name) for model in config.models]
    return {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": math.ceil(how.concurrent * max(one.cpu * one.world for one in wanted)),
        "num_gpus": None if any(one.gpu for one in wanted) else 0,
        "object_store_memory": STORE_BYTES,
    }


def _slots(config: SweepConfig) -> int:
    """How many runs fit at a time; an error where one fits nowhere: Ray would wait forever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    most = 0
    for model in config.models:
        wanted = config.resources_of(model.name)
        fitting = sum(_fitting(node, wanted) for node in nodes) // wanted.world
        if not fitting:
            there = "; ".join(
                ", ".join(f"{node.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
                for node in nodes
            )
            each = ", ".join(f"{amount:g} {name}" for name, amount in wanted.each.items())
            raise UnlearnbenchError(
                f"resources: no run of {model.name} fits into what Ray has ({there}): it takes "
                f"{wanted.world} × ({each}); lower `resources` (gpu: {wanted.gpu:g}, "
                f"cpu: {wanted.cpu:g})"
            )
        most = max(most, fitting)
    return most if config.ray.address else min(config.ray.concurrent, most)


def _fitting(node: dict[str, float], wanted: Resources) -> int:
    """Processes of a run that fit onto one machine."""
    return min(int(node.get(name, 0.0) / need + 1e-9) for name, need in wanted.each.items())
