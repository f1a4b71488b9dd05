"""Rendering of templates, and encoding of data for the scripts of a page."""

import base64
import json
import zlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unlearnbench.analysis.settings import panel_label
from unlearnbench.base.hashing import json_ready

from .formatting import inside_score, interval_text, prose, rate_text, signed, sort_key


def to_json(value: Any) -> str:
    """Write compact JSON. NaN and infinities, which JSON does not have, become null."""
    options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        # Only values with NaN or an infinity are copied, because the copy takes time.
        with_nulls = json_ready(value, lambda _: None)
        return json.dumps(with_nulls, allow_nan=False, **options)


def compressed(text: str) -> str:
    """Compress a text (raw deflate, base 64) for `inflate` in `templates/core.js`."""
    # A negative number of bits means raw deflate: without zlib's header and checksum.
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(text.encode()) + packer.flush()
    return base64.b64encode(packed).decode("ascii")


def embedded(value: Any) -> Markup:
    """Write JSON for a script element. It has no `<`, so no text in it can end the element."""
    return Markup(to_json(value).replace("<", "\\u003c"))


@cache
def plotly() -> str:
    """Compress Plotly's source."""
    return compressed(get_plotlyjs())


def render(template: str, /, **values: Any) -> str:
    """Fill a template in.

    Args:
        template: Path in this package, such as `templates/page.html.j2`.
        values: Values of the template's names.
    """
    return _environment().get_template(template).render(**values)


def joined(*paths: str) -> Markup:
    """Join files of this package without any escaping."""
    return Markup("\n".join(map(resource, paths)))


def files_of(folder: str, suffix: str) -> list[str]:
    """List the paths of a folder's files with a suffix, in the order of their names."""
    names = [file.name for file in _package_files().joinpath(folder).iterdir()]
    return sorted(f"{folder}/{name}" for name in names if name.endswith(suffix))


@cache
def resource(path: str) -> str:
    """Read a file of this package."""
    return _package_files().joinpath(path).read_text(encoding="utf-8")


def _package_files() -> Traversable:
    return files(__package__ or "dashboards")


@cache
def _environment() -> Environment:
    """Make the environment of all templates, with the functions that they may call."""
    environment = Environment(
        loader=FunctionLoader(resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions: dict[str, Any] = {
        "place": panel_label,
        "rate": rate_text,
        "prose": prose,
        "number": signed,
        "ends": interval_text,
        "key": sort_key,
        "inside_score": inside_score,
    }
    environment.globals.update(functions)
    return environment
