"""Values in words: nested settings as lines, times with their unit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Name and value of every setting that is there, inner names after outer ones."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        path = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            pairs += flat(value, f"{path} · ")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            pairs.append((path, text))
    return pairs


def duration(seconds: float) -> str:
    """In the unit that a person would use."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
