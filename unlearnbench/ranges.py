"""A range in a configuration, `{low: 1.0e-6, high: 1.0e-4, log: true}`, read with its messages."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError

from unlearnbench.document import Entry, Loc, dotted
from unlearnbench.errors import Problem
from unlearnbench.problems import in_words, unknown_key
from unlearnbench.searching import Range


def read_range(
    entry: Entry, key: Loc, kind: type | None, *, allowed: bool
) -> Range | list[Problem]:
    """The range, or what is wrong with it.

    kind     float or int, as the values are; None where the axis takes neither
    allowed  whether the configuration searches: a grid has no ranges
    """
    try:
        found = Range.model_validate(entry.plain())
    except ValidationError as error:
        return _problems(error, entry, key)
    if kind is float:
        step = None if found.step is None else float(found.step)
        ends = {"low": float(found.low), "high": float(found.high), "step": step}
        found = found.model_copy(update=ends)
    wrong = ""
    if not allowed:
        wrong = (
            "a range is drawn from by a search, and a grid takes a list, such as "
            f"[{found.low:g}, {found.high:g}]; write one, or search: {{kind: random, trials: 20}}"
        )
    elif kind is None:
        wrong = "takes no range, which is of floats or whole numbers; write a list"
    elif kind is int and not found.whole:
        wrong = "low, high and step must be whole numbers"
    return [Problem(entry.place, dotted(key), wrong)] if wrong else found


def _problems(error: ValidationError, entry: Entry, key: Loc) -> list[Problem]:
    said: dict[Loc, str] = {}
    for one in error.errors(include_url=False):
        text = in_words(one)
        if one["type"] == "extra_forbidden":
            text = unknown_key(str(one["loc"][-1]), Range.model_fields, "a range")
        # Of the members of a union the last speaks: a float is what is mostly wanted.
        said[one["loc"][:1]] = text
    return [
        Problem(entry.at(below)[0].place, dotted((*key, *below)), text)
        for below, text in said.items()
    ]


def number_of(annotation: Any) -> type | None:
    """float or int where a field takes one, else None."""
    kinds = get_args(annotation) or (annotation,)
    return float if float in kinds else int if int in kinds else None
