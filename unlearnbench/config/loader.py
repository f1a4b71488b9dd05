"""Load a configuration: YAML to frozen settings, all problems at once and with their lines.

A configuration is a file, or the name of one that an installed package ships. It states only what
differs from the defaults in `schema.py`, may extend one other configuration, and any key can be
overridden from the command line. Relative paths in it are relative to the working directory, but
those of `extends` and `plugins`, which are parts of the configuration, to its own folder.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, PlainValidator, ValidationError, create_model

from unlearnbench.api import registry
from unlearnbench.config.benchmark_section import DEFAULT, benchmark_class
from unlearnbench.config.cross_checks import SPLITS, check_across
from unlearnbench.config.messages import MISSING, Fault, describe_value, faults_of
from unlearnbench.config.method_entries import SweepContext, read_entry, read_rates
from unlearnbench.config.schema import MethodGrid, Rates, SweepConfig
from unlearnbench.config.yaml_tree import YamlNode, dotted, merged, read_yaml, with_override
from unlearnbench.errors import ConfigError, PluginError, Problem, did_you_mean

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class ConfigSource:
    """The text of a configuration and its origin."""

    name: str
    """Name in messages: `quickstart.yaml`, or the path as the user wrote it."""
    text: str
    folder: Path | None
    """Folder that `extends` is relative to; None for a shipped configuration."""
    package: str = ""

    @property
    def purpose(self) -> str:
        """The first comment of the text, behind the line for editors, which describes it."""
        lines = self.text.lstrip().splitlines() or [""]
        first = lines[lines[0].startswith("# yaml-language-server:") and len(lines) > 1]
        return first.lstrip("# ").strip() if first.startswith("#") else ""


def shipped_configs() -> dict[str, ConfigSource]:
    """The configurations of all installed packages, by name, sorted."""
    found: dict[str, ConfigSource] = {}
    for offer in registry.offers("configs"):
        package = registry.load("configs", offer.name)
        for item in importlib.resources.files(package).iterdir():
            name = item.name.rpartition(".")[0]
            if not item.name.endswith(_SUFFIXES):
                continue
            if name in found:
                raise PluginError(
                    f"config {name!r} is offered by more than one package: "
                    f"{found[name].package} and {offer.source}; uninstall one"
                )
            text = item.read_text(encoding="utf-8")
            found[name] = ConfigSource(item.name, text, None, offer.source)
    return dict(sorted(found.items()))


def find_config(name_or_path: str, beside: Path | None = None) -> ConfigSource:
    """Find a configuration by the name of a shipped one, or by path (relative to `beside`)."""
    looks_like_path = name_or_path.endswith(_SUFFIXES) or "/" in name_or_path
    path = (beside or Path()) / name_or_path
    if looks_like_path and path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _problem(name_or_path, f"cannot be read: {error}") from None
        return ConfigSource(str(path), text, path.parent)
    shipped = shipped_configs()
    if not looks_like_path and name_or_path in shipped:
        return shipped[name_or_path]
    what = "no such file" if looks_like_path else "no such configuration"
    near = did_you_mean(Path(name_or_path).stem, shipped) or ";"
    raise _problem(name_or_path, f"{what}{near} shipped: {', '.join(shipped)}")


def load_config(
    name_or_path: str,
    overrides: Sequence[str] = (),
    inputs: Callable[[YamlNode], Sequence[Problem]] | None = None,
) -> SweepConfig:
    """Load a configuration with `key=value` overrides; ConfigError names all problems.

    inputs  finds the problems of the data and models that a wrong configuration names, so that
            they are reported with the others
    """
    problems: list[Problem] = []
    root = _extended(find_config(name_or_path), problems)
    if root is None:
        raise ConfigError(problems)
    for text in overrides:
        root = with_override(root, text, problems)
    root = _with_plugins(root, problems)
    # Null leaves a key out that another file has: a benchmark takes one of the two.
    unset = [key for key in SPLITS if (entry := root.below(key)) and entry.value is None]
    root = YamlNode({k: v for k, v in root.section.items() if k not in unset}, root.place)
    config = _validated(root, problems)
    if config is None or problems:
        problems += inputs(root) if inputs is not None else ()
        raise ConfigError(_in_order(problems))
    return config


def _extended(source: ConfigSource, problems: list[Problem]) -> YamlNode | None:
    """Read a file and the one that it extends as one tree; None where it cannot be read."""
    root, extends = _read(source, problems)
    if root is None or extends is None:
        return root
    try:
        if not isinstance(extends.value, str):
            raise _problem("", "expected a config's name or path")
        parent = find_config(extends.value, source.folder)
    except ConfigError as error:
        texts = [f"{one.place}: {one.message}".removeprefix(": ") for one in error.problems]
        problems += [Problem(extends.place, "extends", text) for text in texts]
        return root
    base, again = _read(parent, problems)
    if again is not None:
        text = f"{extends.value} itself extends another ({again.place}); one level only"
        fix = "extend that one and copy what you need"
        problems.append(Problem(extends.place, "extends", f"{text}: {fix}"))
    return root if base is None else merged(base, root)


def _read(source: ConfigSource, problems: list[Problem]) -> tuple[YamlNode | None, YamlNode | None]:
    """The tree of one file, None where it cannot be read, and apart from it what it extends."""
    root = read_yaml(source.name, source.text, problems)
    if root is None:
        return None, None
    if not isinstance(root.value, dict):
        problems.append(Problem(root.place, "", "expected lines of key: value"))
        return None, None
    keys = dict(root.section)
    extends = keys.pop("extends", None)
    if source.folder is not None and (plugins := keys.get("plugins")):
        keys["plugins"] = _beside(plugins, source.folder)
    return YamlNode(keys, root.place), extends


def _beside(plugins: YamlNode, folder: Path) -> YamlNode:
    """Paths of plug-in files that are relative to the configuration's folder."""
    items = [
        replace(one, value=str(folder / one.value)) if isinstance(one.value, str) else one
        for one in plugins.items
    ]
    return replace(plugins, value=items) if plugins.items else plugins


def _with_plugins(root: YamlNode, problems: list[Problem]) -> YamlNode:
    """Register the files of `plugins`; returns the tree without that key."""
    keys = dict(root.section)
    plugins = keys.pop("plugins", None)
    if plugins is None or plugins.value is None:
        return YamlNode(keys, root.place)
    if not isinstance(plugins.value, list):
        text = "expected a list of Python files, such as [my_method.py], relative to this file"
        problems.append(Problem(plugins.place, "plugins", text))
    for index, one in enumerate(plugins.items):
        try:
            if not isinstance(one.value, str):
                text = f"expected a Python file, got {describe_value(one.plain())}"
                raise PluginError(text)
            registry.register_file(one.value)
        except PluginError as error:
            text = str(error).replace("--plugin ", "", 1)
            problems.append(Problem(one.place, f"plugins.{index}", text))
    return YamlNode(keys, root.place)


class _StatedConfig(SweepConfig):
    """A configuration whose method entries and learning rates are read as YAML states them."""

    methods: tuple[Annotated[MethodGrid, PlainValidator(read_entry)], ...] = Field(min_length=1)
    learning_rates: Annotated[Rates, PlainValidator(read_rates)] = (1e-5,)


def _validated(root: YamlNode, problems: list[Problem]) -> SweepConfig | None:
    values = root.plain()
    training, kind = values.get("training"), root.at(("search", "kind"))[0].value
    sweep = SweepContext(
        searches=isinstance(kind, str) and kind != "grid",
        training=training if isinstance(training, dict) else {},
    )
    config = None
    try:
        stated = _StatedConfig.model_validate(values, context=sweep)
        config = SweepConfig.model_construct(stated.model_fields_set, **dict(stated))
    except ValidationError as error:
        _report(root, faults_of(error, _described(root), "a configuration"), problems)
    _report(root, check_across(root, config), problems, exact=True)
    return config


class WrittenConfig(SweepConfig):
    """The keys of a YAML file: those of a configuration, and two that say where it comes from."""

    extends: str | None = Field(
        default=None,
        description="a configuration that this one changes: a shipped one's name, or a file beside "
        "this one; sections are merged key by key, other values replaced",
    )
    plugins: tuple[str, ...] = Field(
        default=(),
        description="Python files with a method, metric, benchmark or attack each, named as the "
        "file; relative to this one",
    )


def _described(root: YamlNode) -> type[SweepConfig]:
    """The keys of a file with the `data` section of its own benchmark, where that is known."""
    source = root.at(("data", "source"))[0].value
    try:
        data = benchmark_class(source if isinstance(source, str) else DEFAULT)
    except ValidationError:
        return WrittenConfig
    return create_model("Described", __base__=WrittenConfig, data=(data, ...))


def _report(
    root: YamlNode, faults: Iterable[Fault], problems: list[Problem], *, exact: bool = False
) -> None:
    """Add faults to the problems, each with its file and line.

    exact  messages name the whole path of a fault, even where the tree ends above it
    """
    for fault in faults:
        entry, found = root.at(fault.loc)
        whole = exact or fault.text == MISSING
        key, text = dotted(fault.loc if whole else found), fault.text
        if len(found) < len(fault.loc) and problems and problems[-1].key == key:
            # The members of a union complain one by one about the same value.
            text = f"{problems.pop().message}; or {text}"
        problems.append(Problem(entry.place, key, text))


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Sort problems by file and line, each once."""

    def key(problem: Problem) -> tuple[str, int]:
        name, _, line = problem.place.rpartition(":")
        return (name, int(line)) if line.isdecimal() else (problem.place, 0)

    return sorted(dict.fromkeys(problems), key=key)


def _problem(place: str, message: str) -> ConfigError:
    return ConfigError([Problem(place, "", message)])
