"""The registry of plug-ins: methods, modifiers, metrics, benchmarks, attacks, sections, …

An installed package offers plug-ins by entry points. Listing them imports nothing. Built-in
plug-ins are found like all others, and a broken plug-in does not affect the rest. An entry point
may also name a package of modules. Then each of its public modules is a plug-in of its own name.

A class can also come from a single file, without a package: `register_file("my_method.py")` offers
it as `my-method` in this process. `plugin_files()` returns the sources of all such files, so that
other processes can register the same plug-ins.
"""

from __future__ import annotations

import copyreg
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

from unlearnbench.api.plugin_code import describe
from unlearnbench.api.plugin_source import (
    PluginSource,
    Texts,
    available_path,
    read_text,
    source_of,
)
from unlearnbench.base.errors import PluginError, did_you_mean
from unlearnbench.base.signals import Stopped

if TYPE_CHECKING:  # imports torch, which listing does not need
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method

Kind = Literal[
    "methods",
    "modifiers",
    "metrics",
    "benchmarks",
    "attacks",
    "trackers",
    "sections",
    "configs",
    "dashboards",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
_DECLARED: dict[Kind, tuple[str, ...]] = {
    "benchmarks": ("headline", "roles"),
    "attacks": ("label",),
    "sections": ("name", "title"),
}
"""Attributes that a class has to define, because its base has no default for them."""
CLASSES: tuple[Kind, ...] = ("methods", "modifiers", "metrics", "benchmarks", "attacks")
"""Kinds whose plug-ins may stand alone in a module or a file, one class in each."""


@dataclass(frozen=True)
class Offer:
    """A plug-in on offer under a name, not imported yet."""

    kind: Kind
    name: str
    target: str
    """`module:attribute`, `module`, or the path of a plugin file."""
    package: str
    version: str
    """Empty for a plugin file."""
    digest: str = ""
    """Hash of a plugin file and its modules; empty for a package."""

    @property
    def source(self) -> str:
        """`package version`, or the name of the file."""
        return f"{self.package} {self.version}".strip()


@dataclass(frozen=True)
class _PluginFile:
    """A plug-in that was imported from a file."""

    source: PluginSource
    digest: str
    """`source.digest`, computed once."""
    kind: Kind
    value: type[Any]
    """The class."""


_files: dict[str, _PluginFile] = {}
"""Registered plug-in files by the name of their plug-in."""


def offers(kind: Kind) -> tuple[Offer, ...]:
    """Return all offers sorted by name; a name that is offered twice occurs twice."""
    on_offer = [*_installed(kind, (*sys.path,))]
    for name, file in _files.items():
        if file.kind == kind:
            path = file.source.path
            on_offer.append(Offer(kind, name, str(path), path.name, "", file.digest))
    return tuple(sorted(on_offer, key=lambda offer: (offer.name, offer.source)))


@cache
def _installed(kind: Kind, path: tuple[str, ...]) -> tuple[Offer, ...]:
    """Return the offers of the packages on `path`, which is `sys.path`."""
    del path  # a key of the cache, because reading entry points takes several milliseconds
    points = entry_points(group=f"unlearnbench.{kind}")
    return tuple(offer for point in points for offer in _offers_of(kind, point))


def names(kind: Kind) -> tuple[str, ...]:
    """Return the names on offer, sorted."""
    return tuple(sorted({offer.name for offer in offers(kind)}))


def find(kind: Kind, name: str) -> Offer:
    """Find the offer of a name, without importing it.

    Raises:
        PluginError: There is no offer of the name, or more than one.
    """
    on_offer = offers(kind)
    if not on_offer:
        raise PluginError(
            f"no {kind} are installed; name a file with --plugin, or run `pip install -e .` in a "
            "checkout, since entry points are written at installation"
        )
    named = [offer for offer in on_offer if offer.name == name]
    if not named:
        raise _unknown(kind, name, sorted({offer.name for offer in on_offer}))
    if len(named) > 1:
        packages = " and ".join(f"{offer.source} ({offer.target})" for offer in named)
        raise PluginError(
            f"{_one(kind)} {name!r} is offered by more than one package: {packages}; "
            "uninstall or rename one"
        )
    return named[0]


def _unknown(kind: Kind, name: str, known: list[str]) -> PluginError:
    """Make the error for a name that is not on offer."""
    near = did_you_mean(name, known) or ";"
    # A label such as "npo+nll" names a method together with its retain term.
    method, plus, _ = name.partition("+")
    if plus and method in known:
        near = f"; that is a label: retain terms and modifiers are keys of {method}'s entry;"
    word = _one(kind)
    if kind in (*CLASSES, "trackers"):
        where = f"`unlearnbench {kind} list` shows those that are installed"
    else:
        where = f"There are {', '.join(known)}"
    if kind in CLASSES:
        where += f"; your own {word} needs --plugin FILE, or plugins: [FILE] in the YAML"
    return PluginError(f"unknown {word} {name!r}{near} {where}")


def load(kind: Kind, name: str) -> Any:
    """Import a plug-in: a class, a package of YAML files, or a dashboard's function.

    Raises:
        PluginError: The name is not on offer, or its plug-in cannot be imported or is no `kind`.
    """
    installed = _installed(kind, (*sys.path,))
    file = _files.get(name)
    # Views ask for the class of an attack in each row of a table, and looking an offer up takes a
    # tenth of a millisecond.
    known = _loaded.get((kind, name))
    if known is None or known.installed is not installed or known.file is not file:
        known = _Loaded(_load(kind, name), installed, file)
        _loaded[kind, name] = known
    return known.value


@dataclass(frozen=True)
class _Loaded:
    """A plug-in that was imported. It counts as long as the same plug-ins are on offer."""

    value: Any
    installed: tuple[Offer, ...]
    file: _PluginFile | None
    """The plug-in file that was registered under this name; None if there was none."""


_loaded: dict[tuple[Kind, str], _Loaded] = {}


def _load(kind: Kind, name: str) -> Any:
    """Import a plug-in that has not been imported from here before."""
    offer = find(kind, name)
    if name in _files and _files[name].kind == kind:
        return _files[name].value
    point = EntryPoint(offer.name, offer.target, f"unlearnbench.{kind}")
    value = _imported(offer, point.load)
    if kind in CLASSES and isinstance(value, ModuleType):
        _, value = _only_class(offer, value, (kind,))
    return _checked(offer, value)


def load_method(name: str) -> type[Method | Wrapper]:
    """Import a method's class, whose fields are the hyperparameters."""
    method: type[Method | Wrapper] = load("methods", name)
    return method


def trains(name: str) -> bool:
    """Whether the method trains the model. Other methods wrap it, and have no learning rate."""
    from unlearnbench.api.method import Method

    return issubclass(load_method(name), Method)


def register_file(path: str | Path) -> str:
    """Offer the one plug-in that a Python file defines, under the name of the file.

    A file that has changed since it was registered is imported again.

    Returns:
        The name, for example `my-method` for `my_method.py`.

    Raises:
        PluginError: The file cannot be imported, or another plug-in has its name.
    """
    target, text = read_text(path)
    name = target.stem.replace("_", "-")
    known = _files.get(name)
    if known is not None and known.source.path == target:
        if known.source.is_current():
            return name  # a reused worker process registers the same file again
        known.source.unload()
    _check_name_is_free(name, target, path)
    kind, value = _class_in_file(name, target)
    source = source_of(target, text)
    _files[name] = _PluginFile(source, source.digest, kind, value)
    # Another process cannot import the class by its name, so instances take its source along.
    copyreg.pickle(value, partial(_reduce, source))
    return name


def _check_name_is_free(name: str, target: Path, path: str | Path) -> None:
    """Raise PluginError if a plug-in of any kind has a name already, except this file's own.

    Args:
        name: The name.
        target: The absolute path of the file that is to have the name.
        path: The path as the user has written it.
    """
    for kind in CLASSES:
        for other in offers(kind):
            if other.name == name and other.target != str(target):
                raise PluginError(
                    f"{_one(other.kind)} {name!r} of {path} is already offered by {other.source}; "
                    "rename the file"
                )


def _reduce(source: PluginSource, instance: Any) -> tuple[Any, ...]:
    """Reduce an instance of a file's class for pickle, see `plugin_source.py`."""
    return _empty_instance, (source,), instance.__getstate__()


def _empty_instance(source: PluginSource) -> Any:
    """Make an instance of the class of another process's file. Pickle then sets its state."""
    value = _files[register_copy(*source)].value
    return object.__new__(value)


def register_copy(path: Path, texts: Texts) -> str:
    """Register a plug-in file of another process, from a copy if its path has not these texts."""
    return register_file(available_path(PluginSource(path, texts)))


def plugin_files() -> tuple[PluginSource, ...]:
    """Return the files given to `register_file`, with their texts at that time."""
    return tuple(file.source for file in _files.values())


def file_digest(name: str) -> str:
    """Return the hash of the file that offers a plug-in; empty for an installed plug-in."""
    return _files[name].digest if name in _files else ""


def _class_in_file(name: str, path: Path) -> tuple[Kind, type[Any]]:
    """Import a file; return the kind and the class of the one plug-in that it defines."""
    offer = Offer("methods", name, str(path), path.name, "")
    location: Any = importlib.util.spec_from_file_location(f"unlearnbench_plugin_{path.stem}", path)
    module = importlib.util.module_from_spec(location)
    # Registered before it runs: pydantic looks annotations up in the class's module.
    sys.modules[location.name] = module
    try:
        _imported(offer, partial(location.loader.exec_module, module), "plug-in", str(path))
    except BaseException:
        del sys.modules[location.name]
        raise
    kind, value = _only_class(offer, module, CLASSES)
    return kind, _checked(replace(offer, kind=kind), value)


def _only_class(
    offer: Offer, module: ModuleType, kinds: tuple[Kind, ...]
) -> tuple[Kind, type[Any]]:
    """Find the one plug-in of some kinds that a module defines itself.

    Returns:
        Its kind and its class.

    Raises:
        PluginError: The module defines no plug-in, or more than one.
    """
    found: list[tuple[Kind, type[Any]]] = []
    for kind in kinds:
        bases = _bases(kind)
        for value in vars(module).values():
            is_plugin = isinstance(value, type) and issubclass(value, bases)
            # A module also has the names of classes that it imports.
            if is_plugin and value.__module__ == module.__name__:
                found.append((kind, value))
    # An abstract base beside its subclass is no second plug-in. A module with nothing else is
    # refused by `_checked`, which says what the class lacks.
    concrete: list[tuple[Kind, type[Any]]] = [
        (kind, value) for kind, value in found if not inspect.isabstract(value)
    ]
    plugins = concrete or found
    if len(plugins) != 1:
        bases_of_kinds = ", ".join(base.__name__ for kind in kinds for base in _bases(kind))
        listed = " and ".join(value.__name__ for _, value in plugins) or "none"
        reason = (
            f"it must define exactly one plug-in (a subclass of {bases_of_kinds}), "
            f"and defines {listed}"
        )
        raise broken(offer, reason, _one(kinds[0]) if len(kinds) == 1 else "plug-in")
    return plugins[0]


_BASES: Mapping[Kind, tuple[str, ...]] = {
    "methods": ("method.Method", "inference_method.Wrapper"),
    "modifiers": tuple(
        f"modifier.{name}"
        for name in ("Perturb", "Combine", "Filter", "OptimizerKind", "WeightEdit")
    ),
    "metrics": ("metric.Metric", "metric.Summary"),
    "benchmarks": ("benchmark.Benchmark",),
    "attacks": ("attack.WeightAttack", "attack.PromptAttack", "attack.SamplingAttack"),
    "trackers": ("tracker.Tracker",),
    "sections": ("report_section.ReportSection",),
}
"""Base classes by kind, as `module.class` of this package. They are imported when they are needed,
since most of them import torch."""


def _bases(kind: Kind) -> tuple[type[Any], ...]:
    """Import the base classes of a kind."""
    bases: list[type[Any]] = []
    for path in _BASES[kind]:
        module, name = path.split(".")
        bases.append(getattr(import_module(f"unlearnbench.api.{module}"), name))
    return tuple(bases)


def _imported(offer: Offer, load: Callable[[], Any], subject: str = "", file: str = "") -> Any:
    """Import by calling `load`.

    Args:
        offer: The plug-in that is imported.
        load: Does the import.
        subject: Noun for the message. Defaults to the kind of the offer.
        file: Path of the plug-in file, whose lines the message names; empty for a package.

    Raises:
        PluginError: The imported module raised anything.
    """
    try:
        return load()
    except Stopped:
        raise
    except (Exception, SystemExit) as error:  # plug-in code may raise anything
        raise broken(offer, describe(error, file), subject) from error


def _checked(offer: Offer, value: Any) -> Any:
    """Return a loaded plug-in.

    Raises:
        PluginError: It is a class of another kind, or does not define what its kind requires.
    """
    if offer.kind not in _BASES:
        return value
    if not (isinstance(value, type) and issubclass(value, _bases(offer.kind))):
        names = " or ".join(f"unlearnbench.{base.__name__}" for base in _bases(offer.kind))
        raise broken(offer, f"expected a subclass of {names}, got {value!r}")
    undefined = {*getattr(value, "__abstractmethods__", ())}
    undefined |= {name for name in _DECLARED.get(offer.kind, ()) if not hasattr(value, name)}
    if missing := ", ".join(sorted(undefined)):
        raise broken(offer, f"{value.__name__} does not define {missing}")
    return value


def _offers_of(kind: Kind, point: EntryPoint) -> list[Offer]:
    """Return the offers of an entry point.

    An entry point of a class has the form `module:attribute`. If the value of an entry point is a
    package, each of its public modules is an offer.
    """
    if point.dist is None:
        return []
    metadata = point.dist.metadata  # each access reads and parses the file
    package, version = metadata["Name"], metadata["Version"]
    modules: list[str] = []
    if kind in CLASSES and ":" not in point.value:
        modules = _public_modules(point.value)
    if not modules:
        return [Offer(kind, point.name, point.value, package, version)]
    return [
        Offer(kind, module.replace("_", "-"), f"{point.value}.{module}", package, version)
        for module in modules
    ]


def _public_modules(package: str) -> list[str]:
    """Name the public modules of a package, without importing it; none if it does not exist."""
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:  # raised by a package around it
        return []
    # A single module has no locations.
    if spec is None or not spec.submodule_search_locations:
        return []
    modules = iter_modules(spec.submodule_search_locations)
    return [module.name for module in modules if not module.name.startswith("_")]


def broken(offer: Offer, reason: str, subject: str = "") -> PluginError:
    """Make the error for a plug-in that cannot be used.

    Args:
        offer: The plug-in.
        reason: What is wrong with it.
        subject: Noun used in the message. Defaults to the kind of the plug-in.
    """
    noun = subject or _one(offer.kind)
    return PluginError(
        f"{noun} {offer.name!r} of {offer.source} ({offer.target}) is broken: {reason}"
    )


def _one(kind: Kind) -> str:
    """Return the singular of a kind."""
    return kind.removesuffix("s")
