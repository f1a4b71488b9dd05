"""Environment variables that make Ray quiet, keep it to itself, and settle its workers' threads.

Ray reads most of these once, when it starts, so they stand while a sweep runs and not after it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

_DRIVER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of the configuration stay right
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray does by itself, without its warning
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the command, as everywhere
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # records are the only state
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
_PASSED_ON = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


_OF_RAY = ("RAY_", "TUNE_", "PYTHONBREAKPOINT")


@contextmanager
def for_driver() -> Generator[None, None, None]:
    """The driver's variables, for the time of the `with`; what Ray adds is taken away as well."""
    before = {name: value for name, value in os.environ.items() if name.startswith(_OF_RAY)}
    os.environ.update(_DRIVER)
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(_OF_RAY)]:
            del os.environ[name]
        os.environ.update(before)


def of_worker(cpus: float) -> dict[str, str]:
    """A worker's variables; threads are settled before it imports numpy or torch."""
    threads = str(max(1, int(cpus)))
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        **passed,
    }
