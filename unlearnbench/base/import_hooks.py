"""Do something with a module as soon as it is imported, whoever imports it."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], object]
"""Is called with a module."""


def after_import(name: str, action: Action) -> Callable[[], None]:
    """Call `action` with the module called `name`, once it is imported.

    The module is imported as usual, and what imports it sees the effects of the action. Nothing
    happens if the module was imported before.

    Args:
        name: The module's full name, such as `torch._dynamo`.
        action: Is called once.

    Returns:
        A function that withdraws the request, if the module has not been imported yet.
    """
    finder = _Finder(name, action)
    sys.meta_path.insert(0, finder)
    return finder.withdraw


class _Finder(MetaPathFinder):
    """Finds a module as the finders behind it do, and gives it another loader."""

    def __init__(self, name: str, action: Action) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for other in others:
            spec = other.find_spec(fullname, path, target)
            if spec is None:
                continue
            if spec.loader is not None:
                spec.loader = _Loader(spec.loader, self)
            return spec
        return None

    def imported(self, module: ModuleType) -> None:
        self.withdraw()
        self._action(module)

    def withdraw(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _Loader(Loader):
    """Loads a module with its own loader, and tells the finder afterwards."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Libraries ask a module for its loader, for example to read other files of a package.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.imported(module)
