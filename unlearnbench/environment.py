"""What is seen to before Ray starts: that it is quiet and keeps to itself, how many threads its
workers have, and whether the cluster that it is to join answers.

Ray reads most variables once, when it starts, so they stand while a sweep runs and not after it.
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
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of the configuration stay right
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # see `of_worker`
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the command, as everywhere
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # records are the only state
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
_LOCAL = {
    # On any system: no address but loopback. Ray reads it when it is first imported.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_PASSED_ON = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


_OF_RAY = ("RAY_", "TUNE_", "PYTHONBREAKPOINT")


_JOINED = {
    # What the job that this command may be has been submitted with stays, but for our own keys.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
}


@contextmanager
def for_driver(*, local: bool) -> Generator[None, None, None]:
    """The driver's variables, for the time of the `with`; what Ray adds is taken away as well.

    local    Ray is started here, for this machine alone
    """
    before = {name: value for name, value in os.environ.items() if name.startswith(_OF_RAY)}
    os.environ.update(_DRIVER | (_LOCAL if local else _JOINED))
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(_OF_RAY)]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def without_collection(*, before: bool = True) -> Generator[None, None, None]:
    """Garbage is collected now (if `before`), and not again before the end of the `with`.

    For Ray's shutdown: a reference of its that another thread frees between the end of Ray's core
    and the end of its Python side ends the whole process, silently, with exit code 1.
    """
    if before:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def of_worker(cpus: float) -> dict[str, str]:
    """A worker's variables; threads are settled before it imports numpy or torch."""
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
    """The address to join, what `auto` means found out as far as it can be without Ray.

    Raises: UnlearnbenchError where nothing answers; Ray itself tries for minutes, then ends the
    process.
    """
    wanted = _auto() if address == "auto" else address
    if wanted == "auto":
        return wanted
    host, _, port = wanted.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise no_cluster(wanted, error) from None
    return wanted


def _auto() -> str:
    """What Ray takes `auto` for: a variable, the last `ray start` here, else what it finds."""
    started = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        last = started.read_text(encoding="utf-8").strip()
    except OSError:
        last = ""
    return os.environ.get("RAY_ADDRESS") or last or "auto"


def check_output(output: str) -> None:
    """An error where results would go with the job that this command has been submitted as."""
    if "working_dir_files" in Path(output).resolve().parts:
        raise UnlearnbenchError(
            f"output: {output!r} is inside the job's working_dir, which Ray deletes after the job; "
            "give an absolute path that all nodes see, or `storage`"
        )


def no_cluster(address: str, reason: Exception) -> UnlearnbenchError:
    """That nothing answers at `ray.address`, and what to do."""
    return UnlearnbenchError(
        f"ray.address: no Ray cluster answers at {address!r} ({_line(reason)}); give host:port of "
        "one that runs, start the command on a machine of the cluster, or leave the key out for a "
        "local one"
    )


def _line(reason: Exception) -> str:
    return " ".join(str(reason).split())[:200] or type(reason).__name__
