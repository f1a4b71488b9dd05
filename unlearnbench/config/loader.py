"""Load a configuration: YAML to frozen settings, all problems at once and with their lines.

A configuration is a file, or the name of one that an installed package ships. It states only what
differs from the defaults (see `schema.py`), may extend one other configuration, and any key can be
overridden from the command line. Relative paths in it are relative to the working directory, except
those of `extends` and `plugins`: these are parts of the configuration, and relative to its folder.

The order of events: find the text (`config_sources`), read it into values with places
(`yaml_document`), merge it over the configuration that it extends, apply the overrides, divide it
by benchmark, register its plug-ins, and validate the values (`written`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError, PluginError, Problem, shortened
from unlearnbench.base.messages import describe_error
from unlearnbench.base.row_texts import hide_row_texts
from unlearnbench.config.config_sources import ConfigSource, find_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.stored_values import with_tuples
from unlearnbench.config.unknown_keys import unknown_key_text
from unlearnbench.config.written import WrittenConfig
from unlearnbench.config.yaml_document import Document, read_yaml

_OF_ALL_BENCHMARKS = re.compile(r"\s*(benchmarks?|name|output|storage)\b")
"""Begins an override that is about all benchmarks together, and not about each of them."""


def load_config(name_or_path: str, overrides: Sequence[str] = ()) -> SweepConfig:
    """Load a configuration.

    Args:
        name_or_path: Name of a shipped configuration, or path of a file.
        overrides: Texts `key=value`. `benchmark=NAME` chooses one of several benchmarks.

    Raises:
        ConfigError: With all problems, or because no benchmark is chosen.
    """
    documents = _documents(name_or_path, overrides)
    if len(documents) > 1:
        names = [document.values["name"] for document in documents]
        rule = f"choose one of {', '.join(names)}, such as --set benchmark={names[0]}"
        reason = f"it has several benchmarks: {rule}"
        raise ConfigError([Problem(name_or_path, "", reason)])
    return _checked(documents[0])


def load_configs(name_or_path: str, overrides: Sequence[str] = ()) -> tuple[SweepConfig, ...]:
    """Load a configuration as `load_config` does, with one result for each of its `benchmarks`.

    `benchmarks` has a section for each benchmark, by name, that is merged over the other keys. Each
    is a sweep of its own in the folder `output/name/benchmark`. All of them share one cache of
    prepared models.
    """
    return tuple(_checked(document) for document in _documents(name_or_path, overrides))


def _documents(name_or_path: str, overrides: Sequence[str]) -> list[Document]:
    """Read the document of each benchmark, or the only document."""
    whole = read_config(find_config(name_or_path))
    for text in overrides:
        whole.override(text)
    benchmarks: Any = whole.values.pop("benchmarks", None)
    if benchmarks is None:
        return [whole]

    is_by_name = isinstance(benchmarks, dict)
    if not is_by_name or not all(isinstance(keys, dict) for keys in benchmarks.values()):
        rule = "expected a section by name: {facts: {data: {source: synthetic}}}"
        whole.problem(("benchmarks",), rule)
        benchmarks = {}
    chosen = whole.values.pop("benchmark", None)
    if chosen is not None and chosen not in benchmarks:
        known = ", ".join(benchmarks)
        whole.problem(("benchmark",), f"there are {known}, got {shortened(chosen)}")
    if not benchmarks or whole.problems:
        raise ConfigError(whole.problems)

    documents: list[Document] = []
    for name, keys in benchmarks.items():
        if chosen not in (None, name):
            continue
        document = _of_benchmark(whole, name, keys)
        for text in overrides:
            # Again, because the benchmark's own keys were merged over the overridden ones.
            if not _OF_ALL_BENCHMARKS.match(text):
                document.override(text)
        documents.append(document)
    return documents


def _of_benchmark(whole: Document, name: str, keys: Any) -> Document:
    """Make the document of one benchmark.

    Args:
        whole: The configuration without its key `benchmarks`.
        name: Name of the benchmark.
        keys: Its section, which is merged over the configuration.
    """
    values = deepcopy(whole.values)
    sweep = values.pop("name", "benchmarks")
    output = values.get("output", "runs")
    values["name"] = name
    values["output"] = f"{output}/{sweep}"
    # The benchmarks share the cache, which would otherwise be in the `output` of each.
    values.setdefault("cache", f"{output}/cache")
    if storage := values.get("storage"):
        values["storage"] = f"{storage}/{sweep}"
    document = Document(values, dict(whole.places))

    # In the document of one benchmark, the path of a key no longer begins with these two steps.
    above = ("benchmarks", name)
    places_of_keys = {loc[2:]: place for loc, place in whole.places.items() if loc[:2] == above}
    document.merge(Document(deepcopy(keys), places_of_keys))
    return document


def _checked(document: Document) -> SweepConfig:
    """Return the configuration of a document, with its plug-ins registered.

    Raises:
        ConfigError: With all problems.
    """
    # Before any value is checked, because a message may quote a row.
    hide_row_texts(hidden=document.values.get("keep_texts") is False)
    _register_plugins(document)
    config = validated(document)
    if config is None or document.problems:
        raise ConfigError(sorted(dict.fromkeys(document.problems), key=_file_and_line))
    return config


def _file_and_line(problem: Problem) -> tuple[str, int]:
    """Split the place of a problem for sorting: `bench.yaml:7` into name and number."""
    name, _, line = problem.place.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (problem.place, 0)


def read_config(source: ConfigSource) -> Document:
    """Read a text, merged over the configuration that it extends.

    Raises:
        ConfigError: The text is no section of keys.
    """
    document = read_yaml(source.name, source.text)
    if not isinstance(document.values, dict):
        if not document.problems:
            document.problem((), "expected lines of key: value")
        raise ConfigError(document.problems)
    _resolve_plugin_paths(document.values, source)
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


def _resolve_plugin_paths(values: dict[str, Any], source: ConfigSource) -> None:
    """Make the paths of `plugins` relative to the working directory.

    In the file they are relative to the file's folder. A text without a folder is left as it is.
    """
    plugins: Any = values.get("plugins")
    if source.folder is None or not isinstance(plugins, list):
        return
    values["plugins"] = [
        str(source.folder / path) if isinstance(path, str) else path for path in plugins
    ]


def _register_plugins(document: Document) -> None:
    """Register the files of `plugins`. Files that cannot be registered become problems."""
    plugins = document.values.get("plugins")
    paths: list[Any] = plugins if isinstance(plugins, list) else []
    for index, path in enumerate(paths):
        if not isinstance(path, str):
            continue  # the validation reports it
        try:
            registry.register_file(path)
        except PluginError as error:
            # The message is written for the option of the command line.
            text = str(error).replace("--plugin ", "", 1)
            document.problem(("plugins", index), text)


def validated(document: Document) -> SweepConfig | None:
    """Return the configuration of a document; None if it is wrong, with its problems added."""
    try:
        return WrittenConfig.model_validate(with_tuples(document.values)).resolved()
    except ValidationError as error:
        errors = error.errors(include_url=False)
    for details in errors:
        _add_problem(document, details)
    return None


def _add_problem(document: Document, details: ErrorDetails) -> None:
    """Add one of pydantic's errors to the problems of a document."""
    loc = details["loc"]
    path = document.path(loc)
    match details["type"]:
        case "too_short" if details["input"]:
            # The list is too short only because wrong items do not count, and these are reported.
            return
        case "extra_forbidden":
            document.problem(path, unknown_key_text(document.values, path))
        case "missing":
            document.problem((*path, loc[-1]), describe_error(details))
        case "rule":
            document.problem(loc, describe_error(details))
        case _:
            text = describe_error(details)
            last = document.problems[-1] if document.problems else None
            is_of_union = len(path) < len(loc)
            if is_of_union and last is not None and last.key == ".".join(map(str, path)):
                # The members of a union complain one by one about the same value.
                document.problems.pop()
                text = f"{last.message}; or {text}"
            document.problem(path, text)
