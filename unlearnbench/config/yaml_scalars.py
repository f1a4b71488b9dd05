"""Scalars of YAML as values, by the same rule for files and for `--set`.

The rule is YAML 1.2's core schema with PyYAML's `yes`, `no`, `on` and `off`. Numbers that YAML 1.1
and 1.2 read differently (`017`, `1_0`, `0b1`) are refused; dates and `1:30` are text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import yaml
from yaml.composer import ComposerError

from unlearnbench.files.bounded import MAX_INTEGER, shortened, text_problem

PLAIN = "plain"
"""Tag of a scalar without quotes and without a tag of its own."""
DEPTH = 32
"""Most levels of sections and lists; the settings have 5."""


class ScalarError(ValueError):
    """A scalar that cannot be read; the message has the correction."""


class Loader(yaml.SafeLoader):
    """PyYAML's composer with bounded depth; `scalar` reads the scalars."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node without one."""
        if kind is yaml.ScalarNode and implicit[0]:
            return PLAIN
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return tag

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node and all below it. Raises: ComposerError beyond DEPTH."""
        depth = self._depth + 1
        if depth > DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            text = f"sections and lists are nested more than {DEPTH} deep"
            raise ComposerError(None, None, text, mark)
        self._depth = depth
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth = depth - 1
        return node


def scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar. Raises: ScalarError."""
    text, tag = str(node.value), node.tag.removeprefix(_TAGS)
    if tag in _READERS:
        pattern, read, words = _READERS[tag]
        if not re.fullmatch(pattern, text):
            raise ScalarError(f"!!{tag} {shortened(text)} is not {words}")
        return read(text)
    if tag not in (PLAIN, "str"):
        raise unknown_tag(node)
    if tag == PLAIN:
        for pattern, read, _ in _READERS.values():
            if re.fullmatch(pattern, text):
                return read(text)
        _refuse_ambiguous(text)
    if wrong := text_problem(text):
        raise ScalarError(f"the text {shortened(text)} {wrong}")
    return text


def unknown_tag(node: yaml.Node) -> ScalarError:
    """The error for a tag that has no meaning here."""
    shown = str(node.tag).replace(_TAGS, "!!", 1)
    return ScalarError(f"the tag {shortened(shown)[1:-1]} has no meaning here; remove it")


def _whole(text: str) -> int:
    digits = text.lstrip("+-")
    # int() itself refuses thousands of digits; 22 octal ones are 2^63.
    value = int(text, 0) if len(digits) <= 24 else MAX_INTEGER
    if not -MAX_INTEGER <= value < MAX_INTEGER:
        raise ScalarError(f"a whole number of {len(digits)} digits; the bound is 2^63")
    return value


def _float(text: str) -> float:
    if text[-1] in "fFnN":
        return float(text.replace(".", ""))  # .inf and .nan
    value, shown = float(text), shortened(text)[1:-1]
    if math.isinf(value):
        raise ScalarError(f"{shown} is beyond a float's 1.8e308; .inf is infinity")
    if value == 0 and re.search(r"[1-9]", re.split(r"[eE]", text)[0]):
        raise ScalarError(f"{shown} is below a float's 4.9e-324; write 0.0")
    return value


def _refuse_ambiguous(text: str) -> None:
    """Raise ScalarError for a number that not all readers of YAML read alike."""
    bare = text.replace("_", "")
    digits = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", bare)
    if re.fullmatch(r"[-+]?0b[01]+", bare):
        why, fix = "is binary", "write it in decimal"
    elif (
        bare != text
        and re.match(r"[-+]?[.0-9]", text)
        and re.fullmatch(f"{_DECIMAL}|{_RADIX}", bare)
    ):
        why, fix = "has underscores", f"write {shortened(bare)[1:-1]}"
    elif digits != text and re.fullmatch(r"[-+]?[0-9]+", text):
        why = "begins with 0, which some readers read as octal"
        fix = f"write {shortened(digits)[1:-1]}"
    else:
        return
    raise ScalarError(f"{shortened(text)[1:-1]} {why}; {fix}, or quote it to make it text")


_TAGS = "tag:yaml.org,2002:"
_BOOL = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_RADIX = r"0x[0-9a-fA-F]+|0o[0-7]+"
_DECIMAL = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
_READERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "null": ("|~|null|Null|NULL", lambda _: None, "null"),
    "bool": (
        "|".join(f"{one}|{one.capitalize()}|{one.upper()}" for one in _BOOL),
        lambda text: _BOOL[text.lower()],
        "true or false",
    ),
    "int": (rf"[-+]?(0|[1-9][0-9]*)|{_RADIX}", _whole, "a whole number"),
    "float": (
        rf"(?![-+]?0[0-9]+$){_DECIMAL}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        _float,
        "a number",
    ),
}
"""By tag: the pattern of its scalars, their reader, and words for them."""
