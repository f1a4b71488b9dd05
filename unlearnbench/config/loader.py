"""Load a configuration: YAML to frozen settings, all problems at once and with their lines.

A configuration is a file, or the name of one that an installed package ships. It states only what
differs from the defaults in `schema.py`, may extend one other configuration, and any key can be
overridden from the command line. Relative paths in it are relative to the working directory, but
those of `extends` and `plugins`, which are parts of the configuration, to its own folder.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError, PluginError, Problem, did_you_mean, shortened
from unlearnbench.base.messages import Loc, describe_error
from unlearnbench.base.row_texts import hide_row_texts
from unlearnbench.config.entries import DEFAULT, with_tuples
from unlearnbench.config.method_entry import entry_model
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.written import WrittenConfig

COMMAND_LINE = "--set"
LIKE_ENOUGH = 0.8
"""Least similarity of a key to another of its section, such as `learning_rates` to `learning_rate`,
at which no other section is searched for it."""
NEAR_FILE = 0.8
"""Least similarity of a file's name at which it is suggested; the suffix is part of both names."""
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
    configs: dict[str, ConfigSource] = {}
    for offer in registry.offers("configs"):
        package = registry.load("configs", offer.name)
        for item in importlib.resources.files(package).iterdir():
            name = item.name.rpartition(".")[0]
            if not item.name.endswith(_SUFFIXES):
                continue
            if name in configs:
                raise PluginError(
                    f"config {name!r} is offered by more than one package: "
                    f"{configs[name].package} and {offer.source}; uninstall one"
                )
            text = item.read_text(encoding="utf-8")
            configs[name] = ConfigSource(item.name, text, None, offer.source)
    return dict(sorted(configs.items()))


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
    raise _problem(name_or_path, _absent_text(path, shipped, is_file=looks_like_path))


def _absent_text(path: Path, shipped: Iterable[str], *, is_file: bool) -> str:
    """Say that there is no such file, or no shipped configuration of that name."""
    if not is_file:
        near = did_you_mean(path.name, shipped) or ";"
        rest = "`unlearnbench configs list` shows the configs, and a file's name ends in .yaml"
        return f"no such config{near} {rest}"
    near = ""
    if path.stem in shipped:
        near = f"; the config that is installed is called {path.stem!r}, without a suffix"
    elif path.parent.is_dir():
        files = [item.name for item in path.parent.iterdir() if item.suffix in _SUFFIXES]
        near = did_you_mean(path.name, files, NEAR_FILE)
    rest = "`unlearnbench configs list` shows the configs that are installed"
    return f"no such file{near}{'' if near.endswith('?') else ';'} {rest}"


class _Loader(yaml.SafeLoader):
    """PyYAML's, with floats such as 1e-5, and with dates as text."""


_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


@dataclass
class Document:
    """The values of a YAML text, changed in place, with the `file:line` of each path."""

    values: Any
    places: dict[Loc, str]
    problems: list[Problem] = field(default_factory=list[Problem])

    def place(self, loc: Loc) -> str:
        """The place of a path, or of the section around it that is there."""
        return next(self.places[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in self.places)

    def problem(self, loc: Loc, text: str, location: str = "") -> None:
        """Add a problem, by default at the place of `loc`."""
        self.problems.append(Problem(location or self.place(loc), ".".join(map(str, loc)), text))

    def path(self, loc: Loc) -> Loc:
        """The part of an error's path that is there, without names of members of unions."""
        value, path = self.values, list[str | int]()
        for step in loc:
            if step in value if isinstance(value, dict) else _is_index(step, value):
                value = value[step]
                path.append(step)
        return tuple(path)

    def merge(self, over: Document) -> None:
        """Merge another document into this one: sections key by key; other values are replaced."""
        self.problems += over.problems
        self.places |= over.places
        self.values = _merged(self.values, over.values)

    def override(self, text: str) -> None:
        """Apply one `key=value` of the command line; the value is read as YAML."""
        key, equals, value = text.partition("=")
        loc = tuple(int(step) if step.isdecimal() else step for step in key.strip().split("."))
        if not equals or "" in loc:
            rule = "expected key=value, such as training.batch_size=16"
            self.problems.append(Problem(COMMAND_LINE, text, rule))
            return
        over = read_yaml(COMMAND_LINE, value, loc)
        self.problems += over.problems
        if over.problems:
            return
        section = self.values
        for depth, step in enumerate(loc):
            if not (isinstance(section, dict) or _is_index(step, section)):
                above = ".".join(map(str, loc[:depth]))
                reason = f"{above} is {shortened(section)}, which has no {str(step)!r}"
                self.problem(loc, reason, COMMAND_LINE)
                return
            if depth == len(loc) - 1:
                section[step] = over.values
            elif (section.get(step) if isinstance(section, dict) else section[step]) is None:
                section[step] = {}
                self.places[loc[: depth + 1]] = COMMAND_LINE
            section = section[step]
        self.places |= over.places


def _merged(value: Any, over: Any) -> Any:
    if not (isinstance(value, dict) and isinstance(over, dict)):
        return over
    return value | {key: _merged(value.get(key), below) for key, below in over.items()}


def _is_index(step: str | int, value: Any) -> bool:
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def read_yaml(name: str, text: str, above: Loc = ()) -> Document:
    """Read a text; where it is not YAML, that is the document's problem.

    name   of the file in places; `--set` for the command line
    above  path of the text's value
    """
    loader, document = _Loader(text), Document(None, {})

    def place(mark: yaml.Mark | None) -> str:
        return name if name == COMMAND_LINE else f"{name}:{mark.line + 1 if mark else 1}"

    def read(node: yaml.Node | None, loc: Loc) -> Any:
        document.places.setdefault(loc, place(node.start_mark if node else None))
        if isinstance(node, yaml.SequenceNode):
            return [read(item, (*loc, index)) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return None if node is None else loader.construct_object(node)
        section: dict[str, Any] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be a word", key_node.start_mark)
            key = str(key_node.value)
            below, line = (*loc, key), place(key_node.start_mark)
            if key in section:
                document.problem(below, f"given twice; first at {document.places[below]}", line)
                continue
            # The key's line, not the value's: a section's value starts on the next line.
            document.places[below] = line
            section[key] = read(value, below)
        return section

    try:
        document.values = read(loader.get_single_node(), above)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, text = None, str(error)
        if isinstance(error, RecursionError):
            text = "a value contains itself"
        if isinstance(error, yaml.MarkedYAMLError):
            mark, text = error.problem_mark, " ".join(filter(None, [error.context, error.problem]))
        first = text.partition("\n")[0]
        document.problem(above, f"not YAML: {first}", place(mark))
    return document


def load_config(name_or_path: str, overrides: Sequence[str] = ()) -> SweepConfig:
    """Load a configuration with `key=value` overrides; ConfigError names all problems.

    One with several benchmarks needs a choice: `benchmark=NAME`.
    """
    parts = _parts(name_or_path, overrides)
    if len(parts) > 1:
        names = [part.values["name"] for part in parts]
        rule = f"choose one of {', '.join(names)}, such as --set benchmark={names[0]}"
        raise _problem(name_or_path, f"it has several benchmarks: {rule}")
    return _checked(parts[0])


def load_configs(name_or_path: str, overrides: Sequence[str] = ()) -> tuple[SweepConfig, ...]:
    """Load a configuration as `load_config`; one for each of its `benchmarks`.

    `benchmarks` has a section for each, by name, that is merged over the other keys. Each is a
    sweep of its own in the folder `output/name/benchmark`, with one cache of prepared models.
    """
    return tuple(map(_checked, _parts(name_or_path, overrides)))


def _parts(name_or_path: str, overrides: Sequence[str]) -> list[Document]:
    """The document of each benchmark, or the only one."""
    document = read_config(find_config(name_or_path))
    for text in overrides:
        document.override(text)
    parts: Any = document.values.pop("benchmarks", None)
    if parts is None:
        return [document]
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        rule = "expected a section by name: {facts: {data: {source: synthetic}}}"
        document.problem(("benchmarks",), rule)
        parts = {}
    chosen = document.values.pop("benchmark", None)
    if chosen is not None and chosen not in parts:
        document.problem(("benchmark",), f"there are {', '.join(parts)}, got {shortened(chosen)}")
    if not parts or document.problems:
        raise ConfigError(document.problems)
    result = [_part(document, name, parts[name]) for name in parts if chosen in (None, name)]
    for part in result:
        for text in overrides:  # before what a benchmark states, too
            if not re.match(r"\s*(benchmarks?|name|output|storage)\b", text):  # of all
                part.override(text)
    return result


def _part(document: Document, name: str, values: Any) -> Document:
    """The document of one of the benchmarks."""
    common, above = deepcopy(document.values), ("benchmarks", name)
    whole, output = common.pop("name", "benchmarks"), common.get("output", "runs")
    common |= {"name": name, "output": f"{output}/{whole}"}
    common.setdefault("cache", f"{output}/cache")
    if storage := common.get("storage"):
        common["storage"] = f"{storage}/{whole}"
    result = Document(common, {**document.places})
    places = {loc[2:]: line for loc, line in document.places.items() if loc[:2] == above}
    result.merge(Document(deepcopy(values), places))
    return result


def _checked(document: Document) -> SweepConfig:
    """The configuration of a document. Raises: ConfigError."""
    hide_row_texts(hidden=document.values.get("keep_texts") is False)
    _register_plugins(document)
    config = validated(document)
    if config is None or document.problems:
        raise ConfigError(sorted(dict.fromkeys(document.problems), key=_by_line))
    return config


def _by_line(problem: Problem) -> tuple[str, int]:
    name, _, line = problem.place.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (problem.place, 0)


def read_config(source: ConfigSource) -> Document:
    """Read a file, merged into the one that it extends."""
    document = read_yaml(source.name, source.text)
    if not isinstance(document.values, dict):
        if not document.problems:
            document.problem((), "expected lines of key: value")
        raise ConfigError(document.problems)
    plugins: Any = document.values.get("plugins")
    if source.folder is not None and isinstance(plugins, list):
        document.values["plugins"] = [
            str(source.folder / path) if isinstance(path, str) else path for path in plugins
        ]
    parent = document.values.pop("extends", None)
    if parent is None:
        return document
    try:
        base = read_config(find_config(str(parent), source.folder))
    except ConfigError as error:
        for problem in error.problems:
            document.problem(("extends",), f"{problem.place}: {problem.message}")
        return document
    base.merge(document)
    return base


def _register_plugins(document: Document) -> None:
    """Register the files of `plugins`."""
    plugins = document.values.get("plugins")
    paths: list[Any] = plugins if isinstance(plugins, list) else []
    for index, path in enumerate(paths):
        try:
            if isinstance(path, str):
                registry.register_file(path)
        except PluginError as error:
            document.problem(("plugins", index), str(error).replace("--plugin ", "", 1))


def validated(document: Document) -> SweepConfig | None:
    """The configuration of a document; None where it is wrong, with its problems added."""
    try:
        return WrittenConfig.model_validate(with_tuples(document.values)).resolved()
    except ValidationError as error:
        errors = error.errors(include_url=False)
    for details in errors:
        loc, kind = details["loc"], details["type"]
        if kind == "too_short" and details["input"]:
            continue  # it is short because its items are wrong
        path = document.path(loc)
        text = describe_error(details)
        if kind == "extra_forbidden":
            text = _unknown_key(document, path)
        elif kind == "missing":
            path = (*path, loc[-1])
        elif kind == "rule":
            path = loc
        elif len(path) < len(loc) and document.problems:
            last = document.problems[-1]
            if last.key == ".".join(map(str, path)):
                # The members of a union complain one by one about the same value.
                text = f"{document.problems.pop().message}; or {text}"
        document.problem(path, text)
    return None


def _unknown_key(document: Document, path: Loc) -> str:
    """Name the nearest known key of this section or another, or else the keys of this one."""
    *above, key = path
    fields = [*_section(document.values, tuple(above)).model_fields]
    owner = next((str(step) for step in reversed(above) if isinstance(step, str)), "")
    if owner == "methods":
        owner = document.values["methods"][above[-1]]["method"]
    near = (
        did_you_mean(str(key), fields, LIKE_ENOUGH)
        or (_elsewhere(str(key)) if "methods" not in above else "")
        or did_you_mean(str(key), fields)
    )
    if near:
        return f"unknown key{near}"
    listed = ", ".join(fields) or "no settings"
    return f"unknown key; {owner or 'a configuration'} takes: {listed}"


def _section(values: Any, path: Loc) -> type[BaseModel]:
    """The keys of the section at a path, where plug-ins have theirs."""
    model: Any = WrittenConfig
    names = [step for step in path if isinstance(step, str)]
    match names:  # pyright: ignore[reportMatchNotExhaustive]
        case ["data", *names]:
            model = registry.load("benchmarks", values["data"].get("source", DEFAULT))
        case ["methods", "modifiers", name, *names] | ["modifiers", name, *names]:
            model = registry.load("modifiers", name)
        case ["methods", *names]:
            model = entry_model(values["methods"][path[1]]["method"])
        case ["attacks", name, *names]:
            model = registry.load("attacks", name)
        case ["evaluation", "metrics", name, *names]:
            model = registry.load("metrics", name)
    for name in names:
        model = _model_in(model.model_fields[name].annotation) or model
    section: type[BaseModel] = model
    return section


def _elsewhere(key: str) -> str:
    """Hint at the sections that have a key of this name, the nearest to the top."""
    paths = [*_paths_to(WrittenConfig, key)]
    least = min((path.count(".") for path in paths), default=0)
    nearest = " or ".join(repr(path) for path in paths if path.count(".") == least)
    return f"; did you mean {nearest}?" if nearest else ""


def _paths_to(model: type[BaseModel], key: str, above: str = "") -> Iterator[str]:
    """Dotted paths of every setting of that name."""
    for name, info in model.model_fields.items():
        if name == key:
            yield above + name
        if below := _model_in(info.annotation):
            is_list = str(info.annotation).startswith("tuple")
            yield from _paths_to(below, key, f"{above}{name}.{'0.' if is_list else ''}")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _problem(location: str, message: str) -> ConfigError:
    return ConfigError([Problem(location, "", message)])
