"""Packages that only some runs need."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any


def import_optional(name: str) -> Any:
    """Import `peft` or `bitsandbytes`. Raises: ImportError where it is not installed.

    Without the warning of bitsandbytes, which peft imports where it is there: it misses a kernel
    of 4-bit products on CPUs that nothing here calls.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return import_module(name)
