"""Import packages that only some runs need."""

import logging
import os
from importlib import import_module
from typing import Any

_UNCOMPILED = "TORCHDYNAMO_DISABLE"
"""Environment variable that makes `torch.compile` return a function as it is."""


def import_optional(name: str) -> Any:
    """Import an optional package, without warnings and without torch's compiler.

    Peft imports bitsandbytes if it is installed. bitsandbytes warns that it misses a kernel of
    4-bit products on CPUs, which nothing here calls. For missing kernels it also wraps functions
    for torch's compiler, which takes six sevenths of the time of peft's import (1.8 s).

    Raises:
        ImportError: If the package is not installed.
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
