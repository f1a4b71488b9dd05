"""Headline of a benchmark as its records store it.

A record carries the headline of a benchmark whose two numbers are not TOFU's, so that its table and
page need no plug-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unlearnbench.api.benchmark import Benchmark, Headline
from unlearnbench.api.registry import load

KEY = "headline"
"""Key in the provenance of a record."""


@cache
def default_headline() -> Headline:
    """TOFU's: of tables and records that carry none, as those of earlier versions."""
    tofu: type[Benchmark] = load("benchmarks", "tofu")
    return tofu.headline


def headline_entry(headline: Headline) -> dict[str, Any]:
    """Entry of a record's provenance from which `stored_headline` reads it; empty for TOFU's."""
    return {} if headline == default_headline() else {KEY: asdict(headline)}


def stored_headline(provenance: Mapping[str, Any]) -> Headline:
    """Read the headline from a record's provenance. Raises: ValueError that names what is wrong."""
    if KEY not in provenance:
        return default_headline()
    try:
        return _reader().validate_python(provenance[KEY])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (KEY, *first["loc"])))
        raise ValueError(f"{place}: {first['msg']}") from None


@cache
def _reader() -> TypeAdapter[Headline]:
    return TypeAdapter(Headline)
