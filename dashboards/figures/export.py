"""Figures as files: SVG, PNG and PDF (drawn by a browser) and self-contained HTML."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, cast

import plotly.graph_objects as go

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.files.outputs import check_file, writing

FORMATS = (".svg", ".png", ".pdf", ".html")
_MARK = "unlearnbench figure sha256:"
_SCALE = 2
"""Pixels of a PNG or PDF per pixel of the figure."""


def save(figure: go.Figure, path: Path) -> None:
    """Write `figure` to `path` atomically, in the format of its suffix.

    Raises: UnlearnbenchError for any other suffix, and if kaleido or a browser is missing.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UnlearnbenchError(f"{path}: unknown format; write the figure as {', '.join(FORMATS)}")
    check_file(path, "the figure")
    if kind == ".html":
        content = figure.to_html(include_plotlyjs=True).encode()
    else:
        content = _image(figure, kind.removeprefix("."), path)
    if kind == ".svg":
        content = _signed(shrink(content.decode()), figure).encode()
    with writing(path, "the figure") as part:
        part.write_bytes(content)


def _image(figure: go.Figure, kind: str, path: Path) -> bytes:
    try:
        image: bytes = figure.to_image(format=kind, scale=_scale(figure, kind))
    except Exception as error:  # kaleido and the browser have no common error class
        first = str(error).strip().partition("\n")[0]
        raise UnlearnbenchError(
            f"{path}: no {kind.upper()} without kaleido and Chrome or Chromium ({first}); "
            "`pip install 'unlearnbench[figures]'` and install a browser, or write .html"
        ) from error
    return image


def _scale(figure: go.Figure, kind: str) -> float:
    """Pixels of the image per pixel of the figure; a figure of a width in print has that width."""
    meta: Any = cast(Any, figure.layout).meta or {}
    scale, dpi = meta.get("scale", 1.0), meta.get("dpi")
    if dpi or kind == "svg":
        return float(scale * (dpi / 96 if dpi and kind == "png" else 1))
    return float(scale * _SCALE)


def digest(figure: go.Figure) -> str:
    """SHA-256 of a figure's content: equal figures have equal digests."""
    content = json.loads(figure.to_json() or "null")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def signature(svg: str) -> str | None:
    """Read the digest of the figure that an SVG was drawn from."""
    found = re.search(_MARK + "([0-9a-f]{64})", svg)
    return found[1] if found else None


def _signed(svg: str, figure: go.Figure) -> str:
    head, bracket, rest = svg.partition(">")
    return f"{head}{bracket}<metadata>{_MARK}{digest(figure)}</metadata>{rest}\n"


_DEFAULTS = re.compile(
    r"(?:(?<=[;\"])| )"
    r"(?:(?:fill-|stroke-)?opacity: 1|stroke-miterlimit: 2|white-space: pre);"
)
_COLOUR = re.compile(r"rgb\((\d+), (\d+), (\d+)\)")
_EMPTY = re.compile(r'<g(?: class="[^"]*")?(?: clip-path="[^"]*")?(?: style="")?/>')
_DRAG = re.compile(r'<rect class="[^"]*(?:drag|legendtoggle)[^"]*"[^>]*/>')


def shrink(svg: str) -> str:
    """Remove what is not visible from an SVG: defaults, empty groups, areas for dragging."""
    svg = _DRAG.sub("", svg)
    svg = re.sub(r'style="[^"]*"', lambda style: _DEFAULTS.sub("", style[0]), svg)
    svg = _COLOUR.sub(lambda c: f"#{int(c[1]):02x}{int(c[2]):02x}{int(c[3]):02x}", svg)
    svg = svg.replace(' style=""', "").replace(' data-notex="1"', "")
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    before = ""
    while before != svg:
        before, svg = svg, _EMPTY.sub("", svg)
    return svg
