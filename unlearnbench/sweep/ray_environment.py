"""The environment of Ray: variables of driver and workers, and checks before it is joined.

Ray reads most variables once, when it starts, so the driver sets them only while a sweep runs.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from unlearnbench.errors import UnlearnbenchError

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
