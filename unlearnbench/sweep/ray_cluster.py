"""Start Ray for a sweep or join a cluster, and count the runs that fit.

Ray reads most of its environment variables once, when it starts. Therefore the driver sets them
just before.
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
"""Seconds to wait for an answer of a cluster."""
STORE_BYTES = 100 * 2**20
"""Size of Ray's shared memory, which holds specs and metrics, but no models."""

_DRIVER_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    # Print no line of Ray's own processes, because `Progress` says what has ended. Ray reads the
    # variable when it is imported.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    # Do not let Ray start by itself. After a sweep, a call such as `remove_placement_group` would
    # otherwise start another Ray, which nobody ends. Ray reads the variable when it is imported.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # The configuration has relative paths.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # A worker without GPUs sees none, see `worker_variables`.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ctrl-C ends the command, as everywhere.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Records are the only state.
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
_LOCAL_VARIABLES = {
    # Despite its name: listen on loopback only. Ray reads it when it is first imported.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Start no worker for each CPU in advance. Such workers lack our variables, so no run would use
    # one.
    "RAY_prestart_worker_first_driver": "0",
}
_CLUSTER_VARIABLES = {
    # Merge our runtime environment with that of the job by which this command was submitted.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
}
_PASSED_ON = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GOMP_SPINCOUNT")
"""Variables of the driver that workers get if they are set."""


@contextmanager
def ray_session(config: SweepConfig) -> Generator[int, None, None]:
    """Run Ray inside the `with` statement.

    Yields:
        The number of concurrent runs.

    Raises:
        UnlearnbenchError: No cluster answers, or a run fits nowhere.
    """
    is_local = config.ray.address is None
    os.environ.update(_DRIVER_VARIABLES)
    os.environ.update(_LOCAL_VARIABLES if is_local else _CLUSTER_VARIABLES)
    import ray

    # `Progress` prints failures, and standard output belongs to `--json`.
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    # A cluster has a temporary folder of its own.
    sockets = short_ray_sockets() if is_local else nullcontext()
    with sockets:
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
    """Return the environment variables of the workers.

    Numpy and torch read the numbers of threads when they are imported, so a worker cannot set them
    itself.
    """
    resources = [config.resources_of(model.name) for model in config.models]
    thread_count = max(1, *(int(needed.cpu) for needed in resources))
    variables = {
        "OMP_NUM_THREADS": str(thread_count),
        "MKL_NUM_THREADS": str(thread_count),
        "TOKENIZERS_PARALLELISM": "false",
        # A worker without GPUs sees none.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    }
    variables |= {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    if not any(needed.gpus for needed in resources):
        return variables
    from unlearnbench.models.device import cuda_variables  # it imports torch

    trainings = (config.training, *map(config.training_of, config.method_names))
    is_deterministic = any(training.deterministic for training in trainings)
    return variables | cuda_variables(deterministic=is_deterministic)


def start(config: SweepConfig) -> None:
    """Start Ray or join a cluster, with the workers' environment.

    Raises:
        UnlearnbenchError: No cluster answers.
    """
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
    """Return the arguments of `ray.init` that say where Ray runs.

    Without an address, Ray runs on this machine and ends with this process.

    Raises:
        UnlearnbenchError: Ray would delete the sweep's folder.
        OSError: No cluster answers.
    """
    if config.ray.address is None:
        return local_ray(config)
    if config.storage is None and "working_dir_files" in Path(config.output).resolve().parts:
        raise UnlearnbenchError(
            f"output: {config.output!r} is inside the job's working_dir, which Ray deletes "
            "after the job; give an absolute path that all nodes see, or `storage`"
        )
    if config.ray.address != "auto":
        # If nothing answers, Ray would try for minutes, and then end the process.
        host, _, port = config.ray.address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    return {"address": config.ray.address}


def local_ray(config: SweepConfig) -> dict[str, Any]:
    """Return the arguments of `ray.init` for a Ray on this machine."""
    resources = [config.resources_of(model.name) for model in config.models]
    uses_gpus = any(needed.gpus for needed in resources)
    cores_of_run = max(needed.cpu * needed.world_size for needed in resources)
    concurrent = config.ray.concurrent
    if concurrent is None and not uses_gpus:
        concurrent = LOCAL_RUNS
    return {
        "address": "local",
        "include_dashboard": False,
        # Ray counts cores to bound the number of runs. None: all cores of the machine.
        "num_cpus": None if concurrent is None else math.ceil(concurrent * cores_of_run),
        "num_gpus": None if uses_gpus else 0,
        "object_store_memory": STORE_BYTES,
    }


def lacking_resources(config: SweepConfig, gpus: int, cores: int) -> list[str]:
    """Return a sentence for each model whose runs need more than this machine has.

    Ray would wait for ever for what is not there. `resources.gpu` is the number of GPUs of a run,
    and `resources.cpu` the number of cores of each of its processes.

    The list is empty if the runs go to a cluster, which may have other machines.

    Args:
        config: The sweep.
        gpus: Number of GPUs of this machine.
        cores: Number of CPU cores of this machine.
    """
    if config.ray.address is not None:
        return []
    sentences: list[str] = []
    for index, model in enumerate(config.models):
        resources = config.resources_of(model.name)
        gpus_of_run = math.ceil(resources.gpus)
        cores_of_run = resources.cpu * resources.world_size
        can_share = resources.is_measured or 0 < resources.gpus < 1
        if can_share and not gpus:
            section = "resources" if model.resources is None else f"models.{index}.resources"
            sentences.append(
                f"a run of {model.name} shares a GPU ({section}.gpu: {resources.gpu_text}), and "
                "this machine has no GPU; take a machine with one, or compute on the CPU with "
                f"--set {section}.gpu=0"
            )
        elif gpus_of_run > gpus:
            sentences.append(
                f"a run of {model.name} needs {_counted(gpus_of_run, 'GPU')} "
                f"(resources.gpu), and this machine has {_counted(gpus, 'GPU')}; take a machine "
                "with more, or compute on the CPU with --set resources.gpu=0"
            )
        elif cores_of_run > cores:
            sentences.append(
                f"a run of {model.name} needs {cores_of_run:g} CPU cores (resources.cpu × "
                f"processes), and this machine has {cores}; lower `resources`"
            )
    return sentences


def _counted(count: int, noun: str) -> str:
    """Return a number with its noun, as in `no GPU`, `1 GPU` or `2 GPUs`."""
    return f"{count or 'no'} {noun}{'s' * (count > 1)}"


def run_slots(config: SweepConfig, nodes: Sequence[dict[str, float]]) -> int:
    """Return the number of concurrent runs.

    Args:
        config: The sweep.
        nodes: The resources of each node, by Ray's names, such as `{"CPU": 8.0, "GPU": 1.0}`.

    Raises:
        UnlearnbenchError: A run of some model fits nowhere. Ray would wait for ever.
    """
    settings = config.ray
    if settings.address is not None and settings.concurrent is not None:
        # The cluster may grow on demand, so it is not asked what fits now.
        return settings.concurrent
    fitting_of_model: dict[str, int] = {}
    for model in config.models:
        fitting = runs_that_fit(nodes, config.resources_of(model.name))
        if not fitting:
            raise _no_room(config, model.name, nodes)
        fitting_of_model[model.name] = fitting
    most = max(fitting_of_model.values())
    if settings.address is not None:
        return most
    uses_gpus = any(config.resources_of(model.name).gpus for model in config.models)
    wanted = settings.concurrent or (most if uses_gpus else LOCAL_RUNS)
    return min(wanted, most)


def _no_room(
    config: SweepConfig, model: str, nodes: Sequence[dict[str, float]]
) -> UnlearnbenchError:
    """Return the error that says which resources a run of a model lacks."""
    if config.ray.address is None:
        gpus = round(sum(node.get("GPU", 0.0) for node in nodes))
        cores = round(sum(node.get("CPU", 0.0) for node in nodes))
        lacking = lacking_resources(config, gpus, cores)
        if lacking:
            return UnlearnbenchError("; ".join(lacking))
    machines: list[str] = []
    for node in nodes:
        amounts = [f"{node.get(name, 0.0):g} {name}" for name in ("CPU", "GPU")]
        machines.append(", ".join(amounts))
    resources = config.resources_of(model)
    needed = ", ".join(f"{amount:g} {name}" for name, amount in resources.per_process.items())
    return UnlearnbenchError(
        f"resources: the cluster has no room for a run of {model}: its machines have "
        f"({'; '.join(machines)}), and a run needs {resources.world_size} × ({needed}); lower "
        "`resources`, or set `ray.concurrent` if the cluster grows"
    )
