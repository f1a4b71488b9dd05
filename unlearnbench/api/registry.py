"""The registry of plug-ins: methods, modifiers, metrics, benchmarks, attacks, sections, …

They are found by entry point. Listing imports nothing, built-in plug-ins are found like all others,
and a broken one does not affect the rest. An entry point of a class may also name a package: then
each of its public modules is a plug-in of its own name. A class can also come from a single file,
without a package: `register_file("my_method.py")` makes it `my-method` in this process;
`plugin_files()` lists such files with their text and that of the modules that they import from
below their folder, so that worker processes register the same.
"""

from __future__ import annotations

import copyreg
import hashlib
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
from tempfile import mkdtemp
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

from unlearnbench.api.plugin_code import (
    Texts,
    describe,
    is_current,
    texts_of,
    unload,
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
"""Attributes that a class has to have, without a default."""
CLASSES: tuple[Kind, ...] = ("methods", "modifiers", "metrics", "benchmarks", "attacks")
"""Kinds whose plug-ins are classes: each may stand alone in a module or a file."""


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
    """Hash of a plugin file's content and its modules'; empty for a package."""

    @property
    def source(self) -> str:
        """`package version`, or the file."""
        return f"{self.package} {self.version}".strip()


@dataclass(frozen=True)
class _PluginFile:
    path: Path
    texts: Texts
    digest: str
    kind: Kind
    value: type[Any]


_files: dict[str, _PluginFile] = {}


def offers(kind: Kind) -> tuple[Offer, ...]:
    """All offers sorted by name; a name that is offered twice occurs twice."""
    result = [*_installed(kind, (*sys.path,))]
    files = ((name, file) for name, file in _files.items() if file.kind == kind)
    result += [
        Offer(kind, name, str(file.path), file.path.name, "", file.digest) for name, file in files
    ]
    return tuple(sorted(result, key=lambda offer: (offer.name, offer.source)))


@cache
def _installed(kind: Kind, path: tuple[str, ...]) -> tuple[Offer, ...]:
    """Offers of the packages on `path`."""
    del path  # a key of the cache: to read entry points takes several milliseconds
    points = entry_points(group=f"unlearnbench.{kind}")
    return tuple(offer for point in points for offer in _offers_of(kind, point))


def names(kind: Kind) -> tuple[str, ...]:
    """Names on offer, sorted."""
    return tuple(sorted({offer.name for offer in offers(kind)}))


def find(kind: Kind, name: str) -> Offer:
    """Find the one offer of a name, without importing it."""
    on_offer = offers(kind)
    if not on_offer:
        raise PluginError(
            f"no {kind} are installed; name a file with --plugin, or run `pip install -e .` in a "
            "checkout, since entry points are written at installation"
        )
    named = [offer for offer in on_offer if offer.name == name]
    if not named:
        known = sorted({offer.name for offer in on_offer})
        near = did_you_mean(name, known) or ";"
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
        raise PluginError(f"unknown {word} {name!r}{near} {where}")
    if len(named) > 1:
        packages = " and ".join(f"{offer.source} ({offer.target})" for offer in named)
        raise PluginError(
            f"{_one(kind)} {name!r} is offered by more than one package: {packages}; "
            "uninstall or rename one"
        )
    return named[0]


def load(kind: Kind, name: str) -> Any:
    """Import a plugin: a class, a package of YAML files, or a dashboard's function."""
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
    """A plug-in that was imported, as long as the same ones are on offer."""

    value: Any
    installed: tuple[Offer, ...]
    file: _PluginFile | None
    """The file of this name."""


_loaded: dict[tuple[Kind, str], _Loaded] = {}


def _load(kind: Kind, name: str) -> Any:
    offer = find(kind, name)
    if name in _files and _files[name].kind == kind:
        return _files[name].value
    point = EntryPoint(offer.name, offer.target, f"unlearnbench.{kind}")
    value = _imported(offer, point.load)
    if kind in CLASSES and isinstance(value, ModuleType):
        _, value = _only_class(offer, value, (kind,))
    return _checked(offer, value)


def load_method(name: str) -> type[Method | Wrapper]:
    """A method's class; its fields are the hyper-parameters."""
    method: type[Method | Wrapper] = load("methods", name)
    return method


def trains(name: str) -> bool:
    """True if the method trains the model; otherwise it wraps it and has no learning rate."""
    from unlearnbench.api.method import Method

    return issubclass(load_method(name), Method)


def register_file(path: str | Path) -> str:
    """Offer the one plug-in that a Python file defines, under the file's name; return that name."""
    target, text = _plugin_text(path)
    name = target.stem.replace("_", "-")
    known = _files.get(name)
    if known is not None and known.path == target:
        if is_current(target, known.texts):
            return name  # a reused worker process registers the same file again
        unload(target, known.texts)
    for other in (offer for kind in CLASSES for offer in offers(kind)):
        if other.name == name and other.target != str(target):
            raise PluginError(
                f"{_one(other.kind)} {name!r} of {path} is already offered by {other.source}; "
                "rename the file"
            )
    kind, value = _class_in_file(name, target)
    texts = texts_of(target, text)
    _, *modules = texts
    digest = hashlib.sha256(text)
    for module, part in modules:
        digest.update(f"{module} {len(part)}\n".encode() + part)
    _files[name] = _PluginFile(target, texts, digest.hexdigest()[:16], kind, value)
    # Another process cannot import the class by its name: instances take the file along.
    copyreg.pickle(value, partial(_reduced, target, texts))
    return name


def _reduced(path: Path, texts: Texts, instance: Any) -> Any:
    """Reduce an instance of a file's class for pickle: the file, and the instance's state."""
    return (_blank, (path, texts), *object.__reduce_ex__(instance, 2)[2:])


def _blank(path: Path, texts: Texts) -> Any:
    """Make an instance of the class of another process's file, before its state is set."""
    kind = _files[register_copy(path, texts)].value
    return object.__new__(kind)


def register_copy(path: Path, texts: Texts) -> str:
    """Register a plug-in file of another process: at its path if it has the same text there."""
    return register_file(_copied(path, texts))


@cache
def _copied(path: Path, texts: Texts) -> Path:
    if is_current(path, texts):
        return path
    folder = Path(mkdtemp(prefix="unlearnbench-plugin-"))
    for name, text in texts:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder / path.name


def plugin_files() -> tuple[tuple[Path, Texts], ...]:
    """Files given to `register_file`, with their texts at that time."""
    return tuple((entry.path, entry.texts) for entry in _files.values())


def file_digest(name: str) -> str:
    """Content hash of the plugin file that offers a plug-in; empty for an installed one."""
    return _files[name].digest if name in _files else ""


def _class_in_file(name: str, path: Path) -> tuple[Kind, type[Any]]:
    """Import the file; returns the one plug-in that it defines."""
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
    """The one plug-in of some kinds that a module defines itself, with its kind."""
    classes: list[tuple[Kind, type[Any]]] = [
        (kind, value)
        for kind in kinds
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, _bases(kind))
        and value.__module__ == module.__name__
    ]
    # A base beside its subclass is no second plug-in; alone, `_checked` says what it lacks.
    classes = [item for item in classes if not inspect.isabstract(item[1])] or classes
    if len(classes) != 1:
        bases = ", ".join(base.__name__ for kind in kinds for base in _bases(kind))
        listed = " and ".join(value.__name__ for _, value in classes) or "none"
        reason = f"it must define exactly one plug-in (a subclass of {bases}), and defines {listed}"
        raise broken(offer, reason, _one(kinds[0]) if len(kinds) == 1 else "plug-in")
    return classes[0]


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
"""Modules and classes; imported where they are needed, since most import torch."""


def _bases(kind: Kind) -> tuple[type[Any], ...]:
    paths = (path.split(".") for path in _BASES[kind])
    return tuple(getattr(import_module(f"unlearnbench.api.{m}"), name) for m, name in paths)


def _plugin_text(path: str | Path) -> tuple[Path, bytes]:
    """The file's path and text. Raises: PluginError for anything but a readable Python file."""
    target = Path(path).resolve()
    if target.suffix != ".py":
        raise PluginError(f"--plugin {path} is not a Python file: its name must end in .py")
    try:
        return target, target.read_bytes()
    except OSError as error:
        raise PluginError(f"--plugin {path} cannot be read: {error.strerror}") from None


def _imported(offer: Offer, load: Callable[[], Any], subject: str = "", file: str = "") -> Any:
    """Import by calling `load`. Raises: PluginError for any exception of the imported module."""
    try:
        return load()
    except Stopped:
        raise
    except (Exception, SystemExit) as error:  # plug-in code may raise anything
        raise broken(offer, describe(error, file), subject) from error


def _checked(offer: Offer, value: Any) -> Any:
    """A loaded plug-in. Raises: PluginError for a class that is not of its kind."""
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
    """The offers of an entry point; a package of classes offers each of its public modules."""
    if point.dist is None:
        return []
    about = point.dist.metadata  # read and parsed each time that it is asked for
    part = about["Name"], about["Version"]
    modules = _modules(point.value) if kind in CLASSES and ":" not in point.value else []
    if not modules:
        return [Offer(kind, point.name, point.value, *part)]
    return [Offer(kind, name.replace("_", "-"), f"{point.value}.{name}", *part) for name in modules]


def _modules(package: str) -> list[str]:
    """Names of the public modules in a package, which is not imported; none if it is not there."""
    try:
        spec = importlib.util.find_spec(package)
    except ImportError:  # of a package above it
        return []
    places = None if spec is None else spec.submodule_search_locations
    return [m.name for m in iter_modules(places) if not m.name.startswith("_")] if places else []


def broken(offer: Offer, reason: str, subject: str = "") -> PluginError:
    """The error for a plug-in that cannot be used.

    subject  it is, if not of the offer's kind
    """
    item = subject or _one(offer.kind)
    return PluginError(
        f"{item} {offer.name!r} of {offer.source} ({offer.target}) is broken: {reason}"
    )


def _one(kind: Kind) -> str:
    return kind.removesuffix("s")
