"""Import the parts of transformers that every model needs, in half the time."""

import sys
from contextlib import suppress
from importlib import import_module

from unlearnbench.base.deferred_imports import deferred_imports
from unlearnbench.base.garbage_collection import collection_paused

_EVERY_MODEL = ("generation.utils", "masking_utils", "modeling_layers", "models.auto.modeling_auto")
"""Modules of transformers that import most of what a model class needs."""


def import_transformers() -> None:
    """Import transformers before its first use, without what only other uses of it need.

    Nothing happens if it is already imported. A module that cannot be imported in this way is
    imported as usual, by the first model that needs it.
    """
    if "transformers.modeling_utils" in sys.modules:
        return
    with collection_paused(), deferred_imports():
        for name in _EVERY_MODEL:
            # Whatever goes wrong here depends on the version of transformers.
            with suppress(Exception):
                import_module(f"transformers.{name}")
