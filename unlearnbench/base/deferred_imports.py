"""Import transformers and train without the parts of torch and scipy that only other uses need.

Every model class of transformers imports `transformers.modeling_utils`, which imports the compiler
of torch, distributed tensors and checkpoints, and scipy's optimisation for losses of object
detection. These take as long to import as all of transformers, and a model that runs in one process
without `torch.compile` uses none of them. The optimisers of torch import its compiler, too, only to
tell it which of their functions it should leave alone.

`deferred_imports` replaces the built-in function `__import__`, which Python calls for each `import`
statement, as long as the context lasts. Two kinds of statements find something else then:

1. If a module of transformers or accelerate executes `from torch.distributed.tensor import
   DTensor`, it gets a `DeferredName`, which imports the module at its first use. `_DEFERRED` lists
   the modules.
2. If one of the modules of torch in `_TELLS_COMPILER` executes `import torch._dynamo`, the name
   `torch._dynamo` is a `_DeferredCompiler`. It has the decorators of the compiler. What they are
   told is told to the compiler right after the compiler's import, if it is ever imported.

Everything else is imported as usual:

- modules that were imported before, and imports by any other package or module;
- statements of other forms, such as `import torch.distributed.tensor`;
- everything in a run of several processes.

Modules in `sys.modules` are never replaced, so a later import outside the context is a usual one.
What a stand-in lacks is looked up in the real module, which is imported for it. If the statements
of another version of a library look different, they are usual imports, which only cost time. One
use is not covered: a `DeferredName` cannot stand in an `except` clause.
"""

import builtins
import functools
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from unlearnbench.base.import_hooks import after_import

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
_IMPORTERS = ("transformers.", "accelerate.")
"""How the names of modules begin whose imports are deferred."""
_TELLS_COMPILER = (
    "torch._compile",
    "torch._subclasses.fake_tensor",
    "torch.compiler",
    "torch.optim.optimizer",
)
"""Modules of torch that import the compiler to tell it something, or to ask for a setting."""


@contextmanager
def deferred_imports() -> Generator[None, None, None]:
    """Defer imports, see above, as long as the context lasts.

    Contexts may be nested. The compiler is deferred only if torch is already imported.
    """
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
        replacement.is_active = False
        # Somebody else may have replaced it meanwhile.
        if builtins.__import__ is replacement:
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
    """A replacement of `__import__`, with the same arguments.

    Attributes:
        is_active: Whether imports are deferred.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self.is_active = True
        self._original = original

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        may_be_deferred = level == 0 and name.startswith(("torch.", "scipy."))
        if may_be_deferred and globals is not None and self.is_active:
            importer = str(globals.get("__name__"))
            if fromlist and "*" not in fromlist and _is_deferred(name, importer):
                return _DeferredModule(name)
            if not fromlist and importer in _TELLS_COMPILER and _is_stood_in_for(name):
                # `import torch._dynamo` binds the name `torch`.
                return sys.modules["torch"]
        return self._original(name, globals, locals, fromlist, level)


def _is_deferred(name: str, importer: str) -> bool:
    if name in sys.modules or not importer.startswith(_IMPORTERS):
        return False
    return any(name == module or name.startswith(f"{module}.") for module in _DEFERRED)


# The compiler


@contextmanager
def _deferred_compiler() -> Generator[None, None, None]:
    """Let `torch._dynamo` be the `_DeferredCompiler` as long as the context lasts."""
    torch = sys.modules.get("torch")
    if torch is None or _COMPILER in sys.modules:
        yield
        return
    vars(torch)["_dynamo"] = _deferred
    try:
        yield
    finally:
        # An import of the compiler has replaced the attribute.
        if vars(torch).get("_dynamo") is _deferred:
            del vars(torch)["_dynamo"]


def _is_stood_in_for(name: str) -> bool:
    """Whether `_deferred` has what a statement `import name` makes available."""
    if name not in (_COMPILER, f"{_COMPILER}.config") or _COMPILER in sys.modules:
        return False
    return vars(sys.modules["torch"]).get("_dynamo") is _deferred


class _DeferredCompiler(ModuleType):
    """Stands for `torch._dynamo`. It has what torch and transformers use without compiling."""

    def __init__(self) -> None:
        super().__init__(_COMPILER)
        self.config = _CompilerConfig()
        self._opaque: list[Any] = []
        """Functions for `allow_in_graph`."""
        self._disabled: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()
        """By wrapper, what disables its function. A wrapper that nobody uses is forgotten."""
        self._waits_for_import = False

    def _wait_for_import(self) -> None:
        if not self._waits_for_import:
            after_import(_COMPILER, self._tell)
            self._waits_for_import = True

    def _tell(self, compiler: Any) -> None:
        """Tell the real compiler what the stand-in was told."""
        for function in self._opaque:
            compiler.allow_in_graph(function)
        for disable_in in list(self._disabled.values()):
            disable_in(compiler)

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

        self._wait_for_import()
        self._disabled[wrapper] = disable_in
        return wrapper

    def allow_in_graph(self, function: Any) -> Any:
        """Note a function that the compiler does not look into."""
        self._wait_for_import()
        self._opaque.append(function)
        return function

    def assume_constant_result(self, function: Any) -> Any:
        """Mark a function whose result the compiler takes for a constant."""
        function._dynamo_marked_constant = True
        return function

    def graph_break(self, *_arguments: Any, **_options: Any) -> None:
        """End the compiled part of a function here. Nothing is being compiled."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(_COMPILER), name)


class _CompilerConfig:
    """Stands for `torch._dynamo.config`. It has the settings that `FakeTensorMode` reads.

    They decide whether results for fake tensors are kept, whether kept results are checked, and
    which operators have results that somebody has recorded. The values are torch's defaults.
    """

    _custom_ops_profile = None
    fake_tensor_cache_enabled = True
    fake_tensor_cache_crosscheck_enabled = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(f"{_COMPILER}.config"), name)


_deferred = _DeferredCompiler()
