"""Packages that only some runs need."""

import logging
import os
from importlib import import_module
from typing import Any

_UNCOMPILED = "TORCHDYNAMO_DISABLE"
"""Variable under which `torch.compile` returns a function as it is."""


def import_optional(name: str) -> Any:
    """Import an optional package. Raises: ImportError where it is not installed.

    Without the warning of bitsandbytes, which peft imports where it is there: it misses a kernel
    of 4-bit products on CPUs that nothing here calls. And without torch's compiler, for which it
    wraps the functions that stand in for missing kernels: six sevenths of the time of peft's
    import (1.8 s of a processor).
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    before = os.environ.get(_UNCOMPILED)
    os.environ[_UNCOMPILED] = "1"
    try:
        return import_module(name)
    finally:
        if before is None:
            del os.environ[_UNCOMPILED]
        else:
            os.environ[_UNCOMPILED] = before
