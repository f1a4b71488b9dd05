"""Start Ray for a sweep or join a cluster, and count the runs that fit.

Ray reads most of its variables once, when it starts, so the driver sets them just before.
"""

import gc
import logging
import math
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.socket_paths import short_ray_sockets
from unlearnbench.config.resources import LOCAL_RUNS
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.worker_group import alive, runs_that_fit

ANSWER_SECONDS = 10.0

_DRIVER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    # Print no line of raylets: `Progress` tells what ended. Ray reads it when it is imported.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # the configuration has relative paths
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # see `worker_environment`
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the command, as everywhere
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # records are the only state
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
_LOCAL = {
    # Despite its name: listen on loopback only. Ray reads it when it is first imported.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Start no worker for each CPU in advance: they lack our variables, so no run would use one.
    "RAY_prestart_worker_first_driver": "0",
}
_JOINED = {
    # Merge our runtime environment with that of the job by which this command was submitted.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
}
_PASSED_ON = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GOMP_SPINCOUNT")
STORE_BYTES = 100 * 2**20
"""Ray's shared memory: it holds specs and metrics, no models."""


@contextmanager
def ray_session(config: SweepConfig) -> Generator[int, None, None]:
    """Run Ray inside the `with`; yields the number of concurrent runs.

    Raises: UnlearnbenchError where no cluster answers, or where a run fits nowhere.
    """
    os.environ.update(_DRIVER | (_LOCAL if config.ray.address is None else _JOINED))
    import ray

    # Failures are printed by `Progress`; standard output belongs to `--json`.
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    # A cluster has a temporary folder of its own.
    with short_ray_sockets() if config.ray.address is None else nullcontext():
        try:
            start(config)
            yield run_slots(config, [node["Resources"] for node in alive()])
        finally:
            # If another thread frees a reference between the end of Ray's core and the end of its
            # Python side, the whole process ends silently with exit code 1.
            gc.collect()
            gc.disable()
            ray.shutdown()
            gc.enable()


def worker_variables(config: SweepConfig) -> dict[str, str]:
    """The environment variables of the workers.

    Numpy and torch read the numbers of threads when they are imported.
    """
    cpus = (config.resources_of(model.name).cpu for model in config.models)
    threads = str(max(1, *map(int, cpus)))
    variables = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a run without GPUs sees none
    }
    variables |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if not any(config.resources_of(model.name).gpu for model in config.models):
        return variables
    from unlearnbench.models.device import cuda_variables  # it imports torch

    trainings = (config.training, *map(config.training_of, config.method_names))
    return variables | cuda_variables(deterministic=any(t.deterministic for t in trainings))


def start(config: SweepConfig) -> None:
    """Start Ray or join a cluster, with the workers' environment."""
    import ray

    try:
        ray.init(
            **_address(config),
            runtime_env={"env_vars": worker_variables(config)},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        if config.ray.address is None:
            raise
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnlearnbenchError(
            f"ray.address: no Ray cluster answers at {config.ray.address!r} ({text}); give "
            "host:port of a running one, start the command on a machine of the cluster, or leave "
            "the key out for a local one"
        ) from None


def _address(config: SweepConfig) -> dict[str, Any]:
    """Arguments of `ray.init`: a cluster, or a Ray on this machine that ends with this process."""
    settings = config.ray
    if settings.address is not None:
        if config.storage is None and "working_dir_files" in Path(config.output).resolve().parts:
            raise UnlearnbenchError(
                f"output: {config.output!r} is inside the job's working_dir, which Ray deletes "
                "after the job; give an absolute path that all nodes see, or `storage`"
            )
        if settings.address != "auto":  # Ray would try for minutes, then end the process
            host, _, port = settings.address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        return {"address": settings.address}
    resources = [config.resources_of(model.name) for model in config.models]
    on_gpus = any(needed.gpu for needed in resources)
    concurrent = settings.concurrent or (None if on_gpus else LOCAL_RUNS)
    cores = max(needed.cpu * needed.world_size for needed in resources)
    return {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": math.ceil(concurrent * cores) if concurrent else None,  # None: all
        "num_gpus": None if on_gpus else 0,
        "object_store_memory": STORE_BYTES,
    }


def lacking_resources(config: SweepConfig, gpus: int, cores: int) -> list[str]:
    """Return a sentence for each model whose runs need more than this machine has.

    Empty if the runs go to a cluster, which may have other machines.

    Args:
        config: Of the sweep.
        gpus: Number of GPUs of this machine.
        cores: Number of its CPU cores.
    """
    if config.ray.address is not None:
        return []
    sentences: list[str] = []
    for model in config.models:
        resources = config.resources_of(model.name)
        of_cpu = resources.cpu * resources.world_size
        if math.ceil(resources.gpu) > gpus:
            sentences.append(
                f"a run of {model.name} needs {_counted(math.ceil(resources.gpu), 'GPU')} "
                f"(resources.gpu), and this machine has {_counted(gpus, 'GPU')}; take a machine "
                "with more, or compute on the CPU with --set resources.gpu=0"
            )
        elif of_cpu > cores:
            sentences.append(
                f"a run of {model.name} needs {of_cpu:g} CPU cores (resources.cpu × processes), "
                f"and this machine has {cores}; lower `resources`"
            )
    return sentences


def _counted(count: int, noun: str) -> str:
    """`no GPU`, `1 GPU`, `2 GPUs`."""
    return f"{count or 'no'} {noun}{'s' * (count > 1)}"


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
        if not fitting and settings.address is None:
            gpus = round(sum(node.get("GPU", 0.0) for node in nodes))
            cores = round(sum(node.get("CPU", 0.0) for node in nodes))
            lacking = lacking_resources(config, gpus, cores)
            if lacking:
                raise UnlearnbenchError("; ".join(lacking))
        if not fitting:
            room = "; ".join(
                ", ".join(f"{node.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
                for node in nodes
            )
            each = ", ".join(f"{amount:g} {name}" for name, amount in resources.per_process.items())
            raise UnlearnbenchError(
                f"resources: the cluster has no room for a run of {model.name}: its machines have "
                f"({room}), and a run needs {resources.world_size} × ({each}); lower `resources`, "
                "or set `ray.concurrent` if the cluster grows"
            )
        most = max(most, fitting)
    if settings.address is None:
        on_gpus = any(config.resources_of(model.name).gpu for model in config.models)
        most = min(settings.concurrent or (most if on_gpus else LOCAL_RUNS), most)
    return most
