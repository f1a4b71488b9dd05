"""YAML as a tree of values that remember where they were written.

PyYAML's nodes carry line numbers, its Python values do not; every message about a configuration
needs them. Nothing here knows what a sweep is: `config.py` gives the tree its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from unlearnbench.errors import Problem

Loc = tuple[str | int, ...]
COMMAND_LINE = "--set"

# YAML 1.1, which PyYAML reads, wants a dot and a signed exponent; on a command line nobody types
# those.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Entry:
    """A value and where it stands (`file:line`)."""

    value: Any
    """A section (`dict[str, Entry]`), a list (`list[Entry]`) or a scalar."""
    place: str

    @property
    def section(self) -> dict[str, Entry]:
        """Entries by key; empty where this is no section."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Entry]:
        """Entries of a list; empty where this is none."""
        return self.value if isinstance(self.value, list) else []

    def plain(self) -> Any:
        """The value without places; lists become tuples, as settings hold them."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.section.items()}
        if isinstance(self.value, list):
            return tuple(entry.plain() for entry in self.items)
        return self.value

    def at(self, loc: Loc) -> tuple[Entry, Loc]:
        """The entry at a path, or the deepest that exists on the way, and the path to it."""
        entry: Entry = self
        for depth, step in enumerate(loc):
            below = entry.below(step)
            if below is None:
                return entry, loc[:depth]
            entry = below
        return entry, loc

    def below(self, step: str | int) -> Entry | None:
        """The entry one step down."""
        if isinstance(step, int) and 0 <= step < len(self.items):
            return self.items[step]
        return self.section.get(str(step))


def dotted(loc: Loc) -> str:
    """`models.0.base`."""
    return ".".join(str(step) for step in loc)


@dataclass
class Reading:
    """A document being read: its problems gather here."""

    name: str
    """What places call the file; `--set` for the command line."""
    problems: list[Problem] = field(default_factory=list)

    def read(self, text: str) -> Entry | None:
        """The tree of a text; None where it is no YAML, which is then among the problems."""
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            if node is None:
                return Entry(None, self._place(None))
            return self._entry(node, (), ())
        except yaml.MarkedYAMLError as error:
            what = " ".join(filter(None, [error.context, error.problem]))
            self._report(error.problem_mark, "", f"not YAML: {what}")
        except yaml.YAMLError as error:
            self._report(None, "", f"not YAML: {str(error).splitlines()[0]}")
        return None

    def _entry(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Entry:
        place = self._place(node.start_mark)
        if node in above:
            self._report(node.start_mark, dotted(loc), "an alias of what it stands in")
        elif isinstance(node, yaml.MappingNode):
            return Entry(self._mapping(node, loc, (*above, node)), place)
        elif isinstance(node, yaml.SequenceNode):
            items: Sequence[yaml.Node] = node.value
            below = (*above, node)
            return Entry([self._entry(n, (*loc, i), below) for i, n in enumerate(items)], place)
        elif isinstance(node, yaml.ScalarNode):
            return Entry(self._scalar(node), place)
        return Entry(None, place)

    def _mapping(
        self, node: yaml.MappingNode, loc: Loc, above: tuple[yaml.Node, ...]
    ) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(key_node.start_mark, dotted(loc), "a key must be a word")
                continue
            key = str(key_node.value)
            entry = self._entry(value_node, (*loc, key), above)
            # The key's line, not the value's: a section's value starts on the next line.
            place = self._place(key_node.start_mark)
            if key in entries:
                self._report(
                    key_node.start_mark,
                    dotted((*loc, key)),
                    f"given twice; first at {entries[key].place}",
                )
            else:
                entries[key] = Entry(entry.value, place)
        return entries

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        plain = node.style is None
        if self.name == COMMAND_LINE and plain and _NUMBER.fullmatch(node.value):
            digits = node.value.lstrip("+-")
            return int(node.value) if digits.isdigit() else float(node.value)
        return yaml.SafeLoader("").construct_object(node)

    def _place(self, mark: yaml.Mark | None) -> str:
        if self.name == COMMAND_LINE:
            return COMMAND_LINE
        return f"{self.name}:{mark.line + 1 if mark else 1}"

    def _report(self, mark: yaml.Mark | None, key: str, message: str) -> None:
        self.problems.append(Problem(self._place(mark), key, message))


def merged(base: Entry, over: Entry) -> Entry:
    """`over` on top of `base`: sections key by key, anything else replaced."""
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)):
        return over
    value = dict(base.section)
    for key, entry in over.section.items():
        value[key] = merged(value[key], entry) if key in value else entry
    return Entry(value, over.place)


def with_override(root: Entry, text: str, problems: list[Problem]) -> Entry:
    """`root` with one `key=value` of the command line applied; the value is read as YAML."""
    key, equals, value_text = text.partition("=")
    loc: Loc = tuple(int(s) if s.isdigit() else s for s in key.strip().split("."))
    if not equals or "" in loc:
        problems.append(
            Problem(COMMAND_LINE, text, "expected key=value, such as training.batch_size=16")
        )
        return root
    reading = Reading(COMMAND_LINE)
    value = reading.read(value_text)
    problems += [Problem(p.place, key, p.message) for p in reading.problems]
    return root if value is None else _replaced(root, loc, value, (), problems)


def _replaced(entry: Entry, rest: Loc, value: Entry, done: Loc, problems: list[Problem]) -> Entry:
    if not rest:
        return value
    step, here = rest[0], (*done, rest[0])
    if isinstance(entry.value, list):
        below = entry.below(step)
        if below is None:
            last = len(entry.items) - 1
            rule = f"its entries are {dotted((*done, 0))} to {dotted((*done, last))}"
            message = f"no such entry: {rule if last >= 0 else 'the list is empty'}"
            problems.append(Problem(COMMAND_LINE, dotted(here), message))
            return entry
        items = list(entry.items)
        items[int(step)] = _replaced(below, rest[1:], value, here, problems)
        return Entry(items, entry.place)
    if not isinstance(entry.value, dict | None):
        message = f"{dotted(done)} is the value {entry.value!r} and has no {str(step)!r} in it"
        problems.append(Problem(COMMAND_LINE, dotted((*done, *rest)), message))
        return entry
    section = dict(entry.section)
    missing = Entry(None, COMMAND_LINE)
    section[str(step)] = _replaced(section.get(str(step), missing), rest[1:], value, here, problems)
    return Entry(section, entry.place)
