"""Names to plugins: methods, configurations and dashboards, found by entry point, loaded lazily.

Listing imports nothing. Built-in plugins are found exactly as a stranger's are, and one that is
broken takes no other down. A method can also come from a single file, without a package:
`register_file("my_method.py")` makes it `my-method` in this process; `plugin_files()` lists such
files so that worker processes can register them too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from os.path import abspath
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import ValidationError

from unlearnbench.errors import PluginError, UnlearnbenchError, did_you_mean
from unlearnbench.plugin_code import describe, place, plain_line, plugin_code
from unlearnbench.settings import MethodSpec, RetainSpec

if TYPE_CHECKING:  # it imports torch, which listing plugins has no need of
    from unlearnbench.method import Method, Wrapper

Kind = Literal["methods", "configs", "dashboards"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Offer:
    """A plugin that something offers under a name; not imported yet."""

    kind: Kind
    name: str
    target: str
    """`module:attribute`, `module`, or the path of a plugin file."""
    package: str
    version: str
    """Empty for a plugin file."""

    @property
    def source(self) -> str:
        """`package version`, or the file."""
        return f"{self.package} {self.version}".strip()


@dataclass(frozen=True)
class _PluginFile:
    path: Path
    digest: str
    method: type[Method | Wrapper]


_files: dict[str, _PluginFile] = {}
_NEAR = 0.65
"""Least similarity of a name that is suggested: `bad-typo` is not meant to be `altpo` (0.62)."""


def offers(kind: Kind) -> tuple[Offer, ...]:
    """Everything offered, sorted by name; a name that is offered twice is there twice."""
    found = [*_installed(kind, tuple((path, _changed(path)) for path in map(abspath, sys.path)))]
    if kind == "methods":
        found += [Offer(kind, name, str(f.path), f.path.name, "") for name, f in _files.items()]
    return tuple(sorted(found, key=lambda offer: (offer.name, offer.source)))


@cache
def _installed(kind: Kind, path: tuple[tuple[str, int], ...]) -> tuple[Offer, ...]:
    """Offers of the packages on `path`: reading all of their metadata takes tens of milliseconds.

    path  folders of `sys.path`, each with when something was last added to it or removed
    """
    del path  # what the answer depends on besides `kind`
    return tuple(_offer(kind, point) for point in entry_points(group=f"unlearnbench.{kind}"))


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def names(kind: Kind) -> tuple[str, ...]:
    """Names on offer, sorted."""
    return tuple(sorted({offer.name for offer in offers(kind)}))


def find(kind: Kind, name: str) -> Offer:
    """The one offer of a name, without importing it."""
    on_offer = offers(kind)
    if not on_offer:
        raise PluginError(
            f"no {kind} are installed: entry points are written at installation, so a bare "
            "checkout has none; run `pip install -e .` in it"
        )
    named = [offer for offer in on_offer if offer.name == name]
    if not named:
        known = sorted({offer.name for offer in on_offer})
        near = did_you_mean(name, known, _NEAR) or "."
        files = "; one in a file of its own needs --plugin FILE" if kind == "methods" else ""
        raise PluginError(
            f"unknown {_one(kind)} {name!r}{near} Available: {', '.join(known)}{files}"
        )
    if len(named) > 1:
        packages = " and ".join(f"{offer.source} ({offer.target})" for offer in named)
        raise PluginError(
            f"{_one(kind)} {name!r} is offered by more than one package: {packages}; "
            "uninstall or rename one"
        )
    return named[0]


def load(kind: Kind, name: str) -> Any:
    """Import a plugin: a method's class, a package of YAML files, or a dashboard's function."""
    offer = find(kind, name)
    if kind == "methods" and name in _files:
        return _files[name].method
    point = EntryPoint(offer.name, offer.target, f"unlearnbench.{kind}")
    value = _imported(offer, point.load)
    fault = _fault(kind, value)
    if fault:
        raise _broken(offer, fault)
    return value


def load_method(name: str) -> type[Method | Wrapper]:
    """A method's class; its fields are the hyper-parameters."""
    method: type[Method | Wrapper] = load("methods", name)
    return method


def trains(name: str) -> bool:
    """Whether the method trains the model; else it wraps it, without learning rate or epochs."""
    from unlearnbench.method import Method

    return issubclass(load_method(name), Method)


def default_hyperparameters(name: str) -> dict[str, Any]:
    """Default of every hyper-parameter that has one."""
    fields = load_method(name).model_fields
    return {
        key: field.get_default(call_default_factory=True, validated_data={})
        for key, field in fields.items()
        if not field.is_required()
    }


def method_spec(
    name: str, hyperparameters: Mapping[str, Any], retain: RetainSpec | None = None
) -> MethodSpec:
    """A spec with every hyper-parameter resolved; pydantic's ValidationError where one is wrong."""
    kind = load_method(name)
    with plugin_code(f"method {name!r}", passing=ValidationError):
        values = kind.model_validate(dict(hyperparameters)).resolved()
    if retain is not None and not trains(name):
        raise PluginError(f"method {name!r} trains nothing: it takes no retain term")
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise _broken(
                find("methods", name),
                f"hyper-parameter {key!r} is a {type(value).__name__}, "
                "where only true/false, numbers and text can be part of a run's identity",
            )
    return MethodSpec(
        name=name, hyperparameters=values, retain=retain, source=file_digest(name) or None
    )


def method_from_spec(spec: MethodSpec) -> Method | Wrapper:
    """The method that a spec describes."""
    method = load_method(spec.name)
    digest = file_digest(spec.name) or None
    if digest != spec.source:
        raise PluginError(
            f"method {spec.name!r} is not the one that was planned "
            f"({spec.source or 'installed'}, now {digest or 'installed'}): its plugin file "
            "changed or was not given; start again with the same --plugin"
        )
    try:
        with plugin_code(f"method {spec.name!r}", passing=ValidationError):
            return method.model_validate(spec.hyperparameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise PluginError(
            f"method {spec.name!r} does not take what was planned: {key}: {first['msg']}; "
            "the installed version differs from the one the plan was made with"
        ) from None


def register_file(path: str | Path) -> str:
    """Offer the one method that a Python file defines, under the file's name; return that name."""
    place, text = _plugin_text(path)
    name = place.stem.replace("_", "-")
    digest = hashlib.sha256(text).hexdigest()[:16]
    known = _files.get(name)
    if known is not None and known.path == place and known.digest == digest:
        return name  # a reused worker process is told of the same file again
    others = [o.source for o in offers("methods") if o.name == name and o.target != str(place)]
    if others:
        raise PluginError(
            f"method {name!r} of {path} is already offered by {others[0]}; rename the file"
        )
    _files[name] = _PluginFile(place, digest, _method_of_file(name, place))
    return name


def plugin_files() -> tuple[Path, ...]:
    """Files given to `register_file`, for worker processes to register as well."""
    return tuple(entry.path for entry in _files.values())


def file_digest(name: str) -> str:
    """Content hash of the plugin file that offers a method; empty for an installed one."""
    return _files[name].digest if name in _files else ""


def _method_of_file(name: str, path: Path) -> type[Method | Wrapper]:
    from unlearnbench.method import Method, Wrapper

    offer = Offer("methods", name, str(path), path.name, "")
    module_name = f"unlearnbench_plugin_{path.stem}"
    found = importlib.util.spec_from_file_location(module_name, path)
    if found is None or found.loader is None:
        raise _broken(offer, "not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(found)
    # Registered before it runs: pydantic looks annotations up in the class's module.
    sys.modules[module_name] = module
    try:
        _imported(offer, partial(found.loader.exec_module, module), str(path))
    except BaseException:
        del sys.modules[module_name]
        raise
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method | Wrapper)
        and value.__module__ == module_name
        and not inspect.isabstract(value)
    ]
    if len(classes) != 1:
        listed = ", ".join(c.__name__ for c in classes) or "none"
        kinds = "a subclass of Method or Wrapper"
        raise _broken(offer, f"it must define exactly one method, {kinds}: {listed}")
    fault = _fault("methods", classes[0])
    if fault:
        raise _broken(offer, fault)
    method: type[Method | Wrapper] = classes[0]
    return method


def _plugin_text(path: str | Path) -> tuple[Path, bytes]:
    """The file's place and text. Raises: PluginError for whatever is no readable Python file."""
    given = plain_line(str(path))
    if not given:
        raise PluginError("--plugin '': the path is empty; give a Python file")
    try:
        place = Path(path).resolve()
        if place.is_dir():
            raise PluginError(f"--plugin {given} is a folder; give the Python file in it")
        if not place.exists():
            raise PluginError(f"plugin file {given} does not exist")
        if place.suffix != ".py":
            raise PluginError(f"--plugin {given} is not a Python file: its name must end in .py")
        if not place.is_file():
            raise PluginError(f"--plugin {given} is not a regular file")
        return place, place.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, NUL, no permission
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise PluginError(
            f"--plugin {given} cannot be read: {plain_line(reason or str(error))}"
        ) from None


def _imported(offer: Offer, load: Callable[[], Any], file: str = "") -> Any:
    """What `load` imports. Raises: PluginError for whatever a stranger's module raises."""
    try:
        with plugin_code("it", file):
            return load()
    except PluginError as error:  # of ours, such as a declaration that is refused; or made above
        cause = error.__cause__
        if cause is not None and not isinstance(cause, SystemExit):
            raise _broken(offer, describe(cause, file)) from cause
        where = place(error, file) if cause is None else ""
        raise _broken(offer, str(error) + (f" ({where})" if where else "")) from error
    except UnlearnbenchError as error:
        raise _broken(offer, describe(error, file)) from error


def _offer(kind: Kind, point: EntryPoint) -> Offer:
    dist = point.dist
    package, version = (dist.name, dist.version) if dist else ("an unknown package", "")
    return Offer(kind, point.name, point.value, package, version)


def _fault(kind: Kind, value: Any) -> str:
    """What makes a loaded plugin unusable, or nothing."""
    if kind == "configs":
        return "" if isinstance(value, ModuleType) else f"expected a package, got {value!r}"
    if kind == "dashboards":
        return "" if callable(value) else f"expected a function, got {value!r}"
    from unlearnbench.method import Method, Wrapper

    if not (isinstance(value, type) and issubclass(value, Method | Wrapper)):
        return f"expected a subclass of unlearnbench.method.Method or Wrapper, got {value!r}"
    missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
    return f"{value.__name__} does not define {missing}" if missing else ""


def _broken(offer: Offer, reason: str) -> PluginError:
    return PluginError(
        f"{_one(offer.kind)} {offer.name!r} of {offer.source} ({offer.target}) is broken: {reason}"
    )


def _one(kind: Kind) -> str:
    return kind.removesuffix("s")
