"""A module that is imported in a thread while something else is computed."""

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module


@contextmanager
def imported_meanwhile(name: str) -> Generator[None, None, None]:
    """Import a module in a thread while the context lasts.

    An error of the import is left to whoever imports the module afterwards.

    Args:
        name: The module. It should be one of a library that nothing in the context imports, since
            two threads that import modules of one package can see a module that is not whole.
    """

    def import_it() -> None:
        with suppress(Exception):
            import_module(name)

    thread = threading.Thread(target=import_it, name=f"import of {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
