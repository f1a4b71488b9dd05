"""Entries that name plug-ins and give their settings: a list of names, or a section by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unlearnbench.api.registry import IN_A_FILE, Kind, names
from unlearnbench.config.messages import Fault, describe_value
from unlearnbench.config.yaml_tree import Loc
from unlearnbench.errors import did_you_mean

Entry = tuple[Loc, Any, Any]
"""Place, name and settings, none of which has been checked."""


def entries_of(value: Any, kind: Kind) -> list[Entry]:
    """The entries of a value. Raises: ValueError where it is neither a list nor a section."""
    if isinstance(value, tuple):
        return [((i,), name, {}) for i, name in enumerate(value)]
    if isinstance(value, Mapping):
        return [((name,), name, settings) for name, settings in value.items()]
    one = _one(kind)
    raise ValueError(
        f"expected a list of {kind}, or a section with {one} settings by its name, "
        f"got {describe_value(value)}"
    )


def wrong_entry(entry: Entry, kind: Kind) -> Fault | None:
    """The fault of an entry whose name is unknown, or whose settings are no section; else None."""
    loc, name, settings = entry
    known = names(kind)
    if name not in known:
        near = (did_you_mean(name, known) if isinstance(name, str) else "") or ";"
        got = repr(name) if isinstance(name, str) else describe_value(name)
        word = kind.removesuffix("s")
        return Fault(loc, f"unknown {word} {got}{near} known: {', '.join(known)}; {IN_A_FILE}")
    if not isinstance(settings, Mapping):
        text = f"the {kind.removesuffix('s')}'s settings, {{}} for none"
        return Fault(loc, f"expected {text}, got {describe_value(settings)}")
    return None


def _one(kind: Kind) -> str:
    word = kind.removesuffix("s")
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}'s"
