"""Templates filled in, and data encoded for scripts."""

import base64
import json
import zlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unlearnbench.analysis.settings import panel_label
from unlearnbench.base.hashing import json_ready

from .formatting import inside_score, interval_text, prose, rate_text, signed, sort_key


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


def embedded(value: Any) -> Markup:
    """Write JSON for a script element, which no text in it can end: without `<`."""
    return Markup(to_json(value).replace("<", "\\u003c"))


@cache
def plotly() -> str:
    """Compress Plotly's source."""
    return compressed(get_plotlyjs())


def render(template: str, /, **values: Any) -> str:
    """Fill a template in, by its path."""
    return _environment().get_template(template).render(**values)


def joined(*paths: str) -> Markup:
    """Join files of this package, as they are."""
    return Markup("\n".join(map(resource, paths)))


def files_of(folder: str, suffix: str) -> list[str]:
    """List the paths of a folder's files with a suffix, by name."""
    iterdir = files(__package__ or "dashboards").joinpath(folder).iterdir()
    return sorted(f"{folder}/{item.name}" for item in iterdir if item.name.endswith(suffix))


@cache
def resource(path: str) -> str:
    """Read a file of this package."""
    return files(__package__ or "dashboards").joinpath(path).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FunctionLoader(resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions: dict[str, Any] = {"place": panel_label, "rate": rate_text, "prose": prose}
    functions |= {"number": signed, "ends": interval_text, "key": sort_key}
    functions["inside_score"] = inside_score
    made.globals.update(functions)
    return made
