"""YAML as a tree of values with their files and lines, which all messages need.

The tree knows nothing about sweeps; `loader.py` interprets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from unlearnbench.config.yaml_scalars import DEPTH, Loader, ScalarError, scalar, unknown_tag
from unlearnbench.errors import Problem
from unlearnbench.files.bounded import CONFIG_BYTES, shortened, text_problem, whole_number

Loc = tuple[str | int, ...]
COMMAND_LINE = "--set"
VALUES = 10_000
"""Most values of a document with its aliases expanded."""


class _AliasError(Exception):
    """A document has too many values, or too deep ones, when its aliases are expanded."""


UNREAD: Final = object()
"""Value of a scalar that could not be read; it has been reported and is not reported again."""


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


@dataclass
class YamlReader:
    """Reads a document and collects its problems."""

    name: str
    """Name of the file in places; `--set` for the command line."""
    problems: list[Problem] = field(default_factory=list)
    _left: int = field(default=VALUES, init=False)
    """Number of values that may still be read."""

    def read(self, text: str) -> YamlNode | None:
        """Read a text as a tree; None where it is not YAML, which is then one of the problems."""
        if len(text) > CONFIG_BYTES:
            self._report(None, (), f"has {len(text)} characters; the bound is {CONFIG_BYTES}")
            return None
        try:
            node = Loader(text).get_single_node()
            if node is None:
                return YamlNode(None, self._place(None))
            self._left = VALUES
            return self._entry(node, (), ())
        except _AliasError as error:
            self._report(None, (), str(error))
        except yaml.MarkedYAMLError as error:
            what = " ".join(filter(None, [error.context, error.problem]))
            self._report(error.problem_mark, (), f"not YAML: {_cut(what)}")
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position)
            what = f"the character U+{error.character:04X} is not allowed"
            self._report(yaml.Mark("", 0, line, 0, None, 0), (), f"not YAML: {what}")
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # The last two: an escape beyond Unicode, such as "\\UFFFFFFFF".
            self._report(None, (), f"not YAML: {_cut((str(error).splitlines() or [''])[0])}")
        return None

    def _entry(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> YamlNode:
        self._left -= 1
        if self._left < 0:
            raise _AliasError(f"has more than {VALUES} values with its aliases expanded")
        if len(above) > DEPTH:
            raise _AliasError(f"its aliases are nested more than {DEPTH} deep")
        try:
            value = self._value(node, loc, above)
        except ScalarError as error:
            value = UNREAD
            self._report(node.start_mark, loc, str(error))
        return YamlNode(value, self._place(node.start_mark))

    def _value(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Any:
        if node in above:
            raise ScalarError("an alias of a section or list that contains it")
        if isinstance(node, yaml.ScalarNode):
            return scalar(node)
        if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            raise unknown_tag(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc, (*above, node))
        items: Sequence[yaml.Node] = node.value
        return [self._entry(one, (*loc, i), (*above, node)) for i, one in enumerate(items)]

    def _mapping(
        self, node: yaml.MappingNode, loc: Loc, above: tuple[yaml.Node, ...]
    ) -> dict[str, YamlNode]:
        entries: dict[str, YamlNode] = {}
        for key_node, value_node in node.value:
            key, mark = str(key_node.value), key_node.start_mark
            is_word = isinstance(key_node, yaml.ScalarNode)
            if wrong := text_problem(key) if is_word else "must be a word":
                self._report(mark, loc, f"a key {wrong}")
                continue
            entry = self._entry(value_node, (*loc, key), above)
            if key in entries:
                self._report(mark, (*loc, key), f"given twice; first at {entries[key].place}")
            else:
                # The key's line, not the value's: a section's value starts on the next line.
                entries[key] = YamlNode(entry.value, self._place(mark))
        return entries

    def _place(self, mark: yaml.Mark | None) -> str:
        if self.name == COMMAND_LINE:
            return COMMAND_LINE
        return f"{self.name}:{mark.line + 1 if mark else 1}"

    def _report(self, mark: yaml.Mark | None, loc: Loc, message: str) -> None:
        self.problems.append(Problem(self._place(mark), dotted(loc), message))


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
    loc: Loc = tuple(step if (n := whole_number(step)) is None else n for step in steps)
    if not equals or "" in loc or len(loc) > DEPTH:
        rule = "expected key=value, such as training.batch_size=16"
        problems.append(Problem(COMMAND_LINE, _cut(text), rule))
        return root
    reading = YamlReader(COMMAND_LINE)
    value = reading.read(value_text)
    problems += [Problem(p.place, key, p.message) for p in reading.problems]
    return root if value is None else _replaced(root, loc, value, (), problems)


def _cut(text: str) -> str:
    return shortened(text)[1:-1] if len(text) > 200 else text


def _replaced(
    entry: YamlNode, rest: Loc, value: YamlNode, done: Loc, problems: list[Problem]
) -> YamlNode:
    """`entry`, which is at `done`, with another value at the path `rest` below it."""
    if not rest:
        return value
    step, here = rest[0], (*done, rest[0])
    if isinstance(entry.value, dict | None):
        old = entry.below(step) or YamlNode(None, COMMAND_LINE)
        new = _replaced(old, rest[1:], value, here, problems)
        return YamlNode({**entry.section, str(step): new}, entry.place)
    below = entry.below(step)
    if below is not None:
        items = list(entry.items)
        items[int(step)] = _replaced(below, rest[1:], value, here, problems)
        return YamlNode(items, entry.place)
    if entry.items:
        ends = f"{dotted((*done, 0))} to {dotted((*done, len(entry.items) - 1))}"
        message = f"no such entry: its entries are {ends}"
    elif isinstance(entry.value, list):
        message = "no such entry: the list is empty"
    else:
        here, shown = (*done, *rest), shortened(entry.value)
        message = f"{dotted(done)} is the value {shown} and has no {str(step)!r} in it"
    problems.append(Problem(COMMAND_LINE, dotted(here), message))
    return entry
