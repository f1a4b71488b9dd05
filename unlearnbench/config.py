"""YAML to frozen, validated settings; every problem is reported, at once and with its line.

A configuration is a file, or the name of one that an installed package ships. It states what
differs from the defaults of `settings.py`, may extend one other configuration, and any key can be
overridden from the command line. Relative paths in it are relative to the working directory.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from unlearnbench import registry
from unlearnbench.bounded import CONFIG_BYTES, name_problem, read_bytes, shortened, whole_number
from unlearnbench.checks import check_across, too_many_runs
from unlearnbench.document import Entry, Loc, Reading, Unread, dotted, merged, with_override
from unlearnbench.errors import ConfigError, PluginError, Problem, did_you_mean
from unlearnbench.grid import GridReader
from unlearnbench.problems import ZERO_RUNS, in_words, paths_to, section_of, unknown_key
from unlearnbench.settings import MethodGrid, MethodSpec, SweepConfig

_SUFFIXES = (".yaml", ".yml")
LIKE_ENOUGH = 0.8
"""Likeness of two keys of one section, such as `learning_rate` and `learning_rates`, from which one
is taken for the other before any other section is looked at."""


@dataclass(frozen=True)
class ConfigSource:
    """A configuration's text and where it is from."""

    name: str
    """What messages call it: `quickstart.yaml`, or the path as it was given."""
    text: str
    folder: Path | None
    """Folder of a file, which its `extends` is relative to; None for one that is shipped."""
    package: str = ""


def shipped_configs() -> dict[str, ConfigSource]:
    """Every configuration that an installed package ships, by name, sorted."""
    found: dict[str, ConfigSource] = {}
    for offer in registry.offers("configs"):
        package = registry.load("configs", offer.name)
        for item in importlib.resources.files(package).iterdir():
            name, dot, suffix = item.name.rpartition(".")
            if f"{dot}{suffix}" not in _SUFFIXES:
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
    """A configuration by the name of a shipped one, or by path (`beside`: relative to it)."""
    if wrong := name_problem(name_or_path):
        raise _one_problem(shortened(name_or_path)[1:-1], "", f"the name {wrong}")
    looks_like_path = name_or_path.endswith(_SUFFIXES) or "/" in name_or_path
    path = (beside or Path()) / name_or_path
    if looks_like_path and path.is_file():
        try:
            text = read_bytes(path, CONFIG_BYTES).decode()
        except (OSError, ValueError) as error:
            raise _one_problem(name_or_path, "", f"cannot be read: {error}") from None
        return ConfigSource(str(path), text, path.parent)
    shipped = shipped_configs()
    if not looks_like_path and name_or_path in shipped:
        return shipped[name_or_path]
    what = "no such file" if looks_like_path else "no such configuration"
    near = did_you_mean(Path(name_or_path).stem, shipped) or ";"
    raise _one_problem(name_or_path, "", f"{what}{near} shipped: {', '.join(shipped)}")


def load_config(
    name_or_path: str,
    overrides: Sequence[str] = (),
    inputs: Callable[[Entry], Sequence[Problem]] | None = None,
) -> SweepConfig:
    """A validated configuration with `key=value` overrides; ConfigError names every problem.

    inputs  finds the problems of what a configuration that is wrong elsewhere points to, so that
            they are reported with the rest
    """
    problems: list[Problem] = []
    root = _read(find_config(name_or_path), problems, extended_by=None)
    if root is None:
        raise ConfigError(problems)
    for text in overrides:
        root = with_override(root, text, problems)
    config = _validated(root, problems)
    if config is None or problems:
        problems += inputs(root) if inputs is not None else ()
        raise ConfigError(_in_order(problems))
    return config


def _read(
    source: ConfigSource, problems: list[Problem], extended_by: Problem | None
) -> Entry | None:
    """The tree of a file, on top of the one it extends; None where it cannot be read."""
    reading = Reading(source.name)
    root = reading.read(source.text)
    problems += reading.problems
    if root is None:
        return None
    if not isinstance(root.value, dict):
        problems.append(Problem(root.place, "", "expected lines of key: value"))
        return None
    extends = root.section.get("extends")
    if extends is None:
        return root
    root = Entry({key: e for key, e in root.section.items() if key != "extends"}, root.place)
    if extended_by is not None:
        problems.append(
            Problem(
                extended_by.place,
                "extends",
                f"{extended_by.message} itself extends another ({extends.place}); "
                "one level only: extend that one and copy what you need",
            )
        )
        return root
    if not isinstance(extends.value, str):
        problems.append(Problem(extends.place, "extends", "expected a config's name or path"))
        return root
    try:
        parent = find_config(extends.value, source.folder)
    except ConfigError as error:
        problems += [
            Problem(extends.place, "extends", f"{p.place}: {p.message}") for p in error.problems
        ]
        return root
    base = _read(parent, problems, Problem(extends.place, "extends", extends.value))
    return root if base is None else merged(base, root)


def _validated(root: Entry, problems: list[Problem]) -> SweepConfig | None:
    sections = root.section
    kind = root.at(("search", "kind"))[0].value
    searches = isinstance(kind, str) and kind != "grid"
    reader = GridReader(problems, searches, sections.get("training"))
    values = {key: entry.plain() for key, entry in sections.items()}
    many = too_many_runs(root)
    if many is not None:
        problems.append(many)
        values["methods"] = (_STAND_IN,)
    elif isinstance(values.get("methods"), tuple):
        values["methods"] = _methods(sections["methods"], reader)
    if isinstance(values.get("learning_rates"), tuple | dict):
        rates = reader.learning_rates(sections["learning_rates"], ("learning_rates",))
        # 1.0 stands in for rates that are wrong and reported, so that the rest is still checked.
        values["learning_rates"] = rates or (1.0,)
    config = None
    try:
        config = SweepConfig.model_validate(values)
    except ValidationError as error:
        _translate(error.errors(include_url=False), root, problems)
    check_across(root, config, reader)
    return config


def _methods(entry: Entry, reader: GridReader) -> tuple[MethodGrid, ...]:
    grids = [reader.read(item, ("methods", index)) for index, item in enumerate(entry.items)]
    # A stand-in for entries that are wrong and reported, so that the rest is still checked.
    return tuple(grid or _STAND_IN for grid in grids)


_STAND_IN = MethodGrid(specs=(MethodSpec(name=""),))


def _translate(errors: Sequence[ErrorDetails], root: Entry, problems: list[Problem]) -> None:
    """pydantic's errors, with the line and in words."""
    said: dict[Loc, str] = {}
    for error in errors:
        loc: Loc = error["loc"]
        entry, found = root.at(loc)
        if isinstance(entry.value, Unread):
            continue
        if error["type"] == "missing":
            text, key = in_words(error), loc
        elif error["type"] == "extra_forbidden":
            text, key = _unknown(loc), loc
        elif error["type"] == "too_short":
            if entry.items:
                continue  # short only because its items are wrong, which is reported
            text, key = ZERO_RUNS, loc
        else:
            text, key = in_words(error), found
        # The members of a union complain one by one about the same value.
        said[key] = f"{said[key]}; or {text}" if key in said else text
    problems += [Problem(root.at(key)[0].place, dotted(key), said[key]) for key in said]


def _unknown(loc: Loc) -> str:
    section = section_of(SweepConfig, loc[:-1]) or SweepConfig
    key = str(loc[-1])
    names = [str(step) for step in loc[:-1] if isinstance(step, str)]
    hint = did_you_mean(key, section.model_fields, LIKE_ENOUGH) or _elsewhere(key, names)
    return unknown_key(key, section.model_fields, names[-1] if names else "a configuration", hint)


def _elsewhere(key: str, names: Sequence[str]) -> str:
    """Hint at the section that has a key of this name, where that may be what is meant.

    Preparation has a learning rate and a warm-up, too, and they change the start model of every
    run: they are no hint to a key that stands outside `models`.
    """
    everywhere = paths_to(SweepConfig, key)
    found = [one for one in everywhere if names[:1] == ["models"] or ".preparation." not in one]
    if everywhere and not found:
        section = everywhere[0].removesuffix(f".{key}")
        return f"; it is a key of {section}, which changes the start model;"
    least = min((path.count(".") for path in found), default=0)
    nearest = [path for path in found if path.count(".") == least]
    if len(nearest) > 1:
        return f"; it is a key of other sections: {' and '.join(nearest)};"
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    """By file and line, each once."""

    def key(problem: Problem) -> tuple[str, int]:
        name, _, line = problem.place.rpartition(":")
        number = whole_number(line)
        return (problem.place, 0) if number is None else (name, number)

    return sorted(dict.fromkeys(problems), key=key)


def _one_problem(place: str, key: str, message: str) -> ConfigError:
    return ConfigError([Problem(place, key, message)])
