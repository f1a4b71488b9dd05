"""Figures as files: SVG, PNG and PDF through a browser, HTML that needs nothing else."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import plotly.graph_objects as go

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.files import check_place, writing

FORMATS = (".svg", ".png", ".pdf", ".html")
_MARK = "unlearnbench figure sha256:"
_SCALE = 2
"""Pixels of a PNG to a pixel of the figure."""


def save(figure: go.Figure, path: Path) -> None:
    """Write `figure` to `path`, whole or not at all, in the format that its name ends in.

    Raises: UnlearnbenchError for another format, and where kaleido or a browser is missing.
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UnlearnbenchError(f"{path}: a figure is written as {', '.join(FORMATS)}; name it so")
    check_place(path, "the figure")
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
        image: bytes = figure.to_image(format=kind, scale=1 if kind == "svg" else _SCALE)
    except Exception as error:  # kaleido and what it drives have no error of their own in common
        first = str(error).strip().partition("\n")[0]
        raise UnlearnbenchError(
            f"{path}: no {kind.upper()} without kaleido and Chrome or Chromium ({first}); "
            "`pip install 'unlearnbench[figures]'` and install a browser, or write .html"
        ) from error
    return image


def digest(figure: go.Figure) -> str:
    """SHA-256 of everything that the figure holds: equal figures have equal digests."""
    held = json.loads(figure.to_json() or "null")
    text = json.dumps(held, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def signature(svg: str) -> str | None:
    """The digest of the figure that an SVG was drawn from."""
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
    """The same picture in fewer bytes: no defaults, no empty groups, nothing to drag."""
    svg = _DRAG.sub("", svg)
    svg = re.sub(r'style="[^"]*"', lambda style: _DEFAULTS.sub("", style[0]), svg)
    svg = _COLOUR.sub(lambda c: f"#{int(c[1]):02x}{int(c[2]):02x}{int(c[3]):02x}", svg)
    svg = svg.replace(' style=""', "").replace(' data-notex="1"', "")
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    before = ""
    while before != svg:
        before, svg = svg, _EMPTY.sub("", svg)
    return svg
