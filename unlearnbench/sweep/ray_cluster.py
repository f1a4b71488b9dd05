"""Start Ray for a sweep or join a cluster, count the runs that fit, and notice that Ray has died.

Ray reads most of its variables once, when it starts, so the driver sets them only while a sweep
runs. A driver whose local Ray has died would wait for it forever, and Ray has no public interface
to its processes: they are looked for among this process's children.
"""

import gc
import logging
import math
import os
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from unlearnbench.base.errors import UnlearnbenchError
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
_PASSED_ON = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_PREFIXES = ("RAY_", "TUNE_", "PYTHONBREAKPOINT")
STORE_BYTES = 100 * 2**20
"""Ray's shared memory: it holds specs and metrics, no models."""
NAMES = {"raylet", "gcs_server"}
"""Processes without which Ray does not go on."""


class RayLostError(BaseException):
    """Ray is gone. Not an `Exception`: for those Tune cleans up first, which waits for Ray."""


@contextmanager
def ray_session(config: SweepConfig) -> Generator[int, None, None]:
    """Run Ray inside the `with`; yields the number of concurrent runs.

    Raises: UnlearnbenchError where no cluster answers, where a run fits nowhere, or where Ray dies.
    """
    lost = False
    with driver_environment(local=config.ray.address is None):
        import ray

        # Failures are printed by `Progress`; standard output belongs to `--json`.
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            _start(config)
            yield run_slots(config, [node["Resources"] for node in alive()])
        except RayLostError as error:
            lost = True
            raise UnlearnbenchError(
                f"ray: {error}; check that memory suffices (lower ray.concurrent), then run the "
                "same command again: finished epochs are kept"
            ) from None
        finally:
            # Freeing Ray's objects would send messages to a Ray that is gone, and wait for answers.
            with collection_paused(before=not lost):
                ray.shutdown()


def check_ray(config: SweepConfig) -> None:
    """Raise RayLostError if a process of the local Ray has died; a joined cluster is Ray's own."""
    if config.ray.address is None:
        running = {_name(child) for child in psutil.Process().children()}
        for name in NAMES - running:
            raise RayLostError(f"its process {name} died")


def _name(process: psutil.Process) -> str:
    """Name of a process that runs; of a zombie, which a container may not collect, empty."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process.name())
    except psutil.Error:  # gone at this moment
        return ""


def worker_variables(config: SweepConfig) -> dict[str, str]:
    """The environment variables of the workers."""
    cpus = config.resources.cpu
    if not any(config.resources_of(model.name).gpu for model in config.models):
        return worker_environment(cpus)
    from unlearnbench.models.device import cuda_variables  # it imports torch

    trainings = (config.training, *map(config.training_of, config.method_names))
    return worker_environment(cpus) | cuda_variables(
        deterministic=any(training.deterministic for training in trainings)
    )


def _start(config: SweepConfig) -> None:
    """Start or join, with the workers' environment."""
    import ray

    address = config.ray.address
    try:
        ray.init(
            **_address(config),
            runtime_env={"env_vars": worker_variables(config)},
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise no_cluster_error(address, error) from None


def _address(config: SweepConfig) -> dict[str, Any]:
    """Arguments of `ray.init`: a cluster, or a Ray on this machine that ends with this process."""
    settings = config.ray
    if settings.address is not None:
        if config.storage is None:
            check_output(config.output)
        return {"address": check_address(settings.address)}
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
            room = "; ".join(
                ", ".join(f"{node.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
                for node in nodes
            )
            each = ", ".join(f"{amount:g} {name}" for name, amount in resources.per_process.items())
            grows = ", or set `ray.concurrent` if the cluster grows" if settings.address else ""
            raise UnlearnbenchError(
                f"resources: no run of {model.name} fits into Ray's resources ({room}): it takes "
                f"{resources.world_size} × ({each}); lower `resources` (gpu: {resources.gpu:g}, "
                f"cpu: {resources.cpu:g}){grows}"
            )
        most = max(most, fitting)
    if settings.address is None:
        on_gpus = any(config.resources_of(model.name).gpu for model in config.models)
        most = min(settings.concurrent or (most if on_gpus else LOCAL_RUNS), most)
    return most


@contextmanager
def driver_environment(*, local: bool) -> Generator[None, None, None]:
    """Set the driver's variables inside the `with`, and remove those that Ray adds.

    local  Ray is started on this machine alone
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    os.environ.update(_DRIVER | (_LOCAL if local else _JOINED))
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def collection_paused(*, before: bool = True) -> Generator[None, None, None]:
    """Collect garbage now (if `before`), and not inside the `with`.

    For Ray's shutdown: if another thread frees a reference between the end of Ray's core and the
    end of its Python side, the whole process ends silently with exit code 1.
    """
    if before:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def worker_environment(cpus: float) -> dict[str, str]:
    """A worker's variables; numpy and torch read the thread counts when they are imported."""
    threads = str(max(1, int(cpus)))
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a run without GPUs sees none
        **passed,
    }


def check_address(address: str) -> str:
    """The address to join. Raises: UnlearnbenchError where nothing answers.

    Ray itself tries for minutes, then ends the process.
    """
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise no_cluster_error(address, error) from None
    return address


def check_output(output: str) -> None:
    """Raise UnlearnbenchError where results would be deleted with a submitted job's folder."""
    if "working_dir_files" in Path(output).resolve().parts:
        raise UnlearnbenchError(
            f"output: {output!r} is inside the job's working_dir, which Ray deletes after the job; "
            "give an absolute path that all nodes see, or `storage`"
        )


def no_cluster_error(address: str, reason: Exception) -> UnlearnbenchError:
    """The error for a `ray.address` at which nothing answers."""
    text = " ".join(str(reason).split())[:200] or type(reason).__name__
    return UnlearnbenchError(
        f"ray.address: no Ray cluster answers at {address!r} ({text}); give host:port of a running "
        "one, start the command on a machine of the cluster, or leave the key out for a local one"
    )
