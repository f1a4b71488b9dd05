"""Import transformers without the parts of torch and scipy that only other uses of it need.

Every model class of transformers imports `transformers.modeling_utils`, which imports the compiler
of torch, distributed tensors and checkpoints, and scipy's optimisation for losses of object
detection. These take as long to import as all of transformers, and a model that runs in one process
without `torch.compile` uses none of them.

`deferred_imports` replaces the built-in function `__import__`, which Python calls for each `import`
statement, as long as the context lasts. If a module of transformers executes
`from torch.distributed.tensor import DTensor`, it gets a `DeferredName`, which imports the module
at its first use. Everything else is imported as usual:

- modules that were imported before, and imports by any other package, such as torch itself;
- statements of other forms, such as `import torch.distributed.tensor`.

Modules in `sys.modules` are never replaced, so a later import outside the context is a usual one.
"""

import builtins
import functools
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_DEFERRED = (
    _COMPILER,
    "scipy.optimize",
    "torch.distributed._composable.fsdp",
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
)
"""Modules that are deferred, with all modules inside them."""
_IMPORTER = "transformers."
"""How the names of modules begin whose imports are deferred."""
_DECORATORS = ("torch.compiler", "torch._compile")
"""Modules of torch with decorators that import the compiler."""


@contextmanager
def deferred_imports() -> Generator[None, None, None]:
    """Defer imports of transformers, see above, as long as the context lasts."""
    original = builtins.__import__
    # A model that is divided between processes needs distributed tensors.
    if isinstance(original, _Import) or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        yield
        return
    replacement = _Import(original)
    builtins.__import__ = replacement
    try:
        with _deferred_compiler():
            yield
    finally:
        builtins.__import__ = original


class DeferredName:
    """Stands for a name of a module that is imported when the name is used.

    It can be called, asked for attributes, subclassed, and used in annotations and `isinstance`.
    """

    def __init__(self, module: str, name: str) -> None:
        """Defer `from module import name`."""
        self._module = module
        self._name = name

    def _imported(self) -> Any:
        # `import_module` does not call `__import__`, so it is never deferred itself.
        return getattr(import_module(self._module), self._name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call what the name stands for. Within the context, the call is deferred, too."""
        if isinstance(builtins.__import__, _Import) and self._module not in sys.modules:
            return _DeferredValue(lambda: self._imported()(*arguments, **options))
        return self._imported()(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of what the name stands for."""
        if name.startswith("__"):
            # Python asks any object for such names, for example to copy it.
            raise AttributeError(name)
        return getattr(self._imported(), name)

    def __instancecheck__(self, value: object) -> bool:
        """Whether a value is an instance of the class that the name stands for."""
        # A class that was never imported has no instances.
        return self._module in sys.modules and isinstance(value, self._imported())

    def __subclasscheck__(self, subclass: type) -> bool:
        """Whether a class is a subclass of the class that the name stands for."""
        return self._module in sys.modules and issubclass(subclass, self._imported())

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[Any, ...]:
        """Return the class itself, for a class statement that has the name among its bases."""
        return (self._imported(),)

    def __or__(self, other: object) -> object:
        """Return the annotation `DTensor | None`, which nobody reads."""
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        """Describe the name."""
        return f"<{self._module}.{self._name}, not imported yet>"


class _DeferredValue:
    """Stands for the result of a call that happens when the result is used.

    An example is `Replicate()` in a table of ways to share a layer between processes.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = functools.cache(call)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        # `isinstance` asks for it.
        return type(self._call())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._call(), name)

    def __eq__(self, other: object) -> bool:
        return bool(self._call() == other)

    def __hash__(self) -> int:
        return hash(self._call())


class _DeferredModule(ModuleType):
    """What a statement `from module import name` takes its names from."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return DeferredName(self.__name__, name)


class _Import:
    """A replacement of `__import__`, with the same arguments."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and globals is not None and name.startswith(("torch.", "scipy.")):
            importer = str(globals.get("__name__"))
            if fromlist and "*" not in fromlist and _is_deferred(name, importer):
                return _DeferredModule(name)
            if name == _COMPILER and importer in _DECORATORS:
                torch = sys.modules["torch"]
                if isinstance(vars(torch).get("_dynamo"), _DeferredCompiler):
                    return torch
        return self._original(name, globals, locals, fromlist, level)


def _is_deferred(name: str, importer: str) -> bool:
    if name in sys.modules or not importer.startswith(_IMPORTER):
        return False
    return any(name == module or name.startswith(f"{module}.") for module in _DEFERRED)


# Decorators of the compiler


@contextmanager
def _deferred_compiler() -> Generator[None, None, None]:
    """Let `torch._dynamo` be a `_DeferredCompiler` as long as the context lasts."""
    torch = sys.modules.get("torch")
    if torch is None or _COMPILER in sys.modules:
        yield
        return
    compiler = _DeferredCompiler()
    finder = _CompilerFinder(compiler)
    sys.meta_path.insert(0, finder)
    vars(torch)["_dynamo"] = compiler
    try:
        yield
    finally:
        # An import of the compiler has replaced the attribute.
        if vars(torch).get("_dynamo") is compiler:
            del vars(torch)["_dynamo"]
        if not compiler.calls and finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _DeferredCompiler(ModuleType):
    """Stands for `torch._dynamo`. It has the decorators that transformers uses at import.

    Attributes:
        calls: What to do with the compiler when it is imported.
    """

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.calls: list[Callable[[Any], object]] = []

    def disable(
        self,
        function: Callable[..., Any] | None = None,
        recursive: bool = True,
        **options: Any,
    ) -> Callable[..., Any]:
        """Decorate a function that the compiler leaves alone."""
        if function is None:
            return functools.partial(self.disable, recursive=recursive, **options)
        # Without the compiler, nothing is being compiled.
        called = [function]

        def disable_in(compiler: Any) -> None:
            called[0] = compiler.disable(function, recursive, **options)

        @functools.wraps(function)
        def wrapper(*arguments: Any, **values: Any) -> Any:
            return called[0](*arguments, **values)

        self.calls.append(disable_in)
        return wrapper

    def allow_in_graph(self, function: Any) -> Any:
        """Note a function that the compiler does not look into."""
        self.calls.append(lambda compiler: compiler.allow_in_graph(function))
        return function

    def assume_constant_result(self, function: Any) -> Any:
        """Mark a function whose result the compiler takes for a constant."""
        function._dynamo_marked_constant = True
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(_COMPILER), name)


class _CompilerFinder(MetaPathFinder):
    """Finds the compiler once, and carries out the calls that were made before it was imported."""

    def __init__(self, deferred: _DeferredCompiler) -> None:
        self._deferred = deferred

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _CompilerLoader(spec.loader, self._deferred)
        return spec


class _CompilerLoader(Loader):
    def __init__(self, loader: Loader, deferred: _DeferredCompiler) -> None:
        self._loader = loader
        self._deferred = deferred

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for call in self._deferred.calls:
            call(module)
