"""JSON of values with NaN and infinities, which JSON lacks, and hashes of values."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def json_ready(value: Any, encode: Callable[[float], Any] = str) -> Any:
    """Return `value` with lists for tuples and text for keys.

    encode  makes a value of each float that is not finite; default: its text, `"nan"`
    """
    if isinstance(value, str):  # most values are, so it comes first
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else encode(value)
    if isinstance(value, Mapping):
        return {str(key): json_ready(item, encode) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item, encode) for item in value]
    return value


def content_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(
        json_ready(value),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sealed_json(document: Mapping[str, Any]) -> str:
    """A JSON object with its own hash in `sha256`, to be read with `decode_floats`.

    A float that is not finite is written as `{"$float": "nan"}`.
    """
    ready = json_ready(document, lambda number: {"$float": repr(number)})
    ready["sha256"] = document_hash(ready)
    return json.dumps(ready, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object without its field `sha256`, whatever its order and spaces."""
    rest = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def decode_floats(result: dict[str, Any]) -> Any:
    """Read the floats that `sealed_json` wrote; an `object_hook`."""
    return _NOT_FINITE[result["$float"]] if result.keys() == {"$float"} else result


_NOT_FINITE = {repr(value): value for value in (math.nan, math.inf, -math.inf)}
