"""YAML as a tree of values with their files and lines, which all messages need.

The tree knows nothing about sweeps; `loader.py` interprets it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from unlearnbench.errors import Problem, shortened

Loc = tuple[str | int, ...]
COMMAND_LINE = "--set"
_FLOAT = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"


class _Loader(yaml.SafeLoader):
    """PyYAML's, with floats such as 1e-5, and with dates as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(f"^{_FLOAT}$"), list("-+.0123456789")
)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


@dataclass(frozen=True)
class YamlNode:
    """A value and its place, `file:line`."""

    value: Any
    """A section (`dict[str, YamlNode]`), a list (`list[YamlNode]`) or a scalar."""
    place: str

    @property
    def section(self) -> dict[str, YamlNode]:
        """Nodes by key; empty where this is not a section."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[YamlNode]:
        """Nodes of a list; empty where this is not a list."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without places; lists become tuples, as in settings."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.section.items()}
        if isinstance(self.value, list):
            return tuple(entry.plain() for entry in self.items)
        return self.value

    def at(self, loc: Loc) -> tuple[YamlNode, Loc]:
        """The node at a path, or the deepest on the way that exists, with the path to it."""
        entry: YamlNode = self
        for depth, step in enumerate(loc):
            below = entry.below(step)
            if below is None:
                return entry, loc[:depth]
            entry = below
        return entry, loc

    def below(self, step: str | int) -> YamlNode | None:
        """The node one step down."""
        if isinstance(step, int) and 0 <= step < len(self.items):
            return self.items[step]
        return self.section.get(str(step))


def dotted(loc: Loc) -> str:
    """`models.0.base`."""
    return ".".join(str(step) for step in loc)


def read_yaml(name: str, text: str, problems: list[Problem], loc: Loc = ()) -> YamlNode | None:
    """Read a text as a tree; None where it is not YAML, which is then one of the problems.

    name  of the file in places; `--set` for the command line
    loc   path of the text's value
    """
    loader = _Loader(text)

    def place(mark: yaml.Mark | None) -> str:
        return name if name == COMMAND_LINE else f"{name}:{mark.line + 1 if mark else 1}"

    def entry(node: yaml.Node | None, loc: Loc) -> YamlNode:
        if isinstance(node, yaml.MappingNode):
            section: dict[str, YamlNode] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(None, None, "a key is a word", key_node.start_mark)
                key, line = str(key_node.value), place(key_node.start_mark)
                below = entry(value_node, (*loc, key))
                if key in section:
                    text = f"given twice; first at {section[key].place}"
                    problems.append(Problem(line, dotted((*loc, key)), text))
                else:
                    # The key's line, not the value's: a section's value starts on the next line.
                    section[key] = YamlNode(below.value, line)
            return YamlNode(section, place(node.start_mark))
        if isinstance(node, yaml.SequenceNode):
            items = [entry(item, (*loc, index)) for index, item in enumerate(node.value)]
            return YamlNode(items, place(node.start_mark))
        if node is None:
            return YamlNode(None, place(None))
        value: Any = loader.construct_object(node)
        return YamlNode(value, place(node.start_mark))

    try:
        return entry(loader.get_single_node(), loc)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark, what = None, str(error)
        if isinstance(error, yaml.MarkedYAMLError):
            mark, what = error.problem_mark, " ".join(filter(None, [error.context, error.problem]))
        message = f"not YAML: {_cut(what.partition(chr(10))[0])}"
        problems.append(Problem(place(mark), dotted(loc), message))
    return None


def merged(base: YamlNode, over: YamlNode) -> YamlNode:
    """Merge `over` into `base`: sections key by key; other values are replaced."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    value = dict(base.section)
    for key, entry in over.section.items():
        value[key] = merged(value[key], entry) if key in value else entry
    return YamlNode(value, over.place)


def with_override(root: YamlNode, text: str, problems: list[Problem]) -> YamlNode:
    """Apply one `key=value` of the command line to `root`; the value is read as YAML."""
    key, equals, value_text = text.partition("=")
    steps = key.strip().split(".")
    loc: Loc = tuple(int(step) if step.isdecimal() else step for step in steps)
    if not equals or "" in loc:
        rule = "expected key=value, such as training.batch_size=16"
        problems.append(Problem(COMMAND_LINE, _cut(text), rule))
        return root
    value = read_yaml(COMMAND_LINE, value_text, problems, loc)
    return root if value is None else _replaced(root, loc, value, (), problems)


def _cut(text: str) -> str:
    return shortened(text)[1:-1] if len(text) > 200 else text


def _replaced(
    entry: YamlNode, rest: Loc, value: YamlNode, done: Loc, problems: list[Problem]
) -> YamlNode:
    """`entry`, which is at `done`, with another value at the path `rest` below it."""
    if not rest:
        return value
    step, below = rest[0], entry.below(rest[0])
    if below is None and not isinstance(entry.value, dict | None):
        shown = f"the value {shortened(entry.value)}"
        if isinstance(entry.value, list):
            shown = f"a list of {len(entry.items)}, counted from 0,"
        text = f"{dotted(done)} is {shown} and has no {str(step)!r} in it"
        problems.append(Problem(COMMAND_LINE, dotted((*done, *rest)), text))
        return entry
    old = below or YamlNode(None, COMMAND_LINE)
    new = _replaced(old, rest[1:], value, (*done, step), problems)
    if isinstance(entry.value, list):
        items = [new if index == step else item for index, item in enumerate(entry.items)]
        return YamlNode(items, entry.place)
    return YamlNode({**entry.section, str(step): new}, entry.place)
