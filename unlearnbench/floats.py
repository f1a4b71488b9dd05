"""Floats that JSON lacks, in JSON: `{"$float": "nan"}`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` with lists for tuples, and floats that are not finite as `{"$float": …}`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def revive(found: dict[str, Any]) -> Any:
    """The `object_hook` that reads what `plain` made."""
    return _NOT_FINITE[found["$float"]] if found.keys() == {"$float"} else found


_NOT_FINITE = {repr(value): value for value in (math.nan, math.inf, -math.inf)}
