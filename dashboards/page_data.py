"""Encoding of embedded data: JSON that scripts read at once, and compressed JSON."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from unlearnbench.files.canonical_json import json_ready


def to_json(value: Any) -> str:
    """Write compact JSON; NaN and infinities, which JSON does not have, become null."""
    options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(json_ready(value, lambda _: None), allow_nan=False, **options)


def compressed(text: str) -> str:
    """Compress a text (raw deflate, base 64) for `inflate` in `templates/core.js`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(text.encode()) + packer.flush()
    return base64.b64encode(packed).decode("ascii")


def compressed_size(value: Any) -> int:
    """Estimate the bytes of a value's JSON, compressed and in base 64; faster than compressing."""
    return len(zlib.compress(to_json(value).encode(), 6)) * 4 // 3
