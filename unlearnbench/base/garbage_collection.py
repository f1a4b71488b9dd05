"""Keep Python's garbage collector away from what libraries make while they are imported.

Importing torch and transformers makes about a million objects, and almost all of them stay until
the process ends. The collector visits them again and again while they become more, which takes a
fifth of the time of the imports.
"""

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module

_own_process = False


def keep_what_is_imported() -> None:
    """Declare that this process is ours, so that the collector never visits what it imports.

    In a notebook, this would also keep the garbage of the notebook.
    """
    global _own_process
    _own_process = True


@contextmanager
def collection_paused() -> Generator[None, None, None]:
    """Pause the garbage collector as long as the context lasts.

    In a process that is ours, all objects of before the end of the context are never visited again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _own_process:
            gc.freeze()
        if was_enabled:
            gc.enable()


def import_torch() -> None:
    """Import torch, for a command that imports it with many other modules afterwards."""
    if "torch" not in sys.modules:
        with collection_paused():
            import_module("torch")
