"""Import the parts of transformers that every model needs, in half the time."""

import functools
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from unlearnbench.base.deferred_imports import deferred_imports
from unlearnbench.base.garbage_collection import collection_paused
from unlearnbench.base.import_hooks import after_import

_EVERY_MODEL = ("generation.utils", "masking_utils", "modeling_layers", "models.auto.modeling_auto")
"""Modules of transformers that import most of what a model class needs."""
_READER = "create_import_structure_from_path"
"""Function of transformers that reads which names the files of a folder export."""
_NAMES_OF_FILE = "fetch__all__"
"""Function of transformers that reads them from the text of a file."""
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters at which `str.splitlines` divides a text."""


def import_transformers() -> None:
    """Import transformers before its first use, without what only other uses of it need.

    Nothing happens if it is already imported. A module that cannot be imported in this way is
    imported as usual, by the first model that needs it.
    """
    if "transformers.modeling_utils" in sys.modules:
        return
    with collection_paused(), deferred_imports(), _files_read_once():
        for name in _EVERY_MODEL:
            # Whatever goes wrong here depends on the version of transformers.
            with suppress(Exception):
                import_module(f"transformers.{name}")


@contextmanager
def _files_read_once() -> Generator[None, None, None]:
    """Let transformers read the files of its models once and quickly, as long as the context lasts.

    transformers finds out which names its 2,500 files of models export by reading them, when
    `transformers` is imported and again when `transformers.models` is. It keeps the results of 128
    folders, and there are more. It also looks at each line of each file. A version that has no such
    functions is left as it is.
    """
    originals: dict[str, Any] = {}
    changed: list[Any] = []

    def change(import_utils: Any) -> None:
        reader: Any = getattr(import_utils, _READER, None)
        if hasattr(reader, "__wrapped__") and hasattr(reader, "cache_clear"):
            originals[_READER] = reader
            setattr(import_utils, _READER, functools.cache(reader.__wrapped__))
        names_of_file = getattr(import_utils, _NAMES_OF_FILE, None)
        if names_of_file is not None:
            originals[_NAMES_OF_FILE] = names_of_file
            setattr(import_utils, _NAMES_OF_FILE, from_last_assignment(names_of_file))
        changed.append(import_utils)

    withdraw = after_import("transformers.utils.import_utils", change)
    try:
        yield
    finally:
        withdraw()
        for import_utils in changed:
            for name, original in originals.items():
                setattr(import_utils, name, original)


def from_last_assignment(names_of_file: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return a function that reads `__all__` from the text of a file like `names_of_file`.

    It looks only at the text from the last line that begins with `__all__`, which is the line that
    transformers' own function searches for.
    """

    def names(text: str) -> list[str]:
        start = text.rfind("__all__")
        while start > 0 and text[start - 1] not in _LINE_ENDS:
            start = text.rfind("__all__", 0, start)
        return names_of_file(text[start:] if start >= 0 else "")

    return names
