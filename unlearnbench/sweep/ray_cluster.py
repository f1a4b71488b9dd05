"""Start Ray for a sweep or join a cluster, and count the runs that fit."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from unlearnbench.config.resources import LOCAL_RUNS
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.sweep import ray_environment as environment
from unlearnbench.sweep.code_shipping import pack_code
from unlearnbench.sweep.node_check import check_nodes, gpu_differences
from unlearnbench.sweep.placement import alive, processes_that_fit, runs_that_fit
from unlearnbench.sweep.ray_faults import RayLostError, kill_local_ray, no_worker_left

STORE_BYTES = 100 * 2**20
"""Ray's shared memory: it holds specs and metrics, no models."""


@contextmanager
def ray_session(config: SweepConfig, warn: Callable[[str], None]) -> Generator[int, None, None]:
    """Run Ray inside the `with`; yields the number of concurrent runs.

    Raises: UnlearnbenchError where no cluster answers, where its nodes differ from this one, or
    where a run fits nowhere.
    """
    lost = False
    with environment.driver_environment(local=config.ray.address is None):
        import ray
        from ray._private import worker

        # Failures are printed by `Progress`; standard output belongs to `--json`.
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        setattr(worker, "_worker_logs_enabled", False)  # noqa: B010  # it may be gone one day
        try:
            _start(config)
            there = alive()
            slots = run_slots(config, [node["Resources"] for node in there])
            if config.ray.address is not None:
                # A head node often has room for no process.
                each = [config.resources_of(model.name) for model in config.models]
                fit = [n for n in there if any(processes_that_fit(n["Resources"], e) for e in each)]
                found = check_nodes(config, fit)
                if unlike := gpu_differences(found):
                    warn(unlike)
            if idle := idle_gpu_warning(config, slots, [node["Resources"] for node in there]):
                warn(idle)
            yield slots
        except RayLostError:
            lost = True
            kill_local_ray()
            raise
        finally:
            # Freeing Ray's objects would send messages to a Ray that is gone, and wait for answers.
            with environment.collection_paused(before=not lost), no_worker_left():
                ray.shutdown()


def worker_variables(config: SweepConfig) -> dict[str, str]:
    """The environment variables of the workers."""
    cpus = config.resources.cpu
    if not any(config.resources_of(model.name).gpu for model in config.models):
        return environment.worker_environment(cpus)
    from unlearnbench.models.device import cuda_variables  # it imports torch

    trainings = (config.training, *map(config.training_of, config.method_names))
    return environment.worker_environment(cpus) | cuda_variables(
        deterministic=any(how.deterministic for how in trainings)
    )


def _start(config: SweepConfig) -> None:
    """Start or join, with the workers' environment and code."""
    import ray

    address = _address(config)
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as folder:
        runtime_env: dict[str, Any] = {"env_vars": worker_variables(config)}
        if config.ray.address is not None:
            runtime_env["py_modules"] = pack_code(config, Path(folder))
        try:
            with without_services() if config.ray.address is None else nullcontext():
                ray.init(
                    runtime_env=runtime_env,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **address,
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            if config.ray.address is None:
                raise
            raise environment.no_cluster_error(config.ray.address, error) from None


@contextmanager
def without_services() -> Generator[None, None, None]:
    """Let a Ray that starts inside the `with` have no autoscaler, dashboard and log monitor.

    They take seconds of the start, and nothing here reads them. Ray has no option for it; where its
    own names change, it starts them as ever.
    """
    from ray._private.node import Node

    names = [
        n for n in ("start_monitor", "start_api_server", "start_log_monitor") if hasattr(Node, n)
    ]
    usual = {name: getattr(Node, name) for name in names}

    def nothing(*_: object, **__: object) -> None: ...

    for name in names:
        setattr(Node, name, nothing)
    try:
        yield
    finally:
        for name, method in usual.items():
            setattr(Node, name, method)


def _address(config: SweepConfig) -> dict[str, Any]:
    """Arguments of `ray.init`: a cluster, or a Ray on this machine that ends with this process."""
    settings = config.ray
    if settings.address is not None:
        if config.storage is None:
            environment.check_output(config.output)
        return {"address": environment.check_address(settings.address)}
    resources = [config.resources_of(model.name) for model in config.models]
    on_gpus = any(one.gpu for one in resources)
    concurrent = settings.concurrent or (None if on_gpus else LOCAL_RUNS)
    cores = max(one.cpu * one.world_size for one in resources)
    return {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": math.ceil(concurrent * cores) if concurrent else None,  # None: all
        "num_gpus": None if on_gpus else 0,
        "object_store_memory": STORE_BYTES,
    }


def run_slots(config: SweepConfig, nodes: Sequence[dict[str, float]]) -> int:
    """Number of concurrent runs. Raises: UnlearnbenchError where one fits nowhere: Ray would wait.

    nodes  resources by Ray's names
    """
    settings = config.ray
    if settings.address is not None and settings.concurrent is not None:
        return settings.concurrent  # the cluster may grow on demand
    most = 0
    for model in config.models:
        resources = config.resources_of(model.name)
        fitting = runs_that_fit(nodes, resources)
        if not fitting:
            there = "; ".join(
                ", ".join(f"{node.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
                for node in nodes
            )
            each = ", ".join(f"{amount:g} {name}" for name, amount in resources.per_process.items())
            grows = ", or set `ray.concurrent` if the cluster grows" if settings.address else ""
            raise UnlearnbenchError(
                f"resources: no run of {model.name} fits into Ray's resources ({there}): it takes "
                f"{resources.world_size} × ({each}); lower `resources` (gpu: {resources.gpu:g}, "
                f"cpu: {resources.cpu:g}){grows}"
            )
        most = max(most, fitting)
    if settings.address is None:
        on_gpus = any(config.resources_of(model.name).gpu for model in config.models)
        most = min(settings.concurrent or (most if on_gpus else LOCAL_RUNS), most)
    return most


def idle_gpu_warning(config: SweepConfig, slots: int, nodes: Sequence[dict[str, float]]) -> str:
    """A warning if so many concurrent runs leave most GPUs unused; else empty."""
    there = sum(node.get("GPU", 0.0) for node in nodes)
    used = slots * max(config.resources_of(model.name).gpu for model in config.models)
    if not used or 2 * used >= there:
        return ""
    return (
        f"{used:g} of {there:g} GPUs are used: {slots} runs at a time; leave ray.concurrent out "
        "to use all that fit"
    )
