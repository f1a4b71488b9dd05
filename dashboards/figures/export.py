"""Figures as files: SVG, PNG and PDF (drawn by a browser) and self-contained HTML."""

from pathlib import Path
from typing import Any, cast

import plotly.graph_objects as go

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.outputs import check_file, writing

FORMATS = (".svg", ".png", ".pdf", ".html")
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
