"""YAML's words as values, by one rule for files and for `--set`.

The rule is YAML 1.2's core schema with PyYAML's `yes`, `no`, `on` and `off`. What YAML 1.1 reads as
another number than 1.2 does (`017`, `1_0`, `0b1`) is refused; dates and `1:30` are text.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from yaml.composer import ComposerError

from unlearnbench.bounded import WHOLE, shortened, text_problem

PLAIN = "plain"
"""The tag of a scalar that has neither quotes nor a tag of its own."""
DEPTH = 32
"""Sections and lists within each other; the settings have 5."""

_TAGS = "tag:yaml.org,2002:"
_NULL = ("", "~", "null", "Null", "NULL")
_BOOL = {
    spelt: value
    for word, value in (
        *(("true", True), ("yes", True), ("on", True)),
        *(("false", False), ("no", False), ("off", False)),
    )
    for spelt in (word, word.capitalize(), word.upper())
}
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_RADIX = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NAN = (".nan", ".NaN", ".NAN")
_LEADING_ZERO = re.compile(r"([-+]?)0+([0-9]+)")
_BINARY = re.compile(r"[-+]?0b[01_]+")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "null": ((type(None),), "null"),
}


class ScalarError(ValueError):
    """A scalar that is not read, and what to write in its place."""


class Loader(yaml.SafeLoader):
    """PyYAML's composer, bounded in depth, which leaves the reading of scalars to `scalar`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a node that has none."""
        if kind is yaml.ScalarNode and implicit[0]:
            return PLAIN
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return tag

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A node with all below it. Raises: ComposerError beyond DEPTH."""
        depth = self._depth + 1
        if depth > DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            text = f"sections and lists lie within each other more than {DEPTH} deep"
            raise ComposerError(None, None, text, mark)
        self._depth = depth
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth = depth - 1
        return node


def scalar(node: yaml.ScalarNode) -> Any:
    """The value of a scalar. Raises: ScalarError."""
    text = str(node.value)
    tag = node.tag.removeprefix(_TAGS)
    value: Any = text
    if tag == PLAIN:
        value = _plain(text)
    elif tag in _KINDS:
        kinds, words = _KINDS[tag]
        value = _plain(text)
        fits = isinstance(value, kinds) and (tag == "bool" or not isinstance(value, bool))
        if not fits:
            raise ScalarError(f"!!{tag} {shortened(text)} is not {words}")
        if tag == "float":
            value = float(value)
    elif tag != "str":
        raise unknown_tag(node)
    wrong = text_problem(value) if isinstance(value, str) else ""
    if wrong:
        raise ScalarError(f"the text {shortened(value)} {wrong}")
    return value


def unknown_tag(node: yaml.Node) -> ScalarError:
    """The error about a tag that has no meaning here."""
    tag = str(node.tag)
    shown = tag.replace(_TAGS, "!!", 1)
    return ScalarError(f"the tag {shortened(shown)[1:-1]} has no meaning here; remove it")


def _plain(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text in _NAN:
        return math.nan
    if matched := _INFINITE.fullmatch(text):
        return -math.inf if matched[1] == "-" else math.inf
    shown = shortened(text)[1:-1]
    if _WHOLE.fullmatch(text):
        return _bounded(text, 10)
    if _RADIX.fullmatch(text):
        return _bounded(text, 16 if text[1] == "x" else 8)
    if matched := _LEADING_ZERO.fullmatch(text):
        raise ScalarError(
            f"{shown} begins with 0, which some readers take for octal; write "
            f"{shortened(matched[1] + matched[2])[1:-1]}, or quote it to make it text"
        )
    if _BINARY.fullmatch(text):
        raise ScalarError(f"{shown} is binary; write it in decimal, or quote it to make it text")
    if _FLOAT.fullmatch(text):
        return _float(text, shown)
    bare = text.replace("_", "") if re.match(r"[-+]?[.0-9].*_", text) else ""
    if _FLOAT.fullmatch(bare) or _RADIX.fullmatch(bare):
        bare = shortened(bare)[1:-1]
        raise ScalarError(f"{shown} has underscores; write {bare}, or quote it to make it text")
    return text


def _bounded(text: str, base: int) -> int:
    digits = text.lstrip("+-")
    # 22 octal digits are 2^63; int() itself refuses thousands of decimal ones.
    value = int(text, 0) if len(digits) <= 24 and base != 10 else None
    if base == 10 and len(digits) <= 19:
        value = int(text)
    if value is None or not -WHOLE <= value < WHOLE:
        raise ScalarError(f"a whole number of {len(digits)} digits; the bound is 2^63")
    return value


def _float(text: str, shown: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ScalarError(f"{shown} is beyond a float's 1.8e308; .inf is infinity")
    if value == 0 and re.search(r"[1-9]", re.split(r"[eE]", text)[0]):
        raise ScalarError(f"{shown} is below a float's 4.9e-324; write 0.0")
    return value
