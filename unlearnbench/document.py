"""YAML as a tree of values that remember where they were written.

PyYAML's nodes carry line numbers, its Python values do not; every message about a configuration
needs them. Nothing here knows what a sweep is: `config.py` gives the tree its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from unlearnbench.bounded import CONFIG_BYTES, shortened, text_problem, whole_number
from unlearnbench.errors import Problem
from unlearnbench.scalars import DEPTH, Loader, ScalarError, scalar, unknown_tag

Loc = tuple[str | int, ...]
COMMAND_LINE = "--set"
VALUES = 10_000
"""Values of a document, its aliases written out."""


class Unread:
    """Stands for a scalar that could not be read and is reported: no other report is due."""


UNREAD: Final = Unread()


class _AliasError(Exception):
    """More values, or deeper ones, than a document has, its aliases written out."""


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
    _left: int = field(default=VALUES, init=False)
    """Values that may still be read."""

    def read(self, text: str) -> Entry | None:
        """The tree of a text; None where it is not YAML, which is then among the problems."""
        if len(text) > CONFIG_BYTES:
            self._report(None, "", f"has {len(text)} characters; the bound is {CONFIG_BYTES}")
            return None
        try:
            loader = Loader(text)
            node = loader.get_single_node()
            if node is None:
                return Entry(None, self._place(None))
            self._left = VALUES
            return self._entry(node, (), ())
        except _AliasError as error:
            self._report(None, "", str(error))
        except yaml.MarkedYAMLError as error:
            what = " ".join(filter(None, [error.context, error.problem]))
            self._report(error.problem_mark, "", f"not YAML: {_cut(what)}")
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position)
            what = f"the character U+{error.character:04X} is not allowed"
            self._report(yaml.Mark("", 0, line, 0, None, 0), "", f"not YAML: {what}")
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # The last two: an escape beyond Unicode, such as "\\UFFFFFFFF".
            self._report(None, "", f"not YAML: {_cut((str(error).splitlines() or [''])[0])}")
        return None

    def _entry(self, node: yaml.Node, loc: Loc, above: tuple[yaml.Node, ...]) -> Entry:
        place = self._place(node.start_mark)
        self._left -= 1
        if self._left < 0:
            raise _AliasError(
                f"has more than {VALUES} values, its aliases written out; write fewer"
            )
        if node in above:
            self._report(node.start_mark, dotted(loc), "an alias of what it stands in")
            return Entry(UNREAD, place)
        if len(above) > DEPTH:
            raise _AliasError(f"its aliases lie within each other more than {DEPTH} deep")
        try:
            if isinstance(node, yaml.ScalarNode):
                return Entry(scalar(node), place)
            if node.tag not in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
                raise unknown_tag(node)
        except ScalarError as error:
            self._report(node.start_mark, dotted(loc), str(error))
            return Entry(UNREAD, place)
        if isinstance(node, yaml.MappingNode):
            return Entry(self._mapping(node, loc, (*above, node)), place)
        items: Sequence[yaml.Node] = node.value
        below = (*above, node)
        return Entry([self._entry(n, (*loc, i), below) for i, n in enumerate(items)], place)

    def _mapping(
        self, node: yaml.MappingNode, loc: Loc, above: tuple[yaml.Node, ...]
    ) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(key_node.start_mark, dotted(loc), "a key must be a word")
                continue
            key = str(key_node.value)
            if wrong := text_problem(key):
                self._report(key_node.start_mark, dotted(loc), f"a key {wrong}")
                continue
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
    loc: Loc = tuple(map(_step, key.strip().split(".")))
    if not equals or "" in loc or len(loc) > DEPTH:
        problems.append(
            Problem(COMMAND_LINE, _cut(text), "expected key=value, such as training.batch_size=16")
        )
        return root
    reading = Reading(COMMAND_LINE)
    value = reading.read(value_text)
    problems += [Problem(p.place, key, p.message) for p in reading.problems]
    return root if value is None else _replaced(root, loc, value, (), problems)


def _step(text: str) -> str | int:
    number = whole_number(text)
    return text if number is None else number


def _cut(text: str) -> str:
    return shortened(text)[1:-1] if len(text) > 200 else text


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
        message = (
            f"{dotted(done)} is the value {shortened(entry.value)} and has no {str(step)!r} in it"
        )
        problems.append(Problem(COMMAND_LINE, dotted((*done, *rest)), message))
        return entry
    section = dict(entry.section)
    missing = Entry(None, COMMAND_LINE)
    section[str(step)] = _replaced(section.get(str(step), missing), rest[1:], value, here, problems)
    return Entry(section, entry.place)
