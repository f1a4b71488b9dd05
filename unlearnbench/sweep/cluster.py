"""Ray itself: started here for the time of a sweep, or joined, and how much fits into it."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlearnbench import environment
from unlearnbench.device import cuda_variables
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.execution import LOCAL_RUNS
from unlearnbench.settings import SweepConfig
from unlearnbench.sweep import nodes
from unlearnbench.sweep.faults import RayLostError, kill_local_ray
from unlearnbench.sweep.placement import alive, processes_that_fit, runs_that_fit

STORE_BYTES = 100 * 2**20
"""Ray's shared memory: specs and metrics pass through it, no models."""


@contextmanager
def joined(config: SweepConfig, warn: Callable[[str], None]) -> Generator[int, None, None]:
    """Ray for the time of the `with`; yields how many runs go at a time.

    Raises: UnlearnbenchError where no cluster answers, where its nodes are not like this one, or
    where a run fits nowhere.
    """
    lost = False
    with environment.for_driver(local=config.ray.address is None):
        import ray
        from ray._private import worker

        # What a failing run means is told here, in a line of ours; `--json` owns standard output.
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        setattr(worker, "_worker_logs_enabled", False)  # noqa: B010  # it may be gone one day
        try:
            _start(config)
            there = alive()
            slots = slots_of(config, [node["Resources"] for node in there])
            if config.ray.address is not None:
                found = nodes.check_nodes(config, [n for n in there if _takes_a_run(config, n)])
                if unlike := nodes.unlike_gpus(found):
                    warn(unlike)
            if idle := idle_gpus(config, slots, [node["Resources"] for node in there]):
                warn(idle)
            yield slots
        except RayLostError:
            lost = True
            kill_local_ray()
            raise
        finally:
            # What is collected would be told to a Ray that is gone, and waited for.
            with environment.without_collection(before=not lost):
                ray.shutdown()


def worker_variables(config: SweepConfig) -> dict[str, str]:
    """The environment that the processes of a sweep's runs begin with."""
    cpus = config.resources.cpu
    if not any(config.resources_of(model.name).gpu for model in config.models):
        return environment.of_worker(cpus)
    trainings = (config.training, *map(config.training_of, config.method_names))
    return environment.of_worker(cpus) | cuda_variables(
        deterministic=any(how.deterministic for how in trainings)
    )


def _start(config: SweepConfig) -> None:
    """Start or join; what the workers need goes with it."""
    import ray

    where = _where(config)
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as folder:
        runtime_env: dict[str, Any] = {"env_vars": worker_variables(config)}
        if config.ray.address is not None:
            runtime_env["py_modules"] = nodes.pack(config, Path(folder))
        try:
            ray.init(
                runtime_env=runtime_env,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **where,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            if config.ray.address is None:
                raise
            raise environment.no_cluster(config.ray.address, error) from None


def _where(config: SweepConfig) -> dict[str, Any]:
    """The cluster, or this machine alone, where Ray is gone with this process."""
    how = config.ray
    if how.address is not None:
        if config.storage is None:
            environment.check_output(config.output)
        return {"address": environment.check_address(how.address)}
    wanted = [config.resources_of(model.name) for model in config.models]
    on_gpus = any(one.gpu for one in wanted)
    at_a_time = how.concurrent or (None if on_gpus else LOCAL_RUNS)
    cores = max(one.cpu * one.world for one in wanted)
    return {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": math.ceil(at_a_time * cores) if at_a_time else None,  # None: what there is
        "num_gpus": None if on_gpus else 0,
        "object_store_memory": STORE_BYTES,
    }


def slots_of(config: SweepConfig, resources: Sequence[dict[str, float]]) -> int:
    """How many runs fit at a time; an error where one fits nowhere: Ray would wait forever."""
    how = config.ray
    if how.address is not None and how.concurrent is not None:
        return how.concurrent  # nodes may come with the demand
    most = 0
    for model in config.models:
        wanted = config.resources_of(model.name)
        fitting = runs_that_fit(resources, wanted)
        if not fitting:
            there = "; ".join(
                ", ".join(f"{node.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
                for node in resources
            )
            each = ", ".join(f"{amount:g} {name}" for name, amount in wanted.each.items())
            grows = ", or give `ray.concurrent` where the cluster grows" if how.address else ""
            raise UnlearnbenchError(
                f"resources: no run of {model.name} fits into what Ray has ({there}): it takes "
                f"{wanted.world} × ({each}); lower `resources` (gpu: {wanted.gpu:g}, "
                f"cpu: {wanted.cpu:g}){grows}"
            )
        most = max(most, fitting)
    if how.address is None:
        on_gpus = any(config.resources_of(model.name).gpu for model in config.models)
        most = min(how.concurrent or (most if on_gpus else LOCAL_RUNS), most)
    return most


def idle_gpus(config: SweepConfig, slots: int, nodes: Sequence[dict[str, float]]) -> str:
    """A warning where so many runs at a time leave most GPUs unused; else empty."""
    there = sum(node.get("GPU", 0.0) for node in nodes)
    used = slots * max(config.resources_of(model.name).gpu for model in config.models)
    if not used or 2 * used >= there:
        return ""
    return (
        f"{used:g} of {there:g} GPUs are used: {slots} runs at a time; leave ray.concurrent out "
        "to use all that fit"
    )


def _takes_a_run(config: SweepConfig, node: dict[str, Any]) -> bool:
    """Whether a process of some run fits onto the node; a head often takes none."""
    wanted = [config.resources_of(model.name) for model in config.models]
    return any(processes_that_fit(node["Resources"], one) for one in wanted)
