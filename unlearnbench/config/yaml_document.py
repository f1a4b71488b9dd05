"""A YAML text as values, with the place of each: `bench.yaml:7`, or `--set` for the command line.

A `Document` has plain values (sections are dicts, lists are lists) and the place of each path. A
path is a tuple of keys and indices: `("methods", 0, "beta")`. Places are apart from the values, so
that the values can be merged, overridden and checked like any others, and a message about one of
them can still name its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

from unlearnbench.base.errors import Problem, shortened
from unlearnbench.base.messages import Loc

COMMAND_LINE = "--set"
"""Place of the values that the command line states."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, except that `1e-5` is a float, and dates stay text."""


_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


@dataclass
class Document:
    """The values of a YAML text, changed in place, with the place of each path."""

    values: Any
    places: dict[Loc, str]
    """Places by path. The empty path has the place of the whole text."""
    problems: list[Problem] = field(default_factory=list[Problem])

    def place(self, loc: Loc) -> str:
        """Return the place of a path, or of the nearest section above it that has a place."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.places:
                return self.places[loc[:length]]
        return self.places[()]

    def problem(self, loc: Loc, text: str, location: str = "") -> None:
        """Add a problem of the value at a path.

        Args:
            loc: The path.
            text: The message.
            location: The place to name. Default: the place of the path.
        """
        self.problems.append(Problem(location or self.place(loc), ".".join(map(str, loc)), text))

    def path(self, loc: Loc) -> Loc:
        """Return the part of an error's path that the document has.

        Steps that are not in the document are left out: pydantic also names the member of a union,
        and an axis of one value is checked as a list of one (`method_entry.axis`).
        """
        value = self.values
        path: list[str | int] = []
        for step in loc:
            is_there = step in value if isinstance(value, dict) else _is_index(step, value)
            if is_there:
                value = value[step]
                path.append(step)
        return tuple(path)

    def merge(self, over: Document) -> None:
        """Merge another document over this one: sections key by key; other values are replaced."""
        self.problems += over.problems
        self.places |= over.places
        self.values = _merged(self.values, over.values)

    def override(self, text: str, form: str = "key=value, such as training.batch_size=16") -> None:
        """Apply one override of the command line.

        Args:
            text: `key=value`, with a dotted key such as `models.0.name` and a value in YAML.
            form: The form of such a text, for a message.
        """
        key, equals, value = text.partition("=")
        loc = _path_of(key)
        if not equals or "" in loc:
            self.problems.append(Problem(COMMAND_LINE, text, f"expected {form}"))
            return
        stated = read_yaml(COMMAND_LINE, value, loc)
        self.problems += stated.problems
        if stated.problems:
            return

        # Go down to the section of the last key, and make sections that are missing on the way.
        section = self.values
        for depth, step in enumerate(loc):
            if not (isinstance(section, dict) or _is_index(step, section)):
                above = ".".join(map(str, loc[:depth]))
                reason = f"{above} is {shortened(section)}, which has no {str(step)!r}"
                self.problem(loc, reason, COMMAND_LINE)
                return
            if depth == len(loc) - 1:
                section[step] = stated.values
                break
            below = section.get(step) if isinstance(section, dict) else section[step]
            if below is None:
                below = {}
                section[step] = below
                self.places[loc[: depth + 1]] = COMMAND_LINE
            section = below
        self.places |= stated.places


def _path_of(key: str) -> Loc:
    """Split a dotted key: `models.0.name` is `("models", 0, "name")`."""
    steps = key.strip().split(".")
    return tuple(int(step) if step.isdecimal() else step for step in steps)


def _merged(value: Any, over: Any) -> Any:
    """Return a value with another one over it, as `Document.merge` merges.

    A key that only `over` has is merged over None, which `over` replaces.
    """
    if not (isinstance(value, dict) and isinstance(over, dict)):
        return over
    return value | {key: _merged(value.get(key), below) for key, below in over.items()}


def _is_index(step: str | int, value: Any) -> bool:
    """Whether a step of a path is the index of an item of a list."""
    return isinstance(value, list) and isinstance(step, int) and step < len(value)


def read_yaml(name: str, text: str, above: Loc = ()) -> Document:
    """Read a YAML text. If it is not YAML, the document has this as its problem.

    Args:
        name: Name of the file in places; `--set` for the command line.
        text: The text.
        above: Path of the text's value, for a text of the command line.
    """
    return _Reader(name, text).read(above)


class _Reader:
    """Reads one text into a document.

    PyYAML composes a tree of nodes that know their lines. The tree is walked here, because PyYAML's
    own values have no lines, and because it would take the last of two equal keys without a word.
    """

    _loader: _Loader
    """Made in `read`, where the errors of a text are caught: PyYAML refuses some characters."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text
        self._document = Document(None, {})

    def read(self, above: Loc) -> Document:
        """Read the whole text, whose value is at the path `above`.

        If the text is not YAML, the document has no values, and this as its problem.
        """
        document = self._document
        try:
            self._loader = _Loader(self._text)
            document.values = self._value(self._loader.get_single_node(), above)
        except RecursionError:
            self._refuse(above, "a value contains itself")
        except yaml.MarkedYAMLError as error:
            text = " ".join(filter(None, [error.context, error.problem]))
            mark = error.problem_mark
            self._refuse(above, text, mark.line if mark else 0)
        except ReaderError as error:
            line = self._text.count("\n", 0, error.position)
            self._refuse(above, str(error), line)
        except (yaml.YAMLError, ValueError) as error:
            self._refuse(above, str(error))
        return document

    def _refuse(self, above: Loc, reason: str, line: int = 0) -> None:
        """Add the problem that the text is not YAML. Lines count from 0, as PyYAML counts them."""
        first_sentence = reason.partition("\n")[0]
        self._document.problem(above, f"not YAML: {first_sentence}", self._place(line))

    def _place(self, line: int) -> str:
        """Name a place in the text by its line, which counts from 0."""
        return self._name if self._name == COMMAND_LINE else f"{self._name}:{line + 1}"

    def _value(self, node: yaml.Node | None, loc: Loc) -> Any:
        """Return the value of a node, and note the places of all that is in it.

        Args:
            node: The node; None for an empty text.
            loc: Its path.
        """
        first_line = node.start_mark.line if node else 0
        self._document.places.setdefault(loc, self._place(first_line))
        if node is None:
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*loc, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._section(node.value, loc)
        return self._loader.construct_object(node)

    def _section(self, pairs: Iterable[tuple[yaml.Node, yaml.Node]], loc: Loc) -> dict[str, Any]:
        """Return the section of pairs of keys and values."""
        document = self._document
        section: dict[str, Any] = {}
        for key_node, value_node in pairs:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(None, None, "a key must be a word", key_node.start_mark)
            key = str(key_node.value)
            below = (*loc, key)
            # The key's line, not the value's: a section's value starts on the next line.
            line = self._place(key_node.start_mark.line)
            if key in section:
                document.problem(below, f"given twice; first at {document.places[below]}", line)
                continue
            document.places[below] = line
            section[key] = self._value(value_node, below)
        return section
